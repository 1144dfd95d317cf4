/*
 * Loops that the compiler makes vectors of, for every x86-64 in one binary: FM_CLONES compiles a
 * function for AVX-512, AVX2 and the baseline, and the loader picks.  fm_expf is such a loop's e^x,
 * since libm's is not inlined.
 */
#ifndef FM_VECTOR_H
#define FM_VECTOR_H

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
/*
 * e^x within 1.5 units in the last place (checked over all exponents in test_cpu_products.c), where
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

#endif
