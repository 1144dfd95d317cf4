/*
 * What a layer costs, summed over its blocks: for plans, and for whoever must know how much of a
 * model is experts.
 */
#ifndef FM_COST_H
#define FM_COST_H

#include "lib/block/block.h"

/* One token forward through what no mask changes of layer l, in sequences of T: attention, router,
 * the MLP that all tokens go through.  The gradient at its input takes as many products,
 * and 2 H more where the token weighs that MLP. */
struct fm_flops fm_cost_layer(const struct fm_config *config, int l, int T);

/* One token through one expert at full width, forward; the gradient at its input takes as much, and
 * so do the gradients of its weights. */
double fm_cost_expert(const struct fm_config *config);

/* One token through lm_head; its gradient takes as much. */
double fm_cost_lm_head(const struct fm_config *config);

/* Floats that a pass forward and backward has in use at once, in whichever layer needs most: for
 * each token, and for each row of an expert at work. */
uint64_t fm_cost_token_floats(const struct fm_config *config);
uint64_t fm_cost_row_floats(const struct fm_config *config);

#endif
