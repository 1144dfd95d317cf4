/*
 * Reading a tensor of a source, or one expert's share of a tensor that holds all experts, with the
 * scales of its codes; and digests of what is read, one for each decoder layer and one for the
 * rest. Loading a layer and packing it read the same tensors.
 *
 * A stage uses the digests to recognise the checkpoint that the previous stage read, and to
 * distinguish a fine-tune from the original: both have the same names, shapes, config.json and file
 * sizes.  All weights are read anyway, so they are hashed while they are read.
 *
 * Sums are exclusive ors, so that digests can be added in any order and by many threads.  A
 * tensor's sum is over its pieces, each hashed with its index; a layer's sum is over its tensors,
 * each hashed with its name, dtype and shape.  Tensors that the model does not use are not
 * included.
 */
#ifndef FM_READING_H
#define FM_READING_H

#include <pthread.h>

#include "formats/file/digest.h"
#include "lib/model/stored.h"

/* Bytes of a piece; the last one of a tensor may be shorter.  If a tensor of a checkpoint holds all
 * experts of a layer, a piece is one expert's share. */
#define FM_READING_PIECE ((size_t)4 << 20)

/* Sums of a model: layer l < L at [l], the rest at [L]. */
struct fm_reading_sums {
    int L;
    struct fm_digest sum[FM_LAYERS_MAX + 1];
};

/* The digest of a tensor from the sum of its pieces. */
struct fm_digest fm_reading_digest(const struct fm_tensor *t, const struct fm_digest *pieces);

/* Add a digest to a sum, which begins with zeros. */
void fm_reading_add(struct fm_digest *sum, const struct fm_digest *digest);

/* FM_ECONFIG, naming the layer, if `sum` at place l of [0, L] differs from `wanted`. */
int fm_reading_check(const struct fm_reading_sums *wanted, int l, const struct fm_digest *sum,
                     struct fm_err *err);

struct fm_reading {
    const struct fm_stored *at;
    int e, E;                 /* share e of E, or piece e; e -1: the whole tensor */
    pthread_mutex_t *lock;    /* guards the sums */
    struct fm_digest *sum;    /* of the layer; NULL: digests are not computed */
    struct fm_digest *pieces; /* (FM_READING_SUMS) of shares: codes or values, scales, factors */
};
#define FM_READING_SUMS (FM_PLANES + 1)

/* Read `size` bytes, from `offset` on, of a plane: codes or values (0) or scales (1).  They are the
 * whole tensor or the share. */
int fm_reading_bytes(void *dst, const struct fm_reading *r, int plane, uint64_t offset, size_t size,
                     struct fm_err *err);

/* The size of the share, or of the whole tensor; read it; and read scales into scratch. */
size_t fm_reading_size(const struct fm_reading *r, int plane);
int fm_reading_share(void *dst, const struct fm_reading *r, int plane, struct fm_err *err);
int fm_reading_scales(const void **bytes, const struct fm_reading *r, struct fm_err *err);

/* After all shares of a plane or of the factors (FM_PLANES) have been read, add their digests to
 * the sum of the layer. */
void fm_reading_join(const struct fm_reading *r, int plane);

/* Read the factor of the scales, 1 by default.  `summed`: its digest and that of zero points are
 * added to the sum. */
int fm_reading_factor(float *factor, const struct fm_reading *r, bool summed, struct fm_err *err);

/* Convert the scales into scratch from their bytes; scales->scale is NULL for values.  FM_EFORMAT
 * as fm_stored_widen. */
int fm_reading_widen(struct fm_scales *scales, const struct fm_reading *r, const void *raw,
                     float factor, struct fm_err *err);

#endif
