/*
 * Raw bytes of a file -> float32 in the online layout: rows interleaved, matrices
 * transposed, channels permuted, all in one pass.  One caller per piece; pieces are made by
 * many threads at once.
 */
#ifndef FM_CONVERT_H
#define FM_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/* dst (n rows, H), rows `stride` floats apart, from src (rows, H): row j is src's order[j], or j
 * where order is NULL. */
void fm_convert_rows(float *dst, size_t stride, const void *src, enum fm_dtype dtype, int n, int H,
                     const int32_t *order);

/* dst (I, H) from src (H, I): dst's row j is src's column order[j], or j. */
void fm_convert_transposed(float *dst, const void *src, enum fm_dtype dtype, int H, int I,
                           const int32_t *order);

#endif
