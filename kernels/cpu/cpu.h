/*
 * This room, kernels/cpu: fast versions of the operations of kernels/ops, with products by oneDNN
 * or AMX, and loops over rows on all cores.  Most files are named after the reference
 * implementation that they must agree with; tests/unit/test_kernels_cpu.c compares the two.  The
 * rest of the suite gets the table through kernels/ops/kernels.h.  In reading order: cpu.c (the
 * table), cpu_rows, cpu_norm, dnnl, cpu_masked, cpu_amx, cpu_gemm with cpu_amx_gemm, cpu_attention,
 * cpu_delta, cpu_route, cpu_expert, cpu_gated, cpu_bias, cpu_scores with cpu_tile, cpu_bf16_scores
 * and cpu_amx_scores, cpu_sums, cpu_vocab, cpu_optim, cpu_solve, cpu_families, cpu_memory.
 *
 * Private to kernels/cpu: shared code of the fast loops.  One binary runs on every x86-64: hot
 * loops are compiled for AVX-512, AVX2 and the baseline (vector.h), which give bit-identical
 * results.  The last bits of products depend on the level of lib/base/isa.h and on the sizes of
 * caches, so results are only reproducible on one type of machine.
 *
 * Sums are computed in FM_LANES float lanes, in a fixed order, and the lanes are added in double,
 * so that compilers may use vectors of any width and still give the same bytes.
 */
#ifndef FM_KERNELS_CPU_H
#define FM_KERNELS_CPU_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"
#include "lib/base/vector.h"

#define FM_LANES 32

/* A product of float32 or of bfloat16 operands.  These two run on the calling thread. */
typedef void fm_product(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
                        struct fm_in B, int ldb, float beta, float *C, int ldc);
fm_product fm_cpu_f32_product, fm_cpu_bf16_product;

/* The n elements of x as `dtype`: x itself, or converted in scratch. */
struct fm_in fm_cpu_as(struct fm_in x, enum fm_dtype dtype, size_t n);

/* Call run(args, first, last) for blocks of rows that cover [0, n), in parallel; `work` is the
 * number of elements that one row touches and sets the size of a block. */
void fm_cpu_rows(int64_t n, int64_t work,
                 void (*run)(const void *args, int64_t first, int64_t last), const void *args);

/* Length of equal parts of n, at most `most`, a multiple of `step`. */
static inline int fm_cpu_cut(int n, int most, int step)
{
    int parts = (n + most - 1) / most, length = (n + parts - 1) / parts;
    return (length + step - 1) / step * step;
}

/* Add the lanes of a sum, in order. */
FM_INLINE double fm_add_lanes(const float *lane)
{
    double sum = 0;
    for (int l = 0; l < FM_LANES; l++)
        sum += lane[l];
    return sum;
}

/* sum of a[i] b[i], i < n. */
FM_INLINE double fm_dot(const float *a, const float *b, int n)
{
    float lane[FM_LANES] = {0};
    int i = 0;
    for (; i + FM_LANES <= n; i += FM_LANES)
        for (int l = 0; l < FM_LANES; l++)
            lane[l] += a[i + l] * b[i + l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += a[i] * b[i];
    return fm_add_lanes(lane);
}

FM_INLINE double fm_sum(const float *a, int n)
{
    float lane[FM_LANES] = {0};
    int i = 0;
    for (; i + FM_LANES <= n; i += FM_LANES)
        for (int l = 0; l < FM_LANES; l++)
            lane[l] += a[i + l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += a[i];
    return fm_add_lanes(lane);
}

/* The largest of a[0..n), n > 0; NaNs are ignored, except in a[0]. */
FM_INLINE float fm_max(const float *a, int n)
{
    float lane[FM_LANES], max;
    for (int l = 0; l < FM_LANES; l++)
        lane[l] = a[0];
    int i = 0;
    for (; i + FM_LANES <= n; i += FM_LANES)
        for (int l = 0; l < FM_LANES; l++)
            lane[l] = a[i + l] > lane[l] ? a[i + l] : lane[l];
    for (int l = 0; i < n; i++, l++)
        lane[l] = a[i] > lane[l] ? a[i] : lane[l];
    max = lane[0];
    for (int l = 1; l < FM_LANES; l++)
        max = lane[l] > max ? lane[l] : max;
    return max;
}

#endif
