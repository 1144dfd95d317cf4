/*
 * Method `learned`: train logits on sampled subnets, while a controller raises the budget
 * (fm-method(7)).  All state that a step changes is in struct fm_learn and the family, so a run can
 * be saved between any two steps.
 */
#ifndef FM_LEARN_H
#define FM_LEARN_H

#include "lib/learn/maskgrad.h"
#include "lib/learn/options.h"
#include "lib/learn/task.h"
#include "lib/masks/logits.h"
#include "lib/masks/methods.h"

struct fm_learn {
    struct fm_task *task; /* borrowed */
    const struct fm_train_options *options;
    const struct fm_actions *actions;
    struct fm_decimal step, until;
    int batch; /* sequences in a step */
    int size;  /* experts that share a width and logits */
    /* State. */
    struct fm_logits logits;
    double *q;        /* (M, E) running load */
    double lambda;    /* weight of the cost */
    double rho_start; /* expected budget before the first step */
    int64_t taken;    /* number of steps taken */
    /* Scratch. */
    struct fm_sweep *sweep;
    struct fm_maskgrad grad;
    uint32_t *widths; /* (samples + 2, M, E): sampled, then hardened before and after a step */
    double *floored;  /* (M, E) */
    int32_t *ids;     /* (batch, T) */
    int64_t *counts;  /* (1 + samples, M, E) */
};

/* The caller sets task, options, actions, step, until and batch; logits are initialised from the
 * task's ranking. */
int fm_learn_init(struct fm_learn *learn, struct fm_err *err);
void fm_learn_release(struct fm_learn *learn); /* zeroed struct is fine */

/*
 * Take one step, go from the previous hardened mask to the new one, one flip at a time, and append
 * each mask that removes at least `step` more than the family's last, up to the first that reaches
 * `until`.  *done is set, and no step is taken, if the family has reached `until`, or after 2 *
 * options->steps steps; the second half lets the hardened budget catch up.  In the second case the
 * last hardened mask is appended if it removes more than the family's last mask.
 */
int fm_learn_step(struct fm_learn *learn, struct fm_masks *masks, bool *done, struct fm_err *err);

/* Number of channels that the hardened logits remove, which may be fewer than the family's last
 * mask removes once gaps have been filled. */
uint64_t fm_learn_removed(const struct fm_learn *learn, const struct fm_masks *masks);

#endif
