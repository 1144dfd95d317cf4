/*
 * Records of one size: as many as a limit allows are in memory, and the others are in an unlinked
 * temporary file.  Callers get a pointer in both cases.
 */
#ifndef FM_STORE_H
#define FM_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"
#include "lib/base/err.h"

struct fm_store {
    size_t record;   /* bytes of a record, a multiple of FM_ALIGN */
    size_t count;    /* records */
    size_t resident; /* records [0, resident) are in memory */
    const struct fm_ops *ops;
    char *block;
    int fd; /* file of the other records, or -1 */
};

/* `count` records of at least `record_bytes`, at most `memory` bytes of them in memory;
 * contents are undefined until put.  Borrows ops.  FM_ENOMEM, FM_EIO. */
int fm_store_init(struct fm_store *s, const struct fm_ops *ops, size_t record_bytes, size_t count,
                  uint64_t memory, struct fm_err *err);
void fm_store_release(struct fm_store *s); /* a zeroed struct is fine */

/* The memory to which record i is written: its own place, or `spare` (record bytes, owned by the
 * caller). */
void *fm_store_place(const struct fm_store *s, size_t i, void *spare);

/* Set *data to bytes [offset, offset + size) of record i as they were put: in place, or read into
 * `spare` (size bytes). */
int fm_store_get(const struct fm_store *s, size_t i, size_t offset, size_t size, void **data,
                 void *spare, struct fm_err *err);

/* Store bytes [offset, offset + size) of record i from `data`, which may be the record's own place.
 * Threads may use different records, and different parts of one, at the same time. */
int fm_store_put(const struct fm_store *s, size_t i, size_t offset, size_t size, const void *data,
                 struct fm_err *err);

#endif
