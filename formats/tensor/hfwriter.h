/*
 * The weight files of a Hugging Face directory: which tensor goes into which file, the
 * files' headers, and the index.
 *
 * As transformers and huggingface_hub write them: tensors in order of name, a new file if the next
 * tensor would exceed the limit, a larger tensor in a separate file; one file is
 * model.safetensors, more are model-00001-of-0000N.safetensors with model.safetensors.index.json,
 * two-space indented, keys sorted.
 */
#ifndef FM_HFWRITER_H
#define FM_HFWRITER_H

#include <stddef.h>
#include <stdint.h>

#include "formats/tensor/safetensors.h"
#include "lib/base/err.h"

#define FM_HFWRITER_INDEX "model.safetensors.index.json"

struct fm_hfwriter_file {
    char name[64];
    char *header; /* 8 + N bytes */
    uint64_t header_bytes, file_bytes;
    size_t first, count; /* its tensors in struct fm_hfwriter, in file order */
};

struct fm_hfwriter {
    struct fm_tensor *tensor; /* offset and size are those in the planned file */
    size_t tensors;
    struct fm_hfwriter_file *file;
    size_t files;
    char *index; /* NULL if there is one file */
    size_t index_bytes;
    uint64_t tensor_bytes, file_bytes; /* sums over all files */
};

/*
 * Plan the files for `count` tensors (name, dtype, shape; copied, names borrowed until release).
 * shard_bytes limits the tensors of a file, without its header.  FM_ENOMEM; FM_ECONFIG for a size
 * that does not fit in 64 bits, or is not whole bytes.
 */
int fm_hfwriter_plan(struct fm_hfwriter *w, const struct fm_tensor *tensor, size_t count,
                     uint64_t shard_bytes, struct fm_err *err);
void fm_hfwriter_release(struct fm_hfwriter *w); /* zeroed struct is fine */

#endif
