/* Shared by the parts of a comparison; private to lib/baseline. */
#ifndef FM_CONTEST_H
#define FM_CONTEST_H

#include "lib/block/block.h"
#include "lib/baseline/baseline.h"

struct fm_contest {
    const struct fm_run_options *run;
    struct fm_baseline_table *table;
    struct fm_config config;           /* of the checkpoint */
    double *score[FM_BASELINE_RANDOM]; /* (M, E) of reap and frequency */
};

/* Compute all rows of the table: first calibrate, recording the cost; then measure. */
int fm_contest_calibrate(struct fm_contest *contest, struct fm_err *err);
int fm_contest_measure(struct fm_contest *contest, struct fm_err *err);

#endif
