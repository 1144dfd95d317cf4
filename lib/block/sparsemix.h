/*
 * Router block "sparsemixer", of PhiMoE: two experts are chosen, one after the other, by the
 * largest remaining logit.  The weight of each is its share in a softmax over the remaining
 * logits close to its own.
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
