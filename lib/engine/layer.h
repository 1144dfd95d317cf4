/*
 * One decoder layer, forward and backward: its blocks (lib/block/block.h) in model order, and the
 * grouping of tokens by the experts that were chosen for them.
 *
 * The backward computes the forward's inner values again from the layer's input, so only layer
 * boundaries need be kept between the two.  If the pass has memory for the inner values, they are
 * kept; they are bit-identical to those that would be computed again.  Products extend only to an
 * expert's width, so a narrow expert costs less.  Experts are pool tasks.
 */
#ifndef FM_LAYER_H
#define FM_LAYER_H

#include <stdint.h>

#include "lib/block/pass.h"
#include "lib/engine/sweep.h"

/* Bytes of a pass's cache for N tokens; gu: including products of gate_up. */
size_t fm_layer_cache_bytes(const struct fm_config *config, int N, bool gu);

/* y (S T, H) from x (S T, H); y may be x.  counts (E), if not NULL, receives the number of rows of
 * each expert.  visitor, if not NULL, is called for every expert and micro-batch with rows, as in
 * the backward. */
void fm_layer_forward(const struct fm_pass *pass, float *y, const float *x, int64_t *counts,
                      const struct fm_visitor *visitor, const struct fm_expert_view *where);

/*
 * dx (S T, H) holds the gradient at y and receives the one at x; if !wanted it is not computed, and
 * dx is undefined afterwards.  visitor->expert, if present, is called for every expert and
 * micro-batch with rows, in any order and by many threads; `where` (parts) gives the views' layer,
 * lane, batch and slot.  Without it the products stop at the lane's widths.  visitor->router, if
 * present, is called for every micro-batch; dx must be wanted.
 */
void fm_layer_backward(const struct fm_pass *pass, float *dx, bool wanted, const float *x,
                       const struct fm_visitor *visitor, const struct fm_expert_view *where);

#endif
