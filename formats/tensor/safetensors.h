/*
 * This room, formats/tensor: named tensors on disk, in one safetensors file or in a Hugging Face
 * directory of several.  It handles names, dtypes, shapes and offsets, and does not depend on
 * models.  In reading order: safetensors.c (the index of a file), stplan.c (the header of a file to
 * be written), hfindex, hfcache (a directory by its hub name), hfdir (reading a directory), hftext
 * (the text part of a multimodal checkpoint), carry (which other files are carried), hfwriter
 * (planning a directory).
 *
 * safetensors: a reader that makes a sorted index of one file and refuses what the reference
 * refuses and what only lax readers accept; and the header of a file to be written.
 *
 * Refused, with the tensor's name: a header over the limit, unknown or missing or repeated keys,
 * duplicate names, non-integers, offsets that overlap, leave gaps or miss the end, shapes that do
 * not fill their span, names that have control bytes or look like a path.  Memory does not grow
 * with the header: it is read through a window, and the limits below bound the index.
 */
#ifndef FM_SAFETENSORS_H
#define FM_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "formats/file/file.h"
#include "lib/base/err.h"
#include "lib/base/tensor.h"

#define FM_ST_HEADER_BYTES_MAX 100000000u /* the reference's own limit, decimal */
#define FM_ST_TENSORS_MAX 262144
#define FM_ST_TEXT_BYTES_MAX ((size_t)32 << 20)   /* names and metadata of one file */
#define FM_ST_ENTRY_BYTES_MAX ((size_t)256 << 10) /* header text of a tensor or metadata pair */
#define FM_ST_ALIGN 4096 /* data of the files we write starts at a multiple of this */

struct fm_safetensors {
    struct fm_tensor *tensor; /* sorted by name (bytes) */
    size_t count;
    uint64_t header_bytes;     /* 8 + N */
    uint64_t header_digest[2]; /* XXH3-128 of the 8 + N header bytes: high, low word */
    char *names;               /* all names, and the metadata pairs */
    const char **metadata;     /* key, value, key, value, ..., NULL; sorted by key */
    size_t pairs;              /* number of metadata pairs */
};

/* Index the file, or the `size` bytes at `base` inside it (a member of a bundle).  FM_EFORMAT
 * for all faults above; the sentence begins with the file's name. */
int fm_safetensors_open(struct fm_safetensors *st, const struct fm_file *file, uint64_t base,
                        uint64_t size, struct fm_err *err);
void fm_safetensors_close(struct fm_safetensors *st);

/* Find a tensor by exact name, or NULL, by binary search. */
const struct fm_tensor *fm_safetensors_find(const struct fm_safetensors *st, const char *name);
/* Value of a metadata key, or NULL. */
const char *fm_safetensors_metadata(const struct fm_safetensors *st, const char *key);

/* Bytes of the tensor in the file: for nibbles that are presented as bytes, half of its size. */
static inline uint64_t fm_tensor_stored(const struct fm_tensor *t)
{
    return t->form == FM_TENSOR_NIBBLES && fm_dtype_bits(t->dtype) == 8 ? t->size / 2 : t->size;
}

/* Number of elements; shapes were checked at open. */
uint64_t fm_tensor_count(const struct fm_tensor *t);
/* Whether the tensor has that shape. */
bool fm_tensor_shaped(const struct fm_tensor *t, const uint64_t *shape, int dims);
/* Whether two tensors have the same dtype and shape. */
static inline bool fm_tensor_like(const struct fm_tensor *a, const struct fm_tensor *b)
{
    return a->dtype == b->dtype && fm_tensor_shaped(a, b->shape, b->dims);
}
/* Set the size from dtype and shape; false if it is not whole bytes, or does not fit. */
bool fm_tensor_fit(struct fm_tensor *t);
/* "BF16 512 64" */
#define FM_TENSOR_TEXT (32 + 21 * FM_ST_DIMS_MAX)
void fm_tensor_describe(char text[FM_TENSOR_TEXT], const struct fm_tensor *t);

/* Bytes of scratch that fm_tensor_read takes: a matrix that it transposes is read completely. */
static inline uint64_t fm_tensor_scratch(const struct fm_tensor *t)
{
    return t->form == FM_TENSOR_TURNED || t->form == FM_TENSOR_NIBBLES ? fm_tensor_stored(t) : 0;
}

/* Read `size` bytes of the tensor, from byte `at` on, into dst. */
int fm_tensor_read(const struct fm_tensor *t, const struct fm_file *file, uint64_t at, void *dst,
                   size_t size, struct fm_err *err);

/*
 * Plan a file: names, dtypes and shapes in, header and offsets out.  Tensors are laid out in
 * the order of dtype width (widest first), then of name, as the reference writes them, so that
 * each is aligned to its element; the header is padded with spaces so that data starts at a
 * multiple of FM_ST_ALIGN.  Then *header (malloc) holds *header_bytes = 8 + N, and every
 * tensor[i].size and .offset (absolute in the planned file) are set; tensor[] is reordered to
 * file order.  metadata is key, value, ..., NULL, or NULL; {"format":"pt"} is added where it is
 * absent.  FM_ECONFIG: a duplicate name, or more tensors or bytes than a file can have.  Names come
 * from us or from a reader, so only an assert checks their length.
 */
int fm_safetensors_plan(struct fm_tensor *tensor, size_t count, const char *const *metadata,
                        char **header, uint64_t *header_bytes, uint64_t *file_bytes,
                        struct fm_err *err);

#endif
