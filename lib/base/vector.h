/*
 * Loops that the compiler vectorises, for every x86-64 CPU in one binary.
 *
 *     FM_CLONES(float, scale, (float *x, float by, int n), (x, by, n))
 *     {
 *         ... the body of a static function scale(x, by, n) ...
 *     }
 *
 * compiles the body for AVX-512, AVX2 and the baseline, and each call of scale() runs the version
 * for the level that fm_isa() returns (isa.h).  All three give bit-identical results: the compiler
 * neither contracts a * b + c into one operation nor changes the order of sums
 * (tests/unit/test_kernels_cpu.c). fm_expf is e^x for such loops, because libm's is not inlined.
 */
#ifndef FM_VECTOR_H
#define FM_VECTOR_H

#include <stdint.h>
#include <string.h>

#include "lib/base/isa.h"

#define FM_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define FM_CLONES(type, name, parameters, arguments)                                               \
    FM_INLINE type name##_body parameters;                                                         \
    __attribute__((target("avx512f"))) static type name##_avx512 parameters                        \
    {                                                                                              \
        return name##_body arguments;                                                              \
    }                                                                                              \
    __attribute__((target("avx2"))) static type name##_avx2 parameters                             \
    {                                                                                              \
        return name##_body arguments;                                                              \
    }                                                                                              \
    static type name parameters                                                                    \
    {                                                                                              \
        enum fm_isa isa = fm_isa();                                                                \
        return isa >= FM_ISA_AVX512 ? name##_avx512 arguments                                      \
               : isa == FM_ISA_AVX2 ? name##_avx2 arguments                                        \
                                    : name##_body arguments;                                       \
    }                                                                                              \
    FM_INLINE type name##_body parameters
#else
#define FM_CLONES(type, name, parameters, arguments) static type name parameters
#endif

/* The bits of a float, and the float of these bits. */
FM_INLINE uint32_t fm_bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

FM_INLINE float fm_float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/*
 * e^x within 1.5 units in the last place (checked over all exponents in test_cpu_products.c), or
 * within one denormal step where the result is denormal; Inf above 88.73, 0 below -103.98, NaN
 * stays NaN.  x = n ln 2 + r, |r| <= ln 2 / 2; n ln 2 is split so that its larger part is exact;
 * e^r by the polynomial of Cephes' expf; 2^n is multiplied in two steps, so that denormals are
 * rounded only once.
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
    /* The integer n.  Unsigned: if |x| is huge, t is not a shifted integer and this may wrap. */
    int32_t power = (int32_t)(fm_bits_of(t) - 0x4b400000u), half = power >> 1;
    p = p * fm_float_of((uint32_t)(half + 127) << 23) *
        fm_float_of((uint32_t)(power - half + 127) << 23);
    p = x > 88.73f ? __builtin_inff()
                   : p; /* must be last: earlier in the function, compilers turn it into branches */
    return x < -104.0f ? 0.0f : p;
}

#endif
