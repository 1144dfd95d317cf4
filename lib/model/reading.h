/*
 * Reading a tensor of a source, or one expert's share of a tensor that holds all experts, with the
 * scales of its codes; the digests of what is read are added to the sums of the weights
 * (lib/model/weightsum.h).  Loading a layer and packing it read the same tensors.
 */
#ifndef FM_READING_H
#define FM_READING_H

#include <pthread.h>

#include "lib/model/stored.h"
#include "lib/model/weightsum.h"

struct fm_reading {
    const struct fm_stored *at;
    int e, E;                 /* share e of E; e -1: the whole tensor */
    pthread_mutex_t *lock;    /* guards the sums */
    struct fm_digest *sum;    /* of the layer; NULL: digests are not computed */
    struct fm_digest *pieces; /* (2) of shares: those of codes or values, and those of scales */
};

/* Read `size` bytes, from `offset` on, of a plane: codes or values (0) or scales (1).  They are the
 * whole tensor or the share. */
int fm_reading_bytes(void *dst, const struct fm_reading *r, int plane, uint64_t offset, size_t size,
                     struct fm_err *err);

/* The size of the share, or of the whole tensor; read it; and read it into scratch. */
size_t fm_reading_size(const struct fm_reading *r, int plane);
int fm_reading_share(void *dst, const struct fm_reading *r, int plane, struct fm_err *err);
int fm_reading_plane(const void **bytes, const struct fm_reading *r, int plane, struct fm_err *err);

/* After all shares of a plane have been read, add their digests to the sum of the layer. */
void fm_reading_join(const struct fm_reading *r, int plane);

/* Read the factor of the scales, 1 by default.  `summed`: its digest and that of zero points are
 * added to the sum. */
int fm_reading_factor(float *factor, const struct fm_reading *r, bool summed, struct fm_err *err);

/* Convert the scales into scratch from their bytes; scales->scale is NULL for values.  FM_EFORMAT
 * as fm_stored_widen. */
int fm_reading_widen(struct fm_scales *scales, const struct fm_reading *r, const void *raw,
                     float factor, struct fm_err *err);

#endif
