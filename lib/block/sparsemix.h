/*
 * Router block "sparsemixer", PhiMoE's: two experts, each the largest of those left, weighted by a
 * softmax over those that come near it.
 */
#ifndef FM_SPARSEMIX_H
#define FM_SPARSEMIX_H

#include "lib/block/router.h"

/* What config.json says of it. */
struct fm_sparsemix {
    float threshold; /* 2 router_jitter_noise */
};

extern const struct fm_router fm_sparsemix;

#endif
