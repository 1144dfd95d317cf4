/*
 * Inner loops of tiles whose result is used at once, one for each vector instruction set: with as
 * many sums as fit into registers, so that every element of `a` is loaded once for two
 * multiplications.
 */
#include "kernels/cpu/cpu_tile.h"

#include <stddef.h>

#include "lib/base/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* As many sums as registers hold in addition to two vectors of b and one element of a. */
enum { WIDE_ROWS = 14, NARROW_ROWS = 6, NARROW_COLS = 16, STEP = FM_TILE_COLS };

__attribute__((target("avx512f"))) static void run_wide(float *d, const float *a, const float *b,
                                                        int n)
{
    __m512 sum[WIDE_ROWS][2];
#pragma GCC unroll 14
    for (int i = 0; i < WIDE_ROWS; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int k = 0; k < n; k++, a += WIDE_ROWS, b += STEP) {
        __m512 low = _mm512_loadu_ps(b), high = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 14
        for (int i = 0; i < WIDE_ROWS; i++) {
            __m512 x = _mm512_set1_ps(a[i]);
            sum[i][0] = _mm512_fmadd_ps(x, low, sum[i][0]);
            sum[i][1] = _mm512_fmadd_ps(x, high, sum[i][1]);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < WIDE_ROWS; i++) {
        _mm512_storeu_ps(d + i * STEP, sum[i][0]);
        _mm512_storeu_ps(d + i * STEP + 16, sum[i][1]);
    }
}

/* Computes half of the columns. */
__attribute__((target("avx2,fma"))) static void run_half(float *d, const float *a, const float *b,
                                                         int n)
{
    __m256 sum[NARROW_ROWS][2];
#pragma GCC unroll 6
    for (int i = 0; i < NARROW_ROWS; i++)
        sum[i][0] = sum[i][1] = _mm256_setzero_ps();
    for (int k = 0; k < n; k++, a += NARROW_ROWS, b += STEP) {
        __m256 low = _mm256_loadu_ps(b), high = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
        for (int i = 0; i < NARROW_ROWS; i++) {
            __m256 x = _mm256_set1_ps(a[i]);
            sum[i][0] = _mm256_fmadd_ps(x, low, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(x, high, sum[i][1]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < NARROW_ROWS; i++) {
        _mm256_storeu_ps(d + i * STEP, sum[i][0]);
        _mm256_storeu_ps(d + i * STEP + 8, sum[i][1]);
    }
}

static void run_narrow(float *d, const float *a, const float *b, int n)
{
    for (int j = 0; j < STEP; j += NARROW_COLS)
        run_half(d + j, a, b + j, n);
}

const struct fm_cpu_tile *fm_cpu_tile_get(int index)
{
    static const struct fm_cpu_tile wide = {WIDE_ROWS, run_wide};
    static const struct fm_cpu_tile narrow = {NARROW_ROWS, run_narrow};
    if (fm_isa() >= FM_ISA_AVX512 && index-- == 0)
        return &wide;
    if (fm_isa() >= FM_ISA_AVX2 && index-- == 0)
        return &narrow;
    return NULL;
}
#else
const struct fm_cpu_tile *fm_cpu_tile_get(int index)
{
    (void)index;
    return NULL;
}
#endif
