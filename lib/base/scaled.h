/*
 * Quantised matrices: numbers stored in few bits, with a scale for each block of the matrix.  The
 * value of an element is the number that its code stands for, times the scale of its block: one
 * float32 product, rounded to nearest.
 */
#ifndef FM_BASE_SCALED_H
#define FM_BASE_SCALED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/*
 * Kinds of codes.  A byte holds two codes of four bits, the first in its low half; so a
 * little-endian word of 32 bits holds eight codes in order, from its lowest bits up.
 *     E4M3  lib/base/dtype.h's F8_E4M3
 *     E2M1  the low three bits select 0 .5 1 1.5 2 3 4 6, the fourth is the sign (OCP microscaling
 *           formats, FP4)
 *     INT4  an integer from -8 to 7, stored with an offset of 8
 */
enum fm_codes { FM_CODE_E4M3, FM_CODE_E2M1, FM_CODE_INT4 };

/* Bits of one code: 4 or 8. */
int fm_code_bits(enum fm_codes code);

/* The byte whose codes all stand for the number 0. */
static inline int fm_code_zero(enum fm_codes code)
{
    return code == FM_CODE_INT4 ? 0x88 : 0;
}

/* Up to this scale, every value is a finite bfloat16. */
float fm_code_scale_max(enum fm_codes code);

/* The blocks of a matrix of `columns` columns, counted from its first row and column, or in each
 * chunk of rows from its first row; blocks at the far edges may be partial.  With four-bit codes,
 * columns and first are even. */
struct fm_scales {
    const float *scale; /* row-major, ceil(columns / block_columns) for each row of blocks */
    size_t count;       /* number of scales */
    const float *zero;  /* (count) subtracted from the number of a code; NULL: 0 */
    int64_t columns, block_rows, block_columns;
    int64_t chunk_rows; /* rows of a chunk; 0: the matrix is one chunk */
    int64_t first;      /* element of the matrix where the codes begin */
    enum fm_codes code;
    bool rounded; /* round values to bfloat16, as bundles and exports store them */
};

/* Decode elements [at, at + n) of codes, an array that begins with element scales->first. */
void fm_scaled_to_f32(float *dst, const void *codes, const struct fm_scales *scales, size_t at,
                      size_t n);

#endif
