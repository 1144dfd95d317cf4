/*
 * fm-train: a family of masks, one for every budget (METHOD.md 2, 3, 3a).
 *
 * `learned` keeps logits over the action set for every expert and trains them by
 * straight-through Gumbel-softmax while a controller lowers the expected width along a
 * line; the hardened masks that it passes are the family.  `walk` lowers the cheapest
 * expert by measured gradients.  The rest need no gradient: lib/masks/masks.h.
 */
#ifndef FM_TRAIN_H
#define FM_TRAIN_H

#include "lib/learn/plan.h"
#include "lib/masks/masks.h"
#include "lib/run/run.h"

enum fm_lambda_schedule { FM_LAMBDA_PACED, FM_LAMBDA_LINEAR };

struct fm_train_options {
    enum fm_method method;
    enum fm_granularity granularity; /* experts that share a width; not of the shuffles */
    const char *actions;             /* "0.1,0.4,0.7,1"; NULL: ten, 0.1 to 1 */
    uint32_t width_multiple;         /* 1 */
    const char *budget_step;         /* "0.01" */
    const char *until;               /* "0.80" */
    int steps;                       /* 500 */
    int samples;                     /* subnets per batch, 1 */
    double prior;                    /* eta, 4: start from the scores; 0: the paper's start.  On the
                                        small trained model, over three seeds, 4 loses 0.002 less
                                        than 2 at a budget of 0.4, 0.001 less at 0.2 and 0.001 more
                                        at 0.6 */
    enum fm_lambda_schedule schedule;
    /* Constants that have no option of their own. */
    double lr, beta1, beta2;            /* Adam on the logits: 0.02 0.9 0.99 */
    double tau_first, tau_last;         /* temperature: 2 0.5 */
    double entropy_first, entropy_last; /* weight of the entropy: 0.02 0 */
    double gain;                        /* of the controller: 400, over steps; at 200 a start
                                           of eta 4 is often held below `until` */
    double lambda_last;                 /* where the linear schedule ends */
    int walk_sequences;                 /* a budget of walk looks at: 32 */
};

struct fm_train_report {
    struct fm_actions actions;
    struct fm_family family; /* with quality; what the stream now has */
    int steps;               /* taken by learned, also those after the last planned one */
    int resumed;             /* steps that came from the state file */
    bool reached;            /* the last mask is less than a step from `until` */
    double seconds;          /* all of it */
    double seconds_step;     /* mean of a training step or walk budget; 0: there were none */
};

void fm_train_defaults(struct fm_train_options *options);
void fm_train_report_release(struct fm_train_report *report); /* zeroed struct is fine */

/*
 * Read the stage stream run->input (it has a ranking; for the shuffles also masks), make the
 * family, measure it, write the stream to run->output.  run->batch sequences per step, 0: 8.
 * FM_EUSAGE for options that make no sense, FM_ECONFIG where the stream belongs to another
 * model, FM_ESAVED when stopped with run->state.  *report as for fm_rank.
 */
int fm_train(const struct fm_run_options *run, const struct fm_train_options *options,
             struct fm_train_report *report, struct fm_err *err);

/* --dry-run; does not read run->input. */
int fm_train_plan(const struct fm_run_options *run, const struct fm_train_options *options,
                  struct fm_plan *plan, struct fm_err *err);

#endif
