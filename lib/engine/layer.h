/*
 * One decoder layer, forward and backward: its blocks (lib/block/block.h) in model order, and the
 * rows of tokens on their way to the experts that were chosen for them.
 *
 * The backward computes the forward's inner values again from the layer's input, so nothing
 * but layer boundaries need be kept between the two; where the pass has memory for the inner
 * values they are kept, bit for bit what would be computed again.  Widths are bounds of the
 * products: a narrow expert costs less work.  Knows nothing of files, lanes or losses.
 *
 * Experts are pool tasks.
 */
#ifndef FM_LAYER_H
#define FM_LAYER_H

#include <stdint.h>

#include "lib/block/pass.h"
#include "lib/engine/sweep.h"

/* Bytes of `kept` for N tokens. */
size_t fm_layer_cache_bytes(const struct fm_config *config, int N, bool gu);

/* y (S T, H) from x (S T, H); y may be x.  counts (E), where not NULL, receives the rows that
 * each expert got.  visitor, where not NULL, sees every expert and micro-batch with rows, as in the
 * backward. */
void fm_layer_forward(const struct fm_pass *pass, float *y, const float *x, int64_t *counts,
                      const struct fm_visitor *visitor, const struct fm_expert_view *where);

/*
 * dx (S T, H) holds the gradient at y and receives the one at x; !wanted: nobody reads that one,
 * and dx is left undefined.  visitor->expert, where there is one, is called for every expert and
 * micro-batch with rows, in any order and by many threads; where (parts) gives the views' layer,
 * lane, batch and slot.  Without it the products stop at the lane's widths.
 */
void fm_layer_backward(const struct fm_pass *pass, float *dx, bool wanted, const float *x,
                       const struct fm_visitor *visitor, const struct fm_expert_view *where);

#endif
