/*
 * Criteria for the score of a channel.  The first is the suite's own (fm-method(7)); the others
 * come from other pruners and serve for a quick first look.  All are sums over the rows of an
 * expert, batch by batch, computed by a visitor of the sweep.
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

/* What fm_criterion_add needs. */
struct fm_criterion_adder {
    enum fm_criterion criterion;
    const struct fm_ops *ops;
    int I, H;
};

/* Add one view of a batch to sums (I), which start at zero.  Called by many threads at once. */
void fm_criterion_add(const struct fm_criterion_adder *adder, double *sums,
                      const struct fm_expert_view *view);

/* Turn sums over all batches into scores (X, I), in place. */
void fm_criterion_finish(enum fm_criterion criterion, double *scores, size_t X, int I, int batches);

#endif
