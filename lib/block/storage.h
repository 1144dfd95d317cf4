/*
 * How the weights of a checkpoint lie on disk where they are not plain numbers.  A storage is one
 * file in lib/block/storage and one row of the list below: what it reads of
 * quantization_config, and what values the codes of a tensor have.  lib/model/stored.h finds the
 * tensors that belong together.  Only checkpoints under stock names have one: bundles and what is
 * exported from them hold plain numbers.
 */
#ifndef FM_STORAGE_H
#define FM_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/block/keys.h"

struct fm_config;

/* Values that share a scale where several are in a byte. */
#define FM_STORAGE_BLOCK 32

/*
 * What a quantised matrix W (N rows, K columns) consists of: a plane is a matrix of elements, one
 * for each block of block_rows x block_columns values, (ceil(N / block_rows), ceil(K /
 * block_columns)).  Plane 0 is the codes, one for each value.  A number of which a matrix has one,
 * like a scale of all its values, is no plane.
 *
 * Channels of an expert are rows of gate and up and columns of down.
 */
struct fm_plane {
    const char *suffix; /* behind a tensor's name in a bundle: "", "_scale" */
    int bits;           /* of an element; 0: what the dtype of the checkpoint's tensor has */
    int whole;          /* a row of elements is a multiple of these: what fills bytes or words */
    int block_rows, block_columns; /* 0: all of the matrix */
};
#define FM_PLANES_MAX 2

/*
 * Codes and their scales, in one of two ways:
 *   - a matrix of codes, told by its dtype, and a matrix of scales, one for each block of rows and
 *     columns; a value is the product;
 *   - where `decode` is given, tensors of all experts of a layer alone, told by their name: the
 *     weight's with `blocks` behind it.  They are (E, rows, columns / 32, 16) bytes, columns and
 * rows those of the weight's own tensor, transposed, and their values are exactly bfloat16.
 */
struct fm_storage {
    const char *method; /* quant_method of quantization_config */
    /* Read and check quantization_config; sets block_rows and block_columns. */
    int (*read)(struct fm_config *config, const cJSON *quantization, struct fm_err *err);
    enum fm_dtype codes;      /* what tells its tensors from plain ones */
    enum fm_dtype written;    /* of their values in bundles and exports, rounded once */
    const char *blocks;       /* what the codes' name has behind the weight's; NULL: nothing */
    const char *scale;        /* what the scales' name has behind the weight's */
    const char *scale_dtypes; /* "F32, BF16": for messages */
    bool (*has_scales)(enum fm_dtype dtype);
    /* n scales as floats; returns the first that cannot be one, or n. */
    size_t (*widen)(float *scale, const void *raw, enum fm_dtype dtype, size_t n);
    const char *scale_range; /* "more than 0 and ...": which can be */
    /* Its planes, codes first, by what `read` found; how many. */
    int (*planes)(struct fm_plane plane[FM_PLANES_MAX], const struct fm_config *config);
    /* 32 bfloat16 values of every block, from 16 bytes of codes and one scale; NaN and Inf where
     * the scale makes them so. */
    void (*decode)(uint16_t *values, const unsigned char *codes, const unsigned char *scales,
                   size_t blocks);
};

/* Times that what is written can be larger than what is stored. */
static inline uint64_t fm_storage_growth(const struct fm_storage *storage)
{
    int bits = storage->decode ? 4 : fm_dtype_bits(storage->codes);
    return (uint64_t)(fm_dtype_bits(storage->written) / bits);
}

/*
 * Channels that leave an expert together where its codes and scales are to stay as they are: the
 * least number that is whole blocks of every plane, of rows and of columns, and whole bytes of
 * codes.  Numbers of channels that it does not divide are no groups.  1 where weights are plain
 * numbers; more than FM_CHANNELS_MAX where no expert has so many.
 */
int fm_storage_group(const struct fm_config *config);

/* The list: a row for each storage, fm_NAME of its file.  fp8 has a scale for each block of a
 * matrix, as DeepSeek-V3 came with it; mxfp4 is of experts, as gpt-oss came with it. */
/* clang-format off */
#define FM_STORAGE_ROWS(ROW) \
    ROW(fp8)                 \
    ROW(mxfp4)
/* clang-format on */

#define FM_STORAGE_DECLARE(name) extern const struct fm_storage fm_##name;
FM_STORAGE_ROWS(FM_STORAGE_DECLARE)

#endif
