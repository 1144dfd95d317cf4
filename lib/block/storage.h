/*
 * How the weights of a checkpoint lie on disk where they are not plain numbers.  A storage is one
 * file in lib/block/storage and one row of the list below: what it reads of
 * quantization_config, which kind of codes it has, and how its tensors are named.
 * lib/model/stored.h finds the tensors that belong together.  Bundles can keep codes
 * (lib/model/packed.h).
 */
#ifndef FM_STORAGE_H
#define FM_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/base/scaled.h"
#include "lib/block/keys.h"

struct fm_config;

/*
 * What a quantised matrix W (N rows, K columns) consists of: a plane is a matrix of elements, one
 * for each block of block_rows x block_columns values, (ceil(N / block_rows), ceil(K /
 * block_columns)).  Plane 0 is the codes, one for each value.  A number of which a matrix has one,
 * like a scale of all its values, is no plane.
 *
 * Channels of an expert are rows of gate and up and columns of down.
 */
struct fm_plane {
    const char *suffix; /* after a tensor's name in a bundle: "", "_scale" */
    int bits;           /* of an element; 0: what the dtype of the checkpoint's tensor has */
    int whole;          /* a row of elements is a multiple of these: what fills bytes or words */
    int block_rows, block_columns; /* 0: all of the matrix */
};
#define FM_PLANES 2

/* Rows or columns of a block, at the most. */
#define FM_STORAGE_BLOCK_MAX (1 << 20)

/*
 * A matrix of codes and the tensors that belong to it.  A value is its code times the scale of its
 * block (lib/base/scaled.h).  Each tensor has the name of the family's table with another end: the
 * one that the weight has there, `weight`, is replaced.
 */
struct fm_storage {
    const char *name;   /* for reports: "fp8" */
    const char *method; /* quant_method of quantization_config */
    /* Read and check quantization_config; sets block_rows and block_columns. */
    int (*read)(struct fm_config *config, const cJSON *quantization, struct fm_err *err);
    enum fm_codes code;
    enum fm_dtype codes; /* dtype of the tensor of codes: with its name what tells it from others */
    enum fm_dtype written; /* of the values in bundles and exports, rounded once */
    bool exact;            /* every value is one of `written` */
    bool whole; /* a row of codes is whole blocks; else blocks are cut at the far edges */
    /* It is of all experts of a layer, (E, rows, columns / block, bytes of a block): columns and
     * rows are those of the weight's own tensor, transposed. */
    bool fused;
    const char *weight;    /* ends of names: the weight's in the family's table, */
    const char *codes_end; /* and what stands there instead */
    const char *scale_end;
    unsigned scale_dtypes; /* bits 1 << dtype: what scales may be; a U8 is an F8_E8M0 */
    bool zeros;            /* a scale may be 0: a block of zeros */
    /* One number more for each matrix, F32, by which scales are multiplied, or divided; the product
     * is rounded to float32 before it is one with a code.  NULL: none. */
    const char *factor_end;
    bool divides;          /* a scale is divided by it */
    const char *shape_end; /* I64 (2), rows and columns of the matrix; NULL: none */
    const char *const
        *carried; /* ends of tensors that are there for servers only, to NULL; or NULL */
};

/* Bits of a value in the tensor of codes. */
static inline int fm_storage_bits(const struct fm_storage *storage)
{
    return fm_code_bits(storage->code);
}

/* Times that what is written can be larger than what is stored. */
static inline uint64_t fm_storage_growth(const struct fm_storage *storage)
{
    return (uint64_t)(fm_dtype_bits(storage->written) / fm_storage_bits(storage));
}

/* The planes of the config's storage. */
void fm_storage_planes(struct fm_plane plane[FM_PLANES], const struct fm_config *config);

/*
 * Channels that leave an expert together where its codes and scales are to stay as they are: the
 * least number that is whole blocks of every plane, of rows and of columns, and whole bytes of
 * codes.  Numbers of channels that it does not divide are no groups.  1 where weights are plain
 * numbers; more than FM_CHANNELS_MAX where no expert has so many.
 */
int fm_storage_group(const struct fm_config *config);

/* The list: a row for each storage, fm_NAME of its file.  fp8 has a scale for each block of a
 * matrix, as DeepSeek-V3 came with it; mxfp4 is of experts, as gpt-oss came with it; compressed and
 * modelopt are the formats of compressed-tensors and of NVIDIA's ModelOpt, of which
 * quantization_config names one: `read` puts its own descriptor into the config. */
/* clang-format off */
#define FM_STORAGE_ROWS(ROW) \
    ROW(fp8)                 \
    ROW(mxfp4)               \
    ROW(compressed)          \
    ROW(modelopt)
/* clang-format on */

#define FM_STORAGE_DECLARE(name) extern const struct fm_storage fm_##name;
FM_STORAGE_ROWS(FM_STORAGE_DECLARE)

#endif
