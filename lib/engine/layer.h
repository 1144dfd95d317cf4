/*
 * One decoder layer, forward and backward, written once against the op table:
 *
 *     x1 = x  + Attention(norm(x))
 *     y  = x1 + sum over chosen experts of weight * expert(norm(x1))
 *
 * The backward computes the forward's inner values again from the layer's input, so nothing
 * but layer boundaries need be kept between the two; where the pass has memory for the inner
 * values they are kept, bit for bit what would be computed again.  Widths are bounds of the
 * products: a narrow expert costs less work.  Knows nothing of files, lanes or losses.
 *
 * Every array lies on the device of the op table (kernels/ops/kernels.h), scratch of the calling
 * threads there included; experts are pool tasks.  The host is told one thing: how many rows each
 * expert got.
 */
#ifndef FM_LAYER_H
#define FM_LAYER_H

#include <stdint.h>

#include "lib/engine/sweep.h"

/* One or more micro-batches of one shape on their way through one layer: rows of many make better
 * products.  Everything is borrowed. */
struct fm_pass {
    const struct fm_ops *ops;
    const struct fm_config *config;
    const struct fm_layer *layer;
    int l;                  /* its number */
    const uint32_t *widths; /* (E), each at most the expert's cap; NULL: the caps */
    const float *cos, *sin; /* (T, C/2), from fm_layer_angles */
    int S, T;               /* sequences of all micro-batches together */
    int parts;              /* micro-batches, S / parts sequences each */
    void *kept;             /* inner values, from the forward to the backward; NULL: not kept */
    int32_t *kept_first;    /* the host's part of them: (E parts + 1); NULL: not kept */
    bool kept_gu;           /* gate and up are among them: the backward needs no other channels
                               than the widths' */
};

/* Bytes of `kept` for N tokens. */
size_t fm_layer_kept_bytes(const struct fm_config *config, int N, bool gu);

/* cos, sin (T, C/2) of the rotary angles, computed as transformers does: frequency and angle in
 * float32. */
void fm_layer_angles(float *cos, float *sin, const struct fm_config *config, int T);

/* y (S T, H) from x (S T, H); y may be x.  counts (E), where not NULL, receives the rows that
 * each expert got. */
void fm_layer_forward(const struct fm_pass *pass, float *y, const float *x, int64_t *counts);

/*
 * dx (S T, H) holds the gradient at y and receives the one at x; !wanted: nobody reads that one,
 * and dx is left undefined.  visitor->expert, where there is one, is called for every expert and
 * micro-batch with rows, in any order and by many threads; where (parts) gives the views' layer,
 * lane, batch and slot.  Without it the products stop at the lane's widths.
 */
void fm_layer_backward(const struct fm_pass *pass, float *dx, bool wanted, const float *x,
                       const struct fm_visitor *visitor, const struct fm_expert_view *where);

#endif
