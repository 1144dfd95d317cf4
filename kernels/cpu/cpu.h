/*
 * Private to kernels/cpu: what the fast loops share.  One binary serves every
 * x86-64: hot loops are compiled for AVX-512, AVX2 and the baseline, and the loader
 * picks.  Another instruction set may give other last bits, which is why the
 * same-bytes promise holds for one machine type.
 *
 * Sums are made in FM_LANES float lanes over a block, in a fixed order, and the
 * lanes are added in double, so that compilers may use vectors of any width and
 * still give the same bytes.
 */
#ifndef FM_KERNELS_CPU_H
#define FM_KERNELS_CPU_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Resolvers run before a sanitizer is ready, so sanitized builds have the baseline alone. */
#if defined(__x86_64__) && defined(__has_attribute) && !defined(__SANITIZE_ADDRESS__) &&           \
    !defined(__SANITIZE_THREAD__)
#if __has_attribute(target_clones)
#define FM_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef FM_CLONES
#define FM_CLONES
#endif

#define FM_INLINE static inline __attribute__((always_inline))
#define FM_LANES 32

/* A product on the calling thread: fm_dnnl_sgemm, or the same with bfloat16 operands. */
typedef void fm_product(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
                        const float *B, int ldb, float beta, float *C, int ldc);
void fm_cpu_bf16_product(bool ta, bool tb, int M, int N, int K, float alpha, const float *A,
                         int lda, const float *B, int ldb, float beta, float *C, int ldc);

/* run(args, first, last) for blocks of rows that cover [0, n), in parallel; `work` is the number
 * of elements that one row touches and sets the size of a block. */
void fm_cpu_rows(int64_t n, int64_t work,
                 void (*run)(const void *args, int64_t first, int64_t last), const void *args);

/*
 * e^x within 1.5 units in the last place (checked over all exponents in test_kernels_cpu.c), where
 * the result is denormal within one denormal step; Inf above 88.73, 0 below -103.98, NaN
 * stays NaN.  x = n ln 2 + r, |r| <= ln 2 / 2; n ln 2 is split so that its larger part is exact;
 * e^r by the polynomial of Cephes' expf; 2^n in two steps, so that denormals come out rounded once.
 */
FM_INLINE float fm_expf(float x)
{
    const float shift = 0x1.8p23f; /* adding it rounds to an integer, kept in the low bits */
    float t = x * 0x1.715476p0f + shift;
    float n = t - shift;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t bits, half;
    memcpy(&bits, &t, sizeof bits);
    bits = bits - 0x4b400000; /* the integer n */
    half = bits >> 1;
    uint32_t first = (uint32_t)(half + 127) << 23, second = (uint32_t)(bits - half + 127) << 23;
    float a, b;
    memcpy(&a, &first, sizeof a);
    memcpy(&b, &second, sizeof b);
    p = p * a * b;
    p = x > 88.73f ? __builtin_inff() : p; /* last: earlier, compilers make branches of it */
    return x < -104.0f ? 0.0f : p;
}

/* The lanes of a sum, added in order. */
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

/* The largest of a[0..n), n > 0; NaN are passed over, except in a[0]. */
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
