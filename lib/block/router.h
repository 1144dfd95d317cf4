/*
 * What routers share: logits of all experts, by one product.
 */
#ifndef FM_ROUTER_H
#define FM_ROUTER_H

#include "lib/block/pass.h"

/* Their weights in a layer; a router that has more begins its struct like this. */
struct fm_router_weights {
    float *w;    /* (E, H) */
    float *bias; /* (E), of the logits; NULL: none */
};

static inline const struct fm_router_weights *fm_router_weights(const struct fm_layer *layer)
{
    return (const void *)&layer->router;
}

/* logits (N, E) = x w^T + bias, plus the pass's `closed`; dx (N, H) = dlogits w; and their cost for
 * one token. */
void fm_router_logits(const struct fm_pass *pass, float *logits, const float *x);
void fm_router_logits_back(const struct fm_pass *pass, float *dx, const float *dlogits);
double fm_router_logits_flops(const struct fm_config *config);

/* Its name in checkpoints and bundles, and in ragged exports, which follow transformers 5. */
/* clang-format off */
#define FM_ROUTER_WEIGHT(stock, ragged)                                                            \
    {{stock, stock, ragged}, FM_PART_ROUTER,                                                       \
     FM_LAYER_FIELD(router) + offsetof(struct fm_router_weights, w), "EH", FM_MOE}
#define FM_ROUTER_BIAS_WEIGHT(name)                                                                \
    {FM_SAME(name), FM_PART_ROUTER,                                                                \
     FM_LAYER_FIELD(router) + offsetof(struct fm_router_weights, bias), "E", FM_MOE}
/* clang-format on */

#endif
