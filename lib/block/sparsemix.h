/*
 * Router block "sparsemixer", of PhiMoE: two experts, each with the largest logit of those left,
 * weighted by its share in a softmax over those whose logits are close to that largest one.
 */
#ifndef FM_SPARSEMIX_H
#define FM_SPARSEMIX_H

#include "lib/block/router.h"

/* Values read from config.json. */
struct fm_sparsemix {
    float threshold; /* 2 router_jitter_noise */
};

extern const struct fm_router fm_sparsemix;

#endif
