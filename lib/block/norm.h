/*
 * Norm blocks: RMSNorm, RMSNorm with weights stored as differences from 1, and LayerNorm with a
 * bias.  A family names one; all norms of its model are of this kind, with the model's epsilon.
 */
#ifndef FM_NORM_H
#define FM_NORM_H

#include "lib/block/block.h"

struct fm_norm {
    bool bias; /* LayerNorm; else there are no biases */
    bool plus; /* weights are differences from 1 */
};

extern const struct fm_norm fm_rmsnorm, fm_rmsnorm_plus, fm_layernorm;

/* Over rows of H, with weights w and biases b (H), NULL for RMSNorm: y (N, H), and rstd (N), which
 * is kept for the backward. */
void fm_norm_forward(const struct fm_ops *ops, const struct fm_config *config, float *y,
                     float *rstd, const float *x, const float *w, const float *b, int N, int H);
/* Adds into dx (N, H). */
void fm_norm_backward(const struct fm_ops *ops, const struct fm_config *config, float *dx,
                      const float *dy, const float *x, const float *w, const float *b,
                      const float *rstd, int N, int H);

#endif
