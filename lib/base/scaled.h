/*
 * Numbers that are stored in few bits, with a scale for each block of a matrix: FP8 checkpoints.
 * The value of an element is what its code says (lib/base/dtype.h) times the scale of its block,
 * one float32 product rounded to nearest.
 */
#ifndef FM_BASE_SCALED_H
#define FM_BASE_SCALED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/* Blocks of a matrix of `columns` columns, from its first row and column; at the far edges they may
 * be cut. */
struct fm_scales {
    const float *scale; /* row-major, ceil(columns / block_columns) a row of blocks */
    size_t count;       /* of them */
    int64_t columns;
    int block_rows, block_columns;
    int64_t first; /* element of the matrix that the codes begin with */
    bool rounded;  /* to bfloat16, once more: the value as bundles and exports hold it */
};

/* Elements [at, at + n) of codes, an array of `dtype` that begins with element scales->first. */
void fm_scaled_to_f32(float *dst, const void *codes, enum fm_dtype dtype,
                      const struct fm_scales *scales, size_t at, size_t n);

#endif
