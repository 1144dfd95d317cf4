/*
 * What the score of a channel is.  The first is the suite's own (fm-method(7)); the others are
 * those of other pruners, with which fm-rank gives a quick first look and fm-bench compares.  All
 * are sums over the rows of an expert, batch by batch, so that a visitor of the sweep makes them.
 *
 * h (n, I) is what down is applied to, w (n) the router's weights, both of the n rows that a batch
 * routes to the expert; down_j the column of W_down that belongs to channel j.
 */
#ifndef FM_CRITERION_H
#define FM_CRITERION_H

#include <stdbool.h>

#include "formats/bundle/bundle.h"
#include "lib/engine/sweep.h"

enum fm_criterion {
    /* Mean over batches of the sum over the channel's parameters of (theta dL/dtheta)^2. */
    FM_CRITERION_TAYLOR,
    /* sum over all rows of (w h_j)^2, times |down_j|^2: the energy of CAMERA (Xu et al., AAAI 2026,
     * arXiv 2508.02322), [(1 - alpha) |Phi_j|_2^2 + alpha |Phi_j|_inf^2] |down_j|^2, at alpha 0;
     * the paper finds that alpha hardly matters.  Its authors' code (xuyuzhuang11/CAMERA, the
     * option reduce_ratio) has 1 unless told otherwise and 0.9 in the one run that it shows. CAMERA
     * scores a layer behind layers that are pruned already, this one behind whole ones. */
    FM_CRITERION_ENERGY,
    /* Root of the sum over batches of (mean over the batch's rows of |h_j|)^2: Minitron
     * (Muralidharan et al., NeurIPS 2024, arXiv 2407.14679), mean over a sequence and L2 norm over
     * sequences as NVIDIA's Model-Optimizer has it (MegatronL2NormHook), for each expert by itself.
     */
    FM_CRITERION_ACTIVATION,
    /* From here on for fm-bench alone.  Sum over batches of the mean of |h_j|, times |down_j|: the
     * other norm of Model-Optimizer (IndependentChannelContributionHook). */
    FM_CRITERION_CONTRIBUTION,
    /* Mean over batches of the sum over the channel's parameters, where experts have biases its own
     * of gate and up among them, of (dL/dtheta)^2, the empirical Fisher information of Fisher-MoE
     * (He et al., arXiv 2606.05538).  The code that its authors published (HectorHHZ/Less-is-MoE)
     * takes the mean of |dL/dtheta| instead, and says so. */
    FM_CRITERION_FISHER,
    /* Mean over the expert's rows of w |h_j| |down_j|: winnow (hbfreed/winnow, "channel REAP"). */
    FM_CRITERION_WINNOW,
    FM_CRITERIA
};

/* "taylor", "energy", "activation", ... as options and manifests spell them. */
const char *fm_criterion_name(enum fm_criterion criterion);

/* It needs gradients; without, a sweep that goes forward alone has all. */
bool fm_criterion_backward(enum fm_criterion criterion);

/* What the ranking of a stream was made with: the history of fm-rank, which says nothing where that
 * was taylor.  FM_EFORMAT for a name that is none of fm-rank's. */
int fm_criterion_read(enum fm_criterion *criterion, const struct fm_bundle *stream,
                      struct fm_err *err);

/* What adding needs. */
struct fm_criterion_adder {
    enum fm_criterion criterion;
    const struct fm_ops *ops;
    int I, H;
    float *ones; /* (rows I, H) of fisher, else NULL */
};

/* rows: of gate_up that a channel has. */
int fm_criterion_begin(struct fm_criterion_adder *adder, enum fm_criterion criterion,
                       const struct fm_ops *ops, int rows, int I, int H, struct fm_err *err);
void fm_criterion_end(struct fm_criterion_adder *adder); /* zeroed struct is fine */

/* sums (I), zero before: what one view of a batch gives.  By many threads at once. */
void fm_criterion_add(const struct fm_criterion_adder *adder, double *sums,
                      const struct fm_expert_view *view);

/* Sums over all batches become scores (X, I), in place; tokens (X) are the rows of each expert. */
void fm_criterion_finish(enum fm_criterion criterion, double *scores, const int64_t *tokens,
                         size_t X, int I, int batches);

#endif
