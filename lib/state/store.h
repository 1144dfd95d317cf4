/*
 * Records of one size, as many as fit into a limit in memory, the others in an unlinked
 * temporary file.  Which is which does not show: operations get a pointer.
 */
#ifndef FM_STORE_H
#define FM_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"
#include "lib/base/err.h"

struct fm_store {
    size_t record;   /* bytes of one, a multiple of FM_ALIGN */
    size_t count;    /* records */
    size_t resident; /* records [0, resident) are in memory */
    const struct fm_ops *ops;
    char *block;
    int fd; /* the others; -1 where there are none */
};

/* `count` records of at least `record_bytes`, at most `memory` bytes of them in memory;
 * contents are undefined until put.  Borrows ops.  FM_ENOMEM, FM_EIO. */
int fm_store_init(struct fm_store *s, const struct fm_ops *ops, size_t record_bytes, size_t count,
                  uint64_t memory, struct fm_err *err);
void fm_store_release(struct fm_store *s); /* one that init never saw must be zeroed */

/* Where record i is written: in place, or `spare` (record bytes of the caller's). */
void *fm_store_place(const struct fm_store *s, size_t i, void *spare);

/* *data: bytes [offset, offset + size) of record i as they were put, in place, or read into
 * `spare` (size bytes). */
int fm_store_get(const struct fm_store *s, size_t i, size_t offset, size_t size, void **data,
                 void *spare, struct fm_err *err);

/* Those bytes of record i are complete at `data`, in place or not.  Different records, and
 * different parts of one, may be used by several threads at once. */
int fm_store_put(const struct fm_store *s, size_t i, size_t offset, size_t size, const void *data,
                 struct fm_err *err);

#endif
