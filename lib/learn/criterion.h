/*
 * Criteria for the score of a channel.  The first is the suite's own (fm-method(7)); the others
 * come from other pruners.  fm-rank offers two of those for a quick first look; fm-bench offers
 * them all for comparisons.  All are sums over the rows of an expert, batch by batch, computed by a
 * visitor of the sweep.
 *
 * For the n rows that a batch routes to an expert, h (n, I) is the input of down, and w (n) the
 * router's weights; down_j is the column of W_down for channel j.
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
     * the paper finds that alpha hardly matters.  In its authors' code (xuyuzhuang11/CAMERA, the
     * option reduce_ratio) alpha is 1 by default and 0.9 in the one example. CAMERA scores a layer
     * after the layers before it have been pruned; here they are complete. */
    FM_CRITERION_ENERGY,
    /* Root of the sum over batches of (mean over the batch's rows of |h_j|)^2: Minitron
     * (Muralidharan et al., NeurIPS 2024, arXiv 2407.14679), with the mean over a sequence and the
     * L2 norm over sequences, as in NVIDIA's Model-Optimizer (MegatronL2NormHook), for each expert
     * separately. */
    FM_CRITERION_ACTIVATION,
    /* The following are only for fm-bench.  Sum over batches of the mean of |h_j|, times |down_j|:
     * the other norm of Model-Optimizer (IndependentChannelContributionHook). */
    FM_CRITERION_CONTRIBUTION,
    /* Mean over batches of the sum over the channel's parameters, including its gate and up biases
     * if there are any, of (dL/dtheta)^2, the empirical Fisher information of Fisher-MoE (He et
     * al., arXiv 2606.05538).  The code that its authors published (HectorHHZ/Less-is-MoE) takes
     * the mean of |dL/dtheta| instead, and documents this. */
    FM_CRITERION_FISHER,
    /* Mean over the expert's rows of w |h_j| |down_j|: winnow (hbfreed/winnow, "channel REAP"). */
    FM_CRITERION_WINNOW,
    FM_CRITERIA
};

/* "taylor", "energy", "activation", ...: names in options and manifests. */
const char *fm_criterion_name(enum fm_criterion criterion);

/* Whether the criterion needs a backward pass. */
bool fm_criterion_backward(enum fm_criterion criterion);

/* The criterion of a stream's ranking, from fm-rank's history entry; taylor if it records none.
 * FM_EFORMAT for a name that fm-rank does not have. */
int fm_criterion_read(enum fm_criterion *criterion, const struct fm_bundle *stream,
                      struct fm_err *err);

/* State for fm_criterion_add. */
struct fm_criterion_adder {
    enum fm_criterion criterion;
    const struct fm_ops *ops;
    int I, H;
    float *ones; /* (rows I, H) for fisher, else NULL */
};

/* rows: rows of gate_up per channel. */
int fm_criterion_begin(struct fm_criterion_adder *adder, enum fm_criterion criterion,
                       const struct fm_ops *ops, int rows, int I, int H, struct fm_err *err);
void fm_criterion_end(struct fm_criterion_adder *adder); /* zeroed struct is fine */

/* Add one view of a batch to sums (I), which start at zero.  Called by many threads at once. */
void fm_criterion_add(const struct fm_criterion_adder *adder, double *sums,
                      const struct fm_expert_view *view);

/* Turn sums over all batches into scores (X, I), in place; tokens (X) is the number of rows of each
 * expert. */
void fm_criterion_finish(enum fm_criterion criterion, double *scores, const int64_t *tokens,
                         size_t X, int I, int batches);

#endif
