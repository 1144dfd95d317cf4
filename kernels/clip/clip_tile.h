/*
 * Private to kernels/clip: the innermost loops of a clipped product, one set per instruction set.
 *
 * A product is rows times columns: rows are tokens, columns ("lanes") are gate/up rows in the first
 * product and hidden elements in the second.  FM_CLIP_LANES columns of FM_CLIP_DEPTH terms are
 * packed into a panel, term after term, and all rows of the task are multiplied by it.
 *
 * Each sum is computed the same way whatever the number of rows, lanes or threads: FM_CLIP_DEPTH
 * terms in order from zero, with fused multiply-add (in the portable tile, multiply and add; in the
 * bfloat16 tile, vdpbf16ps on pairs of terms), and those blocks added in order.  So the bits of a
 * token do not depend on other tokens, and AVX2 and AVX-512 give bit-identical results.
 */
#ifndef FM_KERNELS_CLIP_TILE_H
#define FM_KERNELS_CLIP_TILE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/clip/clip.h"
#include "lib/base/dtype.h"

enum { FM_CLIP_LANES = 64, FM_CLIP_DEPTH = 256, FM_CLIP_TILE_ROWS = 6 };

/* The weights of the next panel: at its term i a product prefetches the cache line that is
 * (i & mask) ld + 64 (i >> shift) bytes after `at`.  A prefetch never faults. */
struct fm_clip_ahead {
    const char *at;
    int64_t ld; /* bytes */
    int mask, shift;
};

/* Terms of a panel are float or, if `pair` is set, pairs of bfloat16; a row of `x` is then
 * bfloat16, padded with a zero to an even number. */
struct fm_clip_tile {
    const char *name;
    bool pair;

    /* panel from `lanes` rows of `terms` elements of `type`, `ld` bytes apart; the other
     * lanes, up to FM_CLIP_LANES, are set to zero. */
    void (*pack_rows)(void *panel, const void *src, int64_t ld, int lanes, int terms, int type);
    /* panel from `terms` rows of `lanes` elements. */
    void (*pack_columns)(void *panel, const void *src, int64_t ld, int lanes, int terms, int type);

    /* c (rows, FM_CLIP_LANES), rows ldc floats apart: the product of rows x[] and the panel, set
     * if `first`, else added.  1 <= rows <= FM_CLIP_TILE_ROWS. */
    void (*product)(float *c, int ldc, const void *const *x, int rows, const void *panel, int terms,
                    bool first, const struct fm_clip_ahead *ahead);

    /* A product without a panel, over all `terms` at once: c (rows, lanes rounded up to a multiple
     * of 16) is set from weights in the layout of pack_rows or pack_columns, for any number of
     * lanes and terms; bit-identical to `product`.  1 <= rows <= FM_CLIP_TILE_ROWS.  NULL: not
     * available. */
    void (*few_rows)(float *c, int ldc, const void *const *x, int rows, const void *src, int64_t ld,
                     int lanes, int terms, int type);
    void (*few_columns)(float *c, int ldc, const void *const *x, int rows, const void *src,
                        int64_t ld, int lanes, int terms, int type);
};

/* FM_CLIP_OF_ROWS and FM_CLIP_OF_TYPE call of() with `rows` or `type` as a constant, so that an
 * inline function is compiled for each value; FM_CLIP_UNROLL(n) before a loop unrolls it n times.
 * Under sanitizers they do neither: with a branch for every check, unrolled loops become functions
 * with so many blocks that clang 14 takes minutes for each. */
#ifdef FM_SANITIZED
#define FM_CLIP_UNROLL(n)
#define FM_CLIP_OF_ROWS(of, rows, ...) of(rows, __VA_ARGS__)
#define FM_CLIP_OF_TYPE(of, type, ...) of(type, __VA_ARGS__)
#else
#define FM_CLIP_PRAGMA(text) _Pragma(#text)
#define FM_CLIP_UNROLL(n) FM_CLIP_PRAGMA(GCC unroll n)
#define FM_CLIP_OF_ROWS(of, rows, ...)                                                             \
    ((rows) == 1   ? of(1, __VA_ARGS__)                                                            \
     : (rows) == 2 ? of(2, __VA_ARGS__)                                                            \
     : (rows) == 3 ? of(3, __VA_ARGS__)                                                            \
     : (rows) == 4 ? of(4, __VA_ARGS__)                                                            \
     : (rows) == 5 ? of(5, __VA_ARGS__)                                                            \
                   : of(FM_CLIP_TILE_ROWS, __VA_ARGS__))
#define FM_CLIP_OF_TYPE(of, type, ...)                                                             \
    ((type) == FM_CLIP_F32   ? of(FM_CLIP_F32, __VA_ARGS__)                                        \
     : (type) == FM_CLIP_F16 ? of(FM_CLIP_F16, __VA_ARGS__)                                        \
                             : of(FM_CLIP_BF16, __VA_ARGS__))
#endif

/* NULL if the compiler, the CPU or FM_ISA excludes it; never for the portable one. */
const struct fm_clip_tile *fm_clip_tile_portable(void);
const struct fm_clip_tile *fm_clip_tile_avx2(void);
const struct fm_clip_tile *fm_clip_tile_avx512(void);
const struct fm_clip_tile *fm_clip_tile_bf16(void);

/* The tile that a path names or, for FM_CLIP_BEST, the fastest one for this type of weights.  NULL
 * if the CPU lacks its instructions, or it does not take this type. */
const struct fm_clip_tile *fm_clip_tile_choose(int32_t path, int32_t type);

/* Convert a floating type of clip.h to enum fm_dtype. */
static inline enum fm_dtype fm_clip_dtype(int32_t type)
{
    return type == FM_CLIP_F32 ? FM_F32 : type == FM_CLIP_F16 ? FM_F16 : FM_BF16;
}

/* Convert n elements, from `first` on, of an array of the layer's type to float. */
static inline void fm_clip_widen(float *to, const void *array, int64_t first, int n,
                                 const struct fm_clip_layer *l)
{
    enum fm_dtype dtype = fm_clip_dtype(l->type);
    fm_dtype_to_f32(to, (const char *)array + first * fm_dtype_bits(dtype) / 8, dtype, (size_t)n);
}

#endif
