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

#include <stdint.h>

#include "lib/learn/estimate.h"
#include "lib/masks/masks.h"
#include "lib/masks/methods.h"
#include "lib/run/run.h"

/* Limits of the options; the command line refuses values outside them. */
#define FM_TRAIN_STEPS_MAX 1000000
#define FM_TRAIN_SAMPLES_MAX 64 /* each is a lane of the sweep, in addition to the teacher */
#define FM_TRAIN_PRIOR_MAX 1000
#define FM_TRAIN_LR_MIN 1e-12
#define FM_TRAIN_LR_MAX 1000
#define FM_TRAIN_MULTIPLE_MAX (1 << 20)

struct fm_train_options {
    const struct fm_method *method;
    enum fm_granularity granularity; /* experts that share a width; not for uniform */
    /* Count 0: ten, from 0.1 to 1; for exchange twenty, from 0.05 to 1; one per budget step for
     * uniform, and if all experts share one width. */
    struct fm_decimals actions;
    uint32_t width_multiple;        /* 0: the ranking's channel group */
    struct fm_decimal budget_step;  /* 0.01 */
    struct fm_decimal until;        /* 0.80 */
    struct fm_decimal measure_step; /* 0.05: the masks nearest to its multiples are measured */
    int steps;                      /* 500 */
    int samples;                    /* subnets per batch, 1 */
    /* eta, 4: strength with which the scores initialise the logits; 0: as in the paper
     * (fm-method(7)).  On a small trained model, over three seeds, the loss with 4 is 0.002 lower
     * than with 2 at a budget of 0.4, 0.001 lower at 0.2 and 0.001 higher at 0.6. */
    double prior;
    double lr; /* of Adam on the logits, 0.02 */
    /* Constants without an option; tests change them. */
    double tau_last, entropy_last; /* of learned: the last temperature, and the last weight of the
                                      entropy: 0.5 0 */
    int around_sequences;          /* minimum sequences per sweep of exchange: 8 */
    int around_tokens;             /* minimum tokens of such a sweep: 2560 */
};

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
 * for invalid actions, FM_ECONFIG if the stream belongs to another model, FM_ESAVED when stopped
 * with run->outputs.state.  *report and `dry` as for fm_rank;
 * a dry run reads run->inputs.stream unless it is standard input.
 */
int fm_train(const struct fm_run_options *run, const struct fm_train_options *options,
             struct fm_estimate *dry, struct fm_train_report *report, struct fm_err *err);

#endif
