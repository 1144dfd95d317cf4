/*
 * Cost of a layer, summed over its blocks: for plans, and to find the experts' share of a model.
 */
#ifndef FM_COST_H
#define FM_COST_H

#include "lib/block/block.h"

/* Cost of one token, forward, in sequences of T, in the parts of layer l that no mask changes:
 * attention, router, and the MLP that all tokens go through.  The products for the gradient at its
 * input take as many operations, plus 2 H if the MLP's output is multiplied by sigmoid(w x). */
struct fm_flops fm_cost_layer(const struct fm_config *config, int l, int T);

/* Cost of one token in one expert at full width, forward; the gradient at its input costs as much,
 * and so do the gradients of the expert's weights. */
double fm_cost_expert(const struct fm_config *config);

/* Cost of one token in lm_head, forward; the gradient costs as much. */
double fm_cost_lm_head(const struct fm_config *config);

/* Floats that a forward and backward pass uses at once, in the layer that needs most: per token,
 * and per row of an expert that is being computed. */
uint64_t fm_cost_token_floats(const struct fm_config *config);
uint64_t fm_cost_row_floats(const struct fm_config *config);

#endif
