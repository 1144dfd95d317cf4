/*
 * A ranking in the scratch directory, and the difference of its scores from expected ones.
 */
#ifndef FM_TESTS_RANKED_H
#define FM_TESTS_RANKED_H

#include <math.h>

#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

static inline void ranked_read(struct fm_ranking *ranking, const char *name)
{
    struct fm_bundle b;
    struct fm_err err = {0};
    assert_ok(fm_stage_open(&b, scratch(name), FM_MEMBER_RANKING, &err));
    assert_ok(fm_ranking_open(ranking, &b, &err));
    fm_bundle_close(&b);
}

/* The largest difference between the scores of experts with `channels` channels each, relative to
 * the largest expected score of the expert.  If all expected scores of an expert are 0, any
 * difference counts as infinite. */
static inline double ranked_error(const double *got, const double *want, int experts, int channels)
{
    double worst = 0;
    for (int x = 0; x < experts; x++) {
        double most = 0, off = 0;
        for (int i = x * channels; i < (x + 1) * channels; i++) {
            most = want[i] > most ? want[i] : most;
            double d = fabs(got[i] - want[i]);
            off = d > off || isnan(d) ? d : off;
        }
        off = off > 0 && most <= 0 ? INFINITY : off > 0 ? off / most : off;
        worst = off > worst || isnan(off) ? off : worst;
    }
    return worst;
}

#endif
