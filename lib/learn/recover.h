/*
 * fm-recover: train low-rank adapters of the experts, or the routers, or solve the experts' down
 * projections in closed form, on one mask of the family or, with strategy cross, on several, for
 * use with all of its masks (fm-method(7)).  Of trained adapters: the ranked weights stay frozen.
 * With a single mask, channels beyond it are not changed.
 */
#ifndef FM_RECOVER_H
#define FM_RECOVER_H

#include "lib/learn/estimate.h"
#include "lib/learn/recovery.h"
#include "lib/masks/masks.h"
#include "lib/run/run.h"

struct fm_recover_report {
    struct fm_masks masks;        /* with the figures before recovery */
    struct fm_quality *after;     /* (masks.count) on merged, rounded weights */
    int mask;                     /* the mask that was recovered; -1: several, in solving */
    int steps, resumed;           /* layers, if they were solved */
    struct fm_solving solving;    /* of a closed form; masks 0: trained */
    double loss_first, loss_last; /* of the first and the last step; they are of different text, so
                                     their difference does not measure progress */
    double seconds, seconds_step;
};

void fm_recover_defaults(struct fm_recover_options *options, const struct fm_recovery *train);
void fm_recover_report_release(struct fm_recover_report *report); /* zeroed struct is fine */

/*
 * Read the stage stream run->inputs.stream (ranking and masks), train, measure again every mask
 * that has figures, and write the stream with the adapter to run->outputs.path.  A step trains on
 * run->inputs.batch sequences (0: 8).  An adapter that the stream already has is replaced.  Errors
 * and `dry` as for fm_train.
 */
int fm_recover(const struct fm_run_options *run, const struct fm_recover_options *options,
               struct fm_estimate *dry, struct fm_recover_report *report, struct fm_err *err);

/* Whether the checkpoint in the directory `model` has quantised experts, which merging an adapter
 * would write as BF16; false if it cannot be read. */
bool fm_recover_loses_codes(const char *model);

#endif
