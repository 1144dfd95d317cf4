/*
 * The mathematics of learned masks, independent of a model: logits over the action set for every
 * expert or group, the straight-through Gumbel-softmax, the gradients of the loss, Adam, and the
 * controller of the budget (fm-method(7)).  All in double.
 *
 * x is the index of an expert, or of a group of experts with one width, X in all; a is the index of
 * an action.
 */
#ifndef FM_LOGITS_H
#define FM_LOGITS_H

#include <stdint.h>

#include "lib/masks/actions.h"

struct fm_logits {
    int X, A;
    const struct fm_actions *actions; /* borrowed */
    double I;                         /* width of the widest action */
    double *alpha, *m, *v;            /* (X, A): the state: the trained logits and their moments */
    double *p;                        /* (X, A): softmax(alpha), without noise */
    double *grad;                     /* (X, A): gradient of the loss with respect to alpha */
    double *soft;                     /* (X, A): softmax((alpha + g) / tau) of the last sample */
};

int fm_logits_init(struct fm_logits *z, const struct fm_actions *actions, int X,
                   struct fm_err *err);
void fm_logits_release(struct fm_logits *z); /* zeroed struct is fine */

/*
 * alpha = -eta lost / mean(lost), plus 2 for the widest action.  lost (X, A): fm_masks_lost, summed
 * over each group; if it is all zero, or eta is zero, only the 2 remains.
 */
void fm_logits_start(struct fm_logits *z, const double *lost, double eta);

/* Compute p from alpha; call it after every change of alpha. */
void fm_logits_refresh(struct fm_logits *z);

/* Expected budget: 1 - mean over x of sum_a p_a k_a / I. */
double fm_logits_expected(const struct fm_logits *z);

/* Widths (X) of the hardened mask: argmax of p. */
void fm_logits_harden(const struct fm_logits *z, uint32_t *widths);

/* Draw one subnet: soft, and widths (X) by the argmax of soft. `draw` numbers the samples of a
 * run, so that a resumed run makes the same draws. */
void fm_logits_sample(struct fm_logits *z, uint32_t *widths, double tau, uint64_t seed,
                      uint64_t draw);

/* Set grad to 0. */
void fm_logits_clear(struct fm_logits *z);

/* Add the gradient through the last sample: grad_a += share soft_a (dz_a - sum_b soft_b dz_b) /
 * tau, dz (X, A). */
void fm_logits_back_sample(struct fm_logits *z, const double *dz, double tau, double share);

/* Add the gradient of lambda sum_x q_x sum_a p_a k_a / I. */
void fm_logits_back_cost(struct fm_logits *z, const double *q, double lambda);

/* Add the gradient of -beta mean entropy(p). */
void fm_logits_back_entropy(struct fm_logits *z, double beta);

/* Take one step of Adam on alpha, t counted from 1, and recompute p. */
void fm_logits_adam(struct fm_logits *z, double lr, double beta1, double beta2, int t);

/*
 * Update the running mean, with factor 0.9, of each expert's share of its layer's token slots. q
 * (M, E), counts (M, E) of this step; `first` starts the mean. floored (M, E) is q with a floor of
 * 0.01 / E.
 */
void fm_logits_load(double *q, double *floored, const int64_t *counts, int M, int E, bool first);

/* The controller: lambda after a step that left the expected budget at rho. */
double fm_logits_pace(double lambda, double gain, int steps, int64_t taken, double rho_start,
                      double until, double rho);

#endif
