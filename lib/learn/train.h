/*
 * fm-train: a family of masks, one for every budget (fm-method(7)).
 *
 * `learned` trains logits over the action set for every expert by straight-through Gumbel-softmax,
 * while a controller lowers the expected width linearly; the hardened masks on the way make up the
 * family.  `exchange` narrows the experts whose channels cost least by estimates from gradients.
 * The other methods need no gradients (lib/masks/masks.h).
 */
#ifndef FM_TRAIN_H
#define FM_TRAIN_H

#include "lib/learn/options.h"
#include "lib/learn/estimate.h"
#include "lib/masks/masks.h"
#include "lib/run/run.h"

struct fm_train_report {
    struct fm_actions actions;
    struct fm_masks masks; /* with quality; as in the output stream */
    int steps;             /* taken by learned, including those after the last planned one */
    int resumed;           /* steps, or masks of exchange, restored from the state file */
    bool reached;          /* the method itself came within a step of `until` */
    double came_to;        /* last budget of the method */
    double seconds;        /* of the whole run */
    double seconds_step;   /* mean per step, or mask of exchange; 0: no steps */
};

void fm_train_defaults(struct fm_train_options *options);
void fm_train_report_release(struct fm_train_report *report); /* zeroed struct is fine */

/*
 * Read the stage stream run->inputs.stream (with a ranking), make the family, measure it, and write
 * the stream to run->outputs.path.  A step trains on run->inputs.batch sequences (0: 8). FM_EUSAGE
 * for invalid options, FM_ECONFIG if the stream belongs to another model, FM_ESAVED when stopped
 * with run->outputs.state.  *report and `dry` as for fm_rank;
 * a dry run reads run->inputs.stream unless it is standard input.
 */
int fm_train(const struct fm_run_options *run, const struct fm_train_options *options,
             struct fm_estimate *dry, struct fm_train_report *report, struct fm_err *err);

#endif
