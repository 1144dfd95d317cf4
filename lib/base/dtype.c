/*
 * Conversions work on the bits, without tables and without the compiler's half type, so that every
 * compiler gives the same values.  They are plain loops that compilers vectorise; those on the
 * critical path of bfloat16 products use the widest vectors of the CPU (FM_CLONES).  The search for
 * NaN and Inf compares only exponents: the largest exponent in a block shows whether the block
 * contains one, so finite data is scanned at memory bandwidth.
 */
#include "lib/base/dtype.h"

#include <assert.h>
#include <string.h>

#include "lib/base/vector.h"

static const struct {
    const char *name;
    int bits;
} types[FM_DTYPES] = {
    [FM_BOOL] = {"BOOL", 8},
    [FM_F4] = {"F4", 4},
    [FM_F6_E2M3] = {"F6_E2M3", 6},
    [FM_F6_E3M2] = {"F6_E3M2", 6},
    [FM_U8] = {"U8", 8},
    [FM_I8] = {"I8", 8},
    [FM_F8_E5M2] = {"F8_E5M2", 8},
    [FM_F8_E4M3] = {"F8_E4M3", 8},
    [FM_F8_E8M0] = {"F8_E8M0", 8},
    [FM_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [FM_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [FM_I16] = {"I16", 16},
    [FM_U16] = {"U16", 16},
    [FM_F16] = {"F16", 16},
    [FM_BF16] = {"BF16", 16},
    [FM_I32] = {"I32", 32},
    [FM_U32] = {"U32", 32},
    [FM_F32] = {"F32", 32},
    [FM_C64] = {"C64", 64},
    [FM_F64] = {"F64", 64},
    [FM_I64] = {"I64", 64},
    [FM_U64] = {"U64", 64},
};

const char *fm_dtype_name(enum fm_dtype dtype)
{
    return (unsigned)dtype < FM_DTYPES ? types[dtype].name : NULL;
}

const char *fm_dtype_torch(enum fm_dtype dtype)
{
    assert(fm_dtype_is_weight(dtype));
    return dtype == FM_BF16 ? "bfloat16" : dtype == FM_F16 ? "float16" : "float32";
}

int fm_dtype_from_name(const char *name, size_t len)
{
    for (int i = 0; i < FM_DTYPES; i++)
        if (strlen(types[i].name) == len && memcmp(types[i].name, name, len) == 0)
            return i;
    return -1;
}

int fm_dtype_bits(enum fm_dtype dtype)
{
    assert((unsigned)dtype < FM_DTYPES);
    return types[dtype].bits;
}

bool fm_dtype_is_weight(enum fm_dtype dtype)
{
    return dtype == FM_BF16 || dtype == FM_F16 || dtype == FM_F32;
}

/* A subnormal half is its fraction times 2^-24, which a float represents exactly. */
static inline float float_of_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t rest = h & 0x7fffu;
    if (rest >= 0x7c00u) /* Inf, NaN */
        return fm_float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u)
        return fm_float_of(sign | ((rest << 13) + 0x38000000u));
    float tiny = (float)rest * 0x1p-24f;
    return fm_float_of(sign | fm_bits_of(tiny));
}

static inline uint16_t half_of_float(float f)
{
    uint32_t u = fm_bits_of(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    uint32_t a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) /* rounds to 65536 or beyond */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* subnormal: adding 0.5 leaves it in the low bits, rounded */
        float r = fm_float_of(a) + 0.5f;
        return (uint16_t)(sign | (fm_bits_of(r) - 0x3f000000u));
    }
    uint32_t odd = a >> 13 & 1u;
    return (uint16_t)(sign | (a + 0xfffu + odd - 0x38000000u) >> 13);
}

