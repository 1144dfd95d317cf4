/*
 * The AVX2 tile: 16 of a panel's lanes at a time, in two registers, against up to 6 rows.  12 sums,
 * two vectors of the panel and one element of a row take 15 of the 16 registers.  Terms are added
 * in the order that clip_tile.h requires, so the results are bit-identical to those of the AVX-512
 * tile.
 */
#include "kernels/clip/clip_tile.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <string.h>

#include "lib/base/isa.h"

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define INLINE AVX2 static inline __attribute__((always_inline))

/* 8 elements as float; only the lower n if n < 8, the rest zero and not read. */
INLINE __m256 load(const void *src, int n, int type)
{
    char part[32] = {0};
    if (n < 8) {
        memcpy(part, src, (size_t)n * (type == FM_CLIP_F32 ? 4 : 2));
        src = part;
    }
    if (type == FM_CLIP_F32)
        return _mm256_loadu_ps(src);
    __m128i half = _mm_loadu_si128(src);
    if (type == FM_CLIP_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Transpose an 8 x 8 matrix, a row in each vector, in place. */
INLINE void transpose(__m256 v[8])
{
    __m256 t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            __m256d a = _mm256_castps_pd(t[i + j]), b = _mm256_castps_pd(t[i + j + 2]);
            v[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            v[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++)
        v[i] = t[i];
}

INLINE void pack_rows_of(const int type, float *panel, const char *src, int64_t ld, int lanes,
                         int terms)
{
    const int64_t size = type == FM_CLIP_F32 ? 4 : 2;
    for (int l = 0; l < FM_CLIP_LANES; l += 8)
        for (int k = 0; k < terms; k += 8) {
            __m256 v[8];
            FM_CLIP_UNROLL(8)
            for (int i = 0; i < 8; i++)
                v[i] = l + i < lanes ? load(src + (l + i) * ld + k * size, terms - k, type)
                                     : _mm256_setzero_ps();
            transpose(v);
            FM_CLIP_UNROLL(8)
            for (int i = 0; i < 8; i++)
                _mm256_store_ps(panel + (size_t)(k + i) * FM_CLIP_LANES + l, v[i]);
        }
}

AVX2 static void pack_rows(void *panel, const void *src, int64_t ld, int lanes, int terms, int type)
{
    FM_CLIP_OF_TYPE(pack_rows_of, type, panel, src, ld, lanes, terms);
}

AVX2 static void pack_columns(void *panel, const void *src, int64_t ld, int lanes, int terms,
                              int type)
{
    const int64_t size = type == FM_CLIP_F32 ? 4 : 2;
    for (int k = 0; k < terms; k++)
        for (int l = 0; l < FM_CLIP_LANES; l += 8)
            _mm256_store_ps((float *)panel + (size_t)k * FM_CLIP_LANES + l,
                            l < lanes ? load((const char *)src + k * ld + l * size, lanes - l, type)
                                      : _mm256_setzero_ps());
}

/* Compute 16 of the panel's lanes. */
INLINE void product_of(const int rows, float *c, int ldc, const float *const *x, const float *panel,
                       int terms, bool first)
{
    __m256 sum[FM_CLIP_TILE_ROWS][2];
    FM_CLIP_UNROLL(6)
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (int k = 0; k < terms; k++) {
        __m256 b0 = _mm256_load_ps(panel + (size_t)k * FM_CLIP_LANES);
        __m256 b1 = _mm256_load_ps(panel + (size_t)k * FM_CLIP_LANES + 8);
        FM_CLIP_UNROLL(6)
        for (int r = 0; r < rows; r++) {
            __m256 a = _mm256_set1_ps(x[r][k]);
            sum[r][0] = _mm256_fmadd_ps(a, b0, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(a, b1, sum[r][1]);
        }
    }
    FM_CLIP_UNROLL(6)
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2; i++) {
            float *to = c + (size_t)r * ldc + 8 * i;
            _mm256_storeu_ps(to, first ? sum[r][i] : _mm256_add_ps(_mm256_loadu_ps(to), sum[r][i]));
        }
}

AVX2 static void product(float *c, int ldc, const void *const *rows_of_x, int rows,
                         const void *panel, int terms, bool first,
                         const struct fm_clip_ahead *ahead)
{
    const float *const *x = (const float *const *)rows_of_x;
    (void)ahead;
    for (int l = 0; l < FM_CLIP_LANES; l += 16) {
        const float *b = (const float *)panel + l;
        FM_CLIP_OF_ROWS(product_of, rows, c + l, ldc, x, b, terms, first);
    }
}

const struct fm_clip_tile *fm_clip_tile_avx2(void)
{
    static const struct fm_clip_tile tile = {"avx2",  false, pack_rows, pack_columns,
                                             product, NULL,  NULL};
    return fm_isa() >= FM_ISA_AVX2 ? &tile : NULL;
}

#else
const struct fm_clip_tile *fm_clip_tile_avx2(void)
{
    return NULL;
}
#endif
