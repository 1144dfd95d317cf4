/*
 * A small safetensors file made in memory: the typed members of a stream.
 */
#ifndef FM_STBYTES_H
#define FM_STBYTES_H

#include <stddef.h>
#include <stdint.h>

#include "formats/bundle/bundle.h"
#include "formats/tensor/safetensors.h"

#define FM_STBYTES_NAME (FM_ST_NAME_BYTES_MAX + 32)

/* Tensors to be written; their data is borrowed. */
struct fm_stbytes {
    size_t count, capacity;
    struct fm_tensor *tensor;
    char (*name)[FM_STBYTES_NAME];
    const void **data;
};

int fm_stbytes_init(struct fm_stbytes *s, size_t capacity, struct fm_err *err);
void fm_stbytes_release(struct fm_stbytes *s); /* zeroed struct is fine */

/* Add a tensor; `shape` has `dims` numbers, 1 to 3.  Adding more than `capacity` tensors fails an
 * assertion. */
void fm_stbytes_add(struct fm_stbytes *s, enum fm_dtype dtype, int dims, const uint64_t *shape,
                    const void *data, const char *fmt, ...) FM_PRINTF(6, 7);

/* The size of the file. */
int fm_stbytes_size(struct fm_stbytes *s, const char *const *metadata, size_t *size,
                    struct fm_err *err);
/* The file; free() *bytes.  metadata is key, value, ..., NULL. */
int fm_stbytes_pack(struct fm_stbytes *s, const char *const *metadata, void **bytes, size_t *size,
                    struct fm_err *err);

/* A member of a stream, read whole, with its digest checked, and indexed. */
struct fm_stmember {
    struct fm_safetensors st;
    const struct fm_member *member;
    void *bytes;
};

/* FM_EFORMAT if the stream lacks it, or metadata fm.kind is not `kind`. */
int fm_stmember_open(struct fm_stmember *s, const struct fm_bundle *b, const char *name,
                     const char *kind, struct fm_err *err);
void fm_stmember_close(struct fm_stmember *s); /* zeroed struct is fine */

/* The data of a tensor; NULL with FM_EFORMAT if it is missing or has a different dtype or shape. */
const void *fm_stmember_get(const struct fm_stmember *s, enum fm_dtype dtype, int dims,
                            const uint64_t *shape, struct fm_err *err, const char *fmt, ...)
    FM_PRINTF(6, 7);

#endif
