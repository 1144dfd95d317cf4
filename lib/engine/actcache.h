/*
 * Inner values of layers, kept from the forward to the backward if memory is left, so that they
 * need not be computed again.  There is one record, always of the same size, for each combination
 * of a block of micro-batches, a lane with a gradient and a layer.  If not all fit, the last layers
 * get them, because the backward starts with these.  lib/engine/sweeping.h declares the functions
 * that find them.
 */
#ifndef FM_ACTCACHE_H
#define FM_ACTCACHE_H

#include "kernels/ops/kernels.h"

struct fm_actcache {
    size_t record; /* bytes of a record, a multiple of FM_ALIGN */
    size_t count;  /* records that this run may use */
    size_t held;   /* records that fit into block */
    char *block;
    int32_t *first; /* (held, E P + 1), P micro-batches in a block: first row of each expert and
                       micro-batch */
    size_t firsts;  /* entries per record */
};

void fm_actcache_release(struct fm_actcache *cache); /* zeroed struct is fine */

#endif
