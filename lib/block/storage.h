/*
 * How the weights of a checkpoint lie on disk where they are not plain numbers.  A storage is one
 * file, as any block is, and one row of the list in lib/family/parse.c: what it reads of
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

/* A matrix of codes and a matrix of scales, one for each block of rows and columns. */
struct fm_storage {
    const char *method; /* quant_method of quantization_config */
    /* Read and check quantization_config; sets block_rows and block_columns. */
    int (*read)(struct fm_config *config, const cJSON *quantization, struct fm_err *err);
    enum fm_dtype codes;      /* what tells its tensors from plain ones */
    enum fm_dtype written;    /* of their values in bundles and exports, rounded once */
    const char *scale;        /* what the scales' name has behind the weight's */
    const char *scale_dtypes; /* "F32, BF16": for messages */
    bool (*has_scales)(enum fm_dtype dtype);
    /* n scales as floats; returns the first that cannot be one, or n. */
    size_t (*widen)(float *scale, const void *raw, enum fm_dtype dtype, size_t n);
    const char *scale_range; /* "more than 0 and ...": which can be */
};

/* Times that what is written can be larger than what is stored. */
static inline uint64_t fm_storage_growth(const struct fm_storage *storage)
{
    return (uint64_t)(fm_dtype_bits(storage->written) / fm_dtype_bits(storage->codes));
}

/* FP8 with a scale for each block, as DeepSeek-V3 came with it. */
extern const struct fm_storage fm_fp8;

#endif
