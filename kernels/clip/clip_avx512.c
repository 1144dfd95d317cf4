/*
 * The AVX-512 tile: all 64 lanes of a panel in four registers against up to 6 rows, whose sums take
 * 24 of the 32 registers.  While a panel is in use, the weights of the next one are prefetched into
 * the L2 cache, one line per term, because a product of few rows is limited by memory bandwidth.
 */
#include "kernels/clip/clip_tile.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include "kernels/clip/clip_avx512.h"
#include "lib/base/isa.h"

#define AVX512 FM_AVX512
#define INLINE FM_AVX512_INLINE

INLINE void pack_rows_of(const int type, float *panel, const char *src, int64_t ld, int lanes,
                         int terms)
{
    const int64_t size = type == FM_CLIP_F32 ? 4 : 2;
    for (int l = 0; l < FM_CLIP_LANES; l += 16)
        for (int k = 0; k < terms; k += 16) {
            __m512 v[16];
            int n = terms - k;
            FM_CLIP_UNROLL(16)
            for (int i = 0; i < 16; i++) {
                _mm_prefetch(src + (l + 16 + i) * ld + k * size, _MM_HINT_T0);
                v[i] = l + i < lanes ? fm_clip_load(src + (l + i) * ld + k * size, n, type)
                                     : _mm512_setzero_ps();
            }
            fm_clip_transpose(v);
            FM_CLIP_UNROLL(16)
            for (int i = 0; i < 16; i++)
                _mm512_store_ps(panel + (size_t)(k + i) * FM_CLIP_LANES + l, v[i]);
        }
}

AVX512 static void pack_rows(void *panel, const void *src, int64_t ld, int lanes, int terms,
                             int type)
{
    FM_CLIP_OF_TYPE(pack_rows_of, type, panel, src, ld, lanes, terms);
}

INLINE void pack_columns_of(const int type, float *panel, const char *src, int64_t ld, int lanes,
                            int terms)
{
    const int64_t size = type == FM_CLIP_F32 ? 4 : 2;
    for (int k = 0; k < terms; k++) {
        FM_CLIP_UNROLL(4)
        for (int l = 0; l < FM_CLIP_LANES; l += 16) {
            _mm_prefetch(src + (k + 12) * ld + l * size, _MM_HINT_T0);
            _mm512_store_ps(panel + (size_t)k * FM_CLIP_LANES + l,
                            l < lanes ? fm_clip_load(src + k * ld + l * size, lanes - l, type)
                                      : _mm512_setzero_ps());
        }
    }
}

AVX512 static void pack_columns(void *panel, const void *src, int64_t ld, int lanes, int terms,
                                int type)
{
    FM_CLIP_OF_TYPE(pack_columns_of, type, panel, src, ld, lanes, terms);
}

INLINE void product_of(const int rows, float *c, int ldc, const float *const *x, const float *panel,
                       int terms, bool first, const struct fm_clip_ahead *ahead)
{
    __m512 sum[FM_CLIP_TILE_ROWS][4];
    const char *at = ahead->at;
    const int64_t ld = ahead->ld;
    const int mask = ahead->mask, shift = ahead->shift;
    fm_clip_sums_clear(sum, rows);
    for (int k = 0; k < terms; k++) {
        __m512 b[4];
        _mm_prefetch(at + (k & mask) * ld + ((k >> shift) << 6), _MM_HINT_T1);
        FM_CLIP_UNROLL(4)
        for (int i = 0; i < 4; i++)
            b[i] = _mm512_load_ps(panel + (size_t)k * FM_CLIP_LANES + 16 * i);
        FM_CLIP_UNROLL(6)
        for (int r = 0; r < rows; r++) {
            __m512 a = _mm512_set1_ps(x[r][k]);
            FM_CLIP_UNROLL(4)
            for (int i = 0; i < 4; i++)
                sum[r][i] = _mm512_fmadd_ps(a, b[i], sum[r][i]);
        }
    }
    fm_clip_sums_store(c, ldc, sum, rows, first);
}

AVX512 static void product(float *c, int ldc, const void *const *rows_of_x, int rows,
                           const void *panel, int terms, bool first,
                           const struct fm_clip_ahead *ahead)
{
    const float *const *x = (const float *const *)rows_of_x;
    FM_CLIP_OF_ROWS(product_of, rows, c, ldc, x, panel, terms, first, ahead);
}

const struct fm_clip_tile *fm_clip_tile_avx512(void)
{
    static const struct fm_clip_tile tile = {
        "avx512", false, pack_rows, pack_columns, product, fm_clip_few_rows, fm_clip_few_columns};
    return fm_isa() >= FM_ISA_AVX512 ? &tile : NULL;
}

#else
const struct fm_clip_tile *fm_clip_tile_avx512(void)
{
    return NULL;
}
#endif
