/*
 * Cost of a layer, summed over its blocks: for plans, and to find the experts' share of a model.
 */
#ifndef FM_COST_H
#define FM_COST_H

#include "lib/block/block.h"

/* One token forward, in sequences of T, through the parts of layer l that no mask changes:
 * attention, router, and the MLP that all tokens go through.  The gradient at its input takes as
 * many products, plus 2 H if the MLP is weighted by a function of the token. */
struct fm_flops fm_cost_layer(const struct fm_config *config, int l, int T);

/* One token through one expert at full width, forward; the gradient at its input takes as much, and
 * so do the gradients of its weights. */
double fm_cost_expert(const struct fm_config *config);

/* One token through lm_head; its gradient takes as much. */
double fm_cost_lm_head(const struct fm_config *config);

/* Floats that a forward and backward pass uses at once, in the layer that needs most: per token,
 * and per row of an expert that is being computed. */
uint64_t fm_cost_token_floats(const struct fm_config *config);
uint64_t fm_cost_row_floats(const struct fm_config *config);

#endif
