/*
 * Inner values of layers, kept from the forward to the backward if memory is left, so that they
 * need not be computed again.  Records of one size, one for each block of micro-batches, lane with
 * a gradient and layer; if not all fit, the last layers have them, because these come first in the
 * backward.  lib/engine/sweeping.h has the functions that find them.
 */
#ifndef FM_ACTCACHE_H
#define FM_ACTCACHE_H

#include "kernels/ops/kernels.h"

struct fm_actcache {
    size_t record; /* bytes of one, a multiple of FM_ALIGN */
    size_t count;  /* records that this run may use */
    size_t held;   /* records that fit into block */
    char *block;
    int32_t *first; /* (held, E micro-batches of a block + 1): first row of each expert and
                       micro-batch */
    size_t firsts;  /* entries per record */
};

void fm_actcache_release(struct fm_actcache *cache); /* zeroed struct is fine */

#endif
