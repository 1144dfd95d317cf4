/* bfloat16 products with the CPU's bfloat16 instruction: two terms at a time, sums in float. */
#include "kernels/clip/clip_tile.h"

#if defined(__x86_64__) && defined(__GNUC__) && (__GNUC__ >= 10 || defined(__clang__))
#include <string.h>

#include "kernels/clip/clip_avx512.h"
#include "lib/base/isa.h"

#define BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,f16c")))
#define INLINE BF16 static inline __attribute__((always_inline))

/* 32 elements; only the lower n if n < 32, the rest zero and not read. */
INLINE __m512i load(const void *src, int n)
{
    return _mm512_maskz_loadu_epi16(n >= 32 ? 0xffffffffu : (1u << n) - 1, src);
}

BF16 static void pack_rows(void *panel, const void *src, int64_t ld, int lanes, int terms, int type)
{
    (void)type;
    for (int l = 0; l < FM_CLIP_LANES; l += 16)
        for (int k = 0; k < terms; k += 32) {
            __m512 v[16];
            FM_CLIP_UNROLL(16)
            for (int i = 0; i < 16; i++) {
                _mm_prefetch((const char *)src + (l + 16 + i) * ld + 2 * k, _MM_HINT_T0);
                v[i] = l + i < lanes ? _mm512_castsi512_ps(load(
                                           (const char *)src + (l + i) * ld + 2 * k, terms - k))
                                     : _mm512_setzero_ps();
            }
            fm_clip_transpose(v);
            FM_CLIP_UNROLL(16)
            for (int i = 0; i < 16; i++)
                _mm512_store_ps((float *)panel + (size_t)(k / 2 + i) * FM_CLIP_LANES + l, v[i]);
        }
}

/* Merge rows k and k + 1 into one row of pairs. */
BF16 static void pack_columns(void *panel, const void *src, int64_t ld, int lanes, int terms,
                              int type)
{
    __m512i low, high; /* indices that interleave elements 0 .. 15, or 16 .. 31, of two rows */
    int16_t index[2][32];
    (void)type;
    for (int i = 0; i < 32; i++)
        for (int j = 0; j < 2; j++)
            index[j][i] = (int16_t)(16 * j + i / 2 + (i % 2 ? 32 : 0));
    low = _mm512_loadu_si512(index[0]);
    high = _mm512_loadu_si512(index[1]);
    for (int k = 0; k < terms; k += 2)
        for (int l = 0; l < FM_CLIP_LANES; l += 32) {
            const char *from = (const char *)src + k * ld + 2 * l;
            int n = lanes - l > 0 ? lanes - l : 0;
            _mm_prefetch(from + 12 * ld, _MM_HINT_T0);
            _mm_prefetch(from + 13 * ld, _MM_HINT_T0);
            __m512i a = load(from, n), b = load(from + (k + 1 < terms ? ld : 0), n);
            b = k + 1 < terms ? b : _mm512_setzero_si512();
            char *to = (char *)panel + ((size_t)k / 2 * FM_CLIP_LANES + (size_t)l) * 4;
            _mm512_store_si512(to, _mm512_permutex2var_epi16(a, low, b));
            _mm512_store_si512(to + 64, _mm512_permutex2var_epi16(a, high, b));
        }
}

INLINE void product_of(const int rows, float *c, int ldc, const void *const *x, const float *panel,
                       int pairs, bool first, const struct fm_clip_ahead *ahead)
{
    __m512 sum[FM_CLIP_TILE_ROWS][4];
    fm_clip_sums_clear(sum, rows);
    for (int k = 0; k < pairs; k++) {
        __m512bh b[4];
        for (int j = 2 * k; j < 2 * k + 2; j++)
            _mm_prefetch(ahead->at + (j & ahead->mask) * ahead->ld + ((j >> ahead->shift) << 6),
                         _MM_HINT_T1);
        FM_CLIP_UNROLL(4)
        for (int i = 0; i < 4; i++)
            b[i] = (__m512bh)_mm512_load_ps(panel + (size_t)k * FM_CLIP_LANES + 16 * i);
        FM_CLIP_UNROLL(6)
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, (const char *)x[r] + 4 * (size_t)k, sizeof pair);
            __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
            FM_CLIP_UNROLL(4)
            for (int i = 0; i < 4; i++)
                sum[r][i] = _mm512_dpbf16_ps(sum[r][i], a, b[i]);
        }
    }
    fm_clip_sums_store(c, ldc, sum, rows, first);
}

BF16 static void product(float *c, int ldc, const void *const *x, int rows, const void *panel,
                         int terms, bool first, const struct fm_clip_ahead *ahead)
{
    int pairs = (terms + 1) / 2;
    FM_CLIP_OF_ROWS(product_of, rows, c, ldc, x, panel, pairs, first, ahead);
}

const struct fm_clip_tile *fm_clip_tile_bf16(void)
{
    static const struct fm_clip_tile tile = {"avx512-bf16", true, pack_rows, pack_columns,
                                             product,       NULL, NULL};
    return fm_isa_avx512_bf16() ? &tile : NULL;
}

#else
const struct fm_clip_tile *fm_clip_tile_bf16(void)
{
    return NULL;
}
#endif
