/*
 * Router block "sparsemixer", of PhiMoE: two experts, each the largest of those left, weighted by a
 * softmax over those whose logits are close to it.
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
