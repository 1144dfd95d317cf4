/*
 * Shared by all routers: logits of all experts, by one product.
 */
#ifndef FM_ROUTER_H
#define FM_ROUTER_H

#include "lib/block/block.h"

/* logits (N, E) = x w^T + bias, plus the pass's `closed`; dx (N, H) = dlogits w; and the operations
 * of one of these products for one token. */
void fm_router_logits(const struct fm_pass *pass, float *logits, const float *x);
void fm_router_logits_back(const struct fm_pass *pass, float *dx, const float *dlogits);
double fm_router_logits_flops(const struct fm_config *config);

/* The router's weight: its name in checkpoints and bundles, and in ragged exports, which follow
 * transformers 5. */
/* clang-format off */
#define FM_ROUTER_WEIGHT(stock, ragged)                                                            \
    {{stock, stock, ragged}, FM_PART_ROUTER,                                                       \
     FM_LAYER_FIELD(router.w), "EH", FM_MOE}
#define FM_ROUTER_BIAS_WEIGHT(name)                                                                \
    {FM_SAME(name), FM_PART_ROUTER,                                                                \
     FM_LAYER_FIELD(router.bias), "E", FM_MOE}
/* clang-format on */

#endif