static inline uint16_t bfloat_of_float(float f)
{
    uint32_t u = fm_bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* Codes below 8 are subnormal: code times 2^-9.  Written with masks and a conversion from a signed
 * integer, which every compiler vectorises. */
static inline float float_of_e4m3(uint8_t b)
{
    int32_t rest = b & 0x7f;
    uint32_t sign = (uint32_t)(b & 0x80u) << 24;
    uint32_t tiny = fm_bits_of((float)rest * 0x1p-9f);
    uint32_t normal = ((uint32_t)rest << 20) + ((127u - 7u) << 23);
    uint32_t below = 0u - (uint32_t)(rest < 8);
    uint32_t nan = (0u - (uint32_t)(rest == 0x7f)) & 0x7fc00000u;
    return fm_float_of(sign | nan | (tiny & below) | (normal & ~below));
}

/* Byte 0 is 2^-127, the only value that is subnormal as a float. */
static inline float float_of_e8m0(uint8_t b)
{
    return fm_float_of(b == 0xffu ? 0x7fc00000u : b ? (uint32_t)b << 23 : 0x00400000u);
}

FM_CLONES(void, widen_bfloats, (float *restrict dst, const uint16_t *restrict src, size_t n),
          (dst, src, n))
{
    for (size_t i = 0; i < n; i++)
        dst[i] = fm_float_of((uint32_t)src[i] << 16);
}

FM_CLONES(void, narrow_to_bfloats, (uint16_t *restrict dst, const float *restrict src, size_t n),
          (dst, src, n))
{
    for (size_t i = 0; i < n; i++)
        dst[i] = bfloat_of_float(src[i]);
}

void fm_dtype_to_f32(float *dst, const void *src, enum fm_dtype dtype, size_t n)
{
    const uint16_t *s = src;
    const uint8_t *b = src;
    switch (dtype) {
    case FM_F32:
        memcpy(dst, src, n * sizeof *dst);
        return;
    case FM_BF16:
        widen_bfloats(dst, s, n);
        return;
    case FM_F16:
        for (size_t i = 0; i < n; i++)
            dst[i] = float_of_half(s[i]);
        return;
    case FM_F8_E4M3:
        for (size_t i = 0; i < n; i++)
            dst[i] = float_of_e4m3(b[i]);
        return;
    case FM_F8_E8M0:
        for (size_t i = 0; i < n; i++)
            dst[i] = float_of_e8m0(b[i]);
        return;
    default:
        assert(!"not a weight dtype");
    }
}

void fm_dtype_from_f32(void *dst, const float *src, enum fm_dtype dtype, size_t n)
{
    uint16_t *d = dst;
    switch (dtype) {
    case FM_F32:
        memcpy(dst, src, n * sizeof *src);
        return;
    case FM_BF16:
        narrow_to_bfloats(d, src, n);
        return;
    case FM_F16:
        for (size_t i = 0; i < n; i++)
            d[i] = half_of_float(src[i]);
        return;
    default:
        assert(!"not a weight dtype");
    }
}

void fm_dtype_round(float *x, enum fm_dtype dtype, size_t n)
{
    float stored[256]; /* room for 256 values of any weight dtype */
    for (size_t at = 0; at < n; at += 256) {
        size_t m = n - at < 256 ? n - at : 256;
        fm_dtype_from_f32(stored, x + at, dtype, m);
        fm_dtype_to_f32(x + at, stored, dtype, m);
    }
}

#define FINITE_BLOCK 4096 /* elements between tests of the largest exponent */

/* Return the index of the first NaN among n E4M3 codes, or n if all are finite.  With its sign bit
 * cleared, NaN is the largest code.  E4M3 has no infinity. */
static size_t e4m3_nan(const uint8_t *b, size_t n)
{
    for (size_t at = 0; at < n; at += FINITE_BLOCK) {
        size_t end = n - at < FINITE_BLOCK ? n : at + FINITE_BLOCK;
        uint8_t most = 0;
        for (size_t i = at; i < end; i++) {
            uint8_t rest = b[i] & 0x7fu;
            most = rest > most ? rest : most;
        }
        for (size_t i = at; most == 0x7fu && i < end; i++)
            if ((b[i] & 0x7fu) == 0x7fu)
                return i;
    }
    return n;
}

/* The largest exponent of n floats, or of n 16-bit floats whose exponent is masked by `bits`; the
 * result is not shifted down. */
FM_CLONES(int32_t, largest_exponent, (const uint32_t *w, size_t n), (w, n))
{
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t e = (int32_t)(w[i] & 0x7f800000u);
        most = e > most ? e : most;
    }
    return most;
}

FM_CLONES(int16_t, largest_short_exponent, (const uint16_t *h, uint16_t bits, size_t n),
          (h, bits, n))
{
    int16_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int16_t e = (int16_t)(h[i] & bits);
        most = e > most ? e : most;
    }
    return most;
}

size_t fm_dtype_nonfinite(const void *src, enum fm_dtype dtype, size_t n)
{
    if (dtype == FM_F8_E4M3)
        return e4m3_nan(src, n);
    assert(fm_dtype_is_weight(dtype));
    const uint16_t *h = src;
    const uint32_t *w = src;
    const uint16_t exponent = dtype == FM_BF16 ? 0x7f80u : 0x7c00u;
    for (size_t at = 0; at < n; at += FINITE_BLOCK) {
        size_t end = n - at < FINITE_BLOCK ? n : at + FINITE_BLOCK;
        /* NaN and Inf have the largest possible exponent: all its bits are set. */
        bool bad = dtype == FM_F32
                       ? largest_exponent(w + at, end - at) == 0x7f800000
                       : largest_short_exponent(h + at, exponent, end - at) == (int16_t)exponent;
        if (!bad)
            continue;
        for (size_t i = at; i < end; i++)
            if (dtype == FM_F32 ? (w[i] & 0x7f800000u) == 0x7f800000u
                                : (h[i] & exponent) == exponent)
                return i;
    }
    return n;
}
