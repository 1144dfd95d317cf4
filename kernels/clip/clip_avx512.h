/* Private to kernels/clip: what the two AVX-512 tiles and clip_few.c share. */
#ifndef FM_KERNELS_CLIP_AVX512_H
#define FM_KERNELS_CLIP_AVX512_H

#include <immintrin.h>

#include "kernels/clip/clip_tile.h"

#define FM_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c")))
#define FM_AVX512_INLINE FM_AVX512 static inline __attribute__((always_inline))

/* 16 elements as float; only the lower n if n < 16, the rest zero and not read. */
FM_AVX512_INLINE __m512 fm_clip_load(const void *src, int n, int type)
{
    __mmask16 mask = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
    if (type == FM_CLIP_F32)
        return _mm512_maskz_loadu_ps(mask, src);
    __m256i half = _mm256_maskz_loadu_epi16(mask, src);
    if (type == FM_CLIP_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Transpose a 16 x 16 matrix, a row in each vector, in place. */
FM_AVX512_INLINE void fm_clip_transpose(__m512 v[16])
{
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            v[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            v[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        v[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    }
}

/* Set the sums of a tile, rows x 64 lanes, to 0. */
FM_AVX512_INLINE void fm_clip_sums_clear(__m512 sum[][4], const int rows)
{
    FM_CLIP_UNROLL(6)
    for (int r = 0; r < rows; r++) {
        FM_CLIP_UNROLL(4)
        for (int i = 0; i < 4; i++)
            sum[r][i] = _mm512_setzero_ps();
    }
}

/* Store the sums in c if `first`, else add them to it. */
FM_AVX512_INLINE void fm_clip_sums_store(float *c, int ldc, __m512 sum[][4], const int rows,
                                         bool first)
{
    FM_CLIP_UNROLL(6)
    for (int r = 0; r < rows; r++) {
        FM_CLIP_UNROLL(4)
        for (int i = 0; i < 4; i++) {
            float *to = c + (size_t)r * ldc + 16 * i;
            _mm512_storeu_ps(to, first ? sum[r][i] : _mm512_add_ps(_mm512_loadu_ps(to), sum[r][i]));
        }
    }
}

/* kernels/clip/clip_few.c; see struct fm_clip_tile. */
void fm_clip_few_rows(float *c, int ldc, const void *const *x, int rows, const void *src,
                      int64_t ld, int lanes, int terms, int type);
void fm_clip_few_columns(float *c, int ldc, const void *const *x, int rows, const void *src,
                         int64_t ld, int lanes, int terms, int type);

#endif
