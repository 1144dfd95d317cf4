/*
 * Inner values of layers, kept from the forward to the backward where memory is left, so that
 * they need not be computed again.  Records of one size, one for each block of micro-batches, lane
 * with a gradient and layer; where not all fit the last layers have them, whose turn comes first
 * on the way back.  How to find them is in lib/engine/sweeping.h.
 */
#ifndef FM_ACTCACHE_H
#define FM_ACTCACHE_H

#include "kernels/ops/kernels.h"

struct fm_actcache {
    size_t record; /* bytes of one, a multiple of FM_ALIGN */
    size_t count;  /* records that this run may use */
    size_t held;   /* records that fit into block */
    char *block;
    int32_t *first; /* (held, E micro-batches of a block + 1): which expert has which rows */
    size_t firsts;  /* of one record */
};

void fm_actcache_release(struct fm_actcache *cache); /* a zeroed one is fine */

#endif
