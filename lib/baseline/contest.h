/* Shared by the parts of a comparison; private to lib/baseline. */
#ifndef FM_CONTEST_H
#define FM_CONTEST_H

#include "lib/bench/workdir.h"
#include "lib/block/block.h"
#include "lib/learn/criterion.h"
#include "lib/baseline/baseline.h"
#include "lib/baseline/spent.h"
#include "lib/stage/ranking.h"

/* How a baseline cuts.  criterion and scope are for FM_CONTEST_CHANNELS, method for
 * FM_CONTEST_METHOD. */
struct fm_contest_rule {
    enum fm_contest_kind {
        FM_CONTEST_EXPERTS,
        FM_CONTEST_CHANNELS,
        FM_CONTEST_METHOD,
        FM_CONTEST_BUNDLE
    } kind;
    const char *name;
    enum fm_criterion criterion; /* of channels */
    int scope;                   /* enum fm_channelcut */
    enum fm_method method;       /* FM_METHODS: the default */
};
const struct fm_contest_rule *fm_contest_rule(enum fm_baseline baseline);

struct fm_contest {
    const struct fm_run_options *run;
    struct fm_run_options quiet; /* for calibrations after the first, to give warnings only once */
    const struct fm_baseline_options *options;
    struct fm_baseline_table *table;
    struct fm_config config; /* of the checkpoint */
    struct fm_workdir work;
    char until[16]; /* highest budget of families */
    /* Results of calibrations. */
    double *score[FM_BASELINE_RANDOM]; /* (M, E) of reap and frequency */
    struct fm_ranking ranking[FM_CRITERIA];
    struct fm_spent ranked[FM_CRITERIA]; /* seconds 0: not done yet */
    struct fm_spent trained[FM_METHODS], recovered[FM_METHODS];
};

/* Check, before any lengthy work, that run->inputs.stream, if given, has masks of this model. */
int fm_contest_check(const struct fm_contest *contest, struct fm_err *err);

/* Compute all rows of the table: first calibrate, recording the cost; then measure. */
int fm_contest_calibrate(struct fm_contest *contest, struct fm_err *err);
int fm_contest_measure(struct fm_contest *contest, struct fm_err *err);

#endif
