/*
 * The codes of a row inside one block share a scale: they are widened and then multiplied, in two
 * plain loops over data that is still in the L1 cache.  Codes of four bits are looked up in a
 * table.
 */
#include "lib/base/scaled.h"

#include <string.h>

#include "lib/base/vector.h"

static const struct {
    int bits;
    float scale_max; /* scale_max * largest code < 3.3895e38, the largest bfloat16 */
    float value[16]; /* of codes of four bits */
} codes_of[] = {
    [FM_CODE_E4M3] = {8, 7.5e35f, {0}},
    [FM_CODE_E2M1] = {4,
                      5.6e37f,
                      {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6}},
    [FM_CODE_INT4] = {4, 4.2e37f, {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}},
};

int fm_code_bits(enum fm_codes code)
{
    return codes_of[code].bits;
}

float fm_code_scale_max(enum fm_codes code)
{
    return codes_of[code].scale_max;
}

/* Widen codes [at, at + n) of an array to float. */
static void widen(float *dst, const uint8_t *codes, enum fm_codes code, size_t at, size_t n)
{
    const float *value = codes_of[code].value;
    if (code == FM_CODE_E4M3) {
        fm_dtype_to_f32(dst, codes + at, FM_F8_E4M3, n);
        return;
    }
    size_t i = at % 2;
    if (i == 1 && n > 0)
        dst[0] = value[codes[at / 2] >> 4];
    for (codes += (at + 1) / 2; i + 1 < n; i += 2, codes++) {
        dst[i] = value[*codes & 15];
        dst[i + 1] = value[*codes >> 4];
    }
    if (i < n)
        dst[i] = value[*codes & 15];
}

void fm_scaled_to_f32(float *dst, const void *codes, const struct fm_scales *s, size_t at, size_t n)
{
    size_t columns = (size_t)s->columns, wide = (size_t)s->block_columns;
    size_t across = (columns + wide - 1) / wide;
    size_t row = ((size_t)s->first + at) / columns, column = ((size_t)s->first + at) % columns;
    while (n > 0) {
        size_t end = (column / wide + 1) * wide;
        size_t run = (end < columns ? end : columns) - column;
        run = run < n ? run : n;
        float scale = s->scale[row / (size_t)s->block_rows * across + column / wide];
        widen(dst, codes, s->code, at, run);
        for (size_t i = 0; i < run; i++)
            dst[i] *= scale;
        if (s->rounded)
            fm_dtype_round(dst, FM_BF16, run);
        dst += run;
        at += run;
        n -= run;
        column += run;
        if (column == columns) {
            column = 0;
            row++;
        }
    }
}

/* ---- to codes ---- */

FM_INLINE uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

FM_INLINE float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/*
 * |x| as a small float with `fraction` fraction bits, whose smallest normal number is 2^lowest: the
 * fraction of x is rounded to that many bits, ties to even, and the exponent is rebased.  Values
 * below 2^lowest are multiples of 2^(lowest - fraction): adding a number whose last bit has that
 * value rounds to them.  Magnitudes are signed integers and conditions are masks, which every
 * compiler vectorises.
 */
FM_INLINE uint32_t small_float(uint32_t magnitude, uint32_t largest, int fraction, int lowest)
{
    int32_t a = (int32_t)(magnitude < largest ? magnitude : largest);
    int cut = 23 - fraction;
    int32_t first = (127 + lowest) << 23; /* 2^lowest */
    int32_t odd = a >> cut & 1;
    uint32_t normal = (uint32_t)(a + (1 << (cut - 1)) - 1 + odd - (first - (1 << 23))) >> cut;
    float step = float_of((uint32_t)(127 + lowest - fraction + 23) << 23);
    uint32_t tiny = bits_of(float_of((uint32_t)a) + step) - bits_of(step);
    uint32_t below = 0U - (uint32_t)(a < first);
    return (tiny & below) | (normal & ~below);
}

/* E4M3: -0, and negative numbers that round to 0, give -0. */
FM_INLINE uint8_t e4m3_of(float x)
{
    uint32_t u = bits_of(x);
    return (uint8_t)((u >> 24 & 0x80) | small_float(u & 0x7fffffff, 0x43e00000, 3, -6));
}

/* E2M1: negative numbers that round to 0 give -0, but -0 gives 0. */
FM_INLINE uint8_t e2m1_of(float x)
{
    uint32_t u = bits_of(x), a = u & 0x7fffffff;
    uint32_t there = 0U - (uint32_t)(a != 0);
    return (uint8_t)((u >> 28 & 8 & there) | small_float(a, 0x40c00000, 1, 0));
}

/* Adding 1.5 * 2^23 rounds to an integer, ties to even. */
FM_INLINE uint8_t int4_of(float x)
{
    x = x > -8 ? x : -8;
    x = x < 7 ? x : 7;
    return (uint8_t)((bits_of(x + 0x1.8p23f) - bits_of(0x1.8p23f) + 8) & 15);
}

/* q = x / scale, block by block. */
FM_INLINE void divide(float *q, const float *x, const float *scale, size_t blocks, size_t block)
{
    for (size_t b = 0; b < blocks; b++)
        for (size_t i = 0; i < block; i++)
            q[b * block + i] = x[b * block + i] / scale[b];
}

enum { CHUNK = 1024 }; /* elements at a time: quotients stay in the L1 cache */

FM_CLONES(void, quotients, (float *q, const float *x, const float *scale, size_t n, size_t block),
          (q, x, scale, n, block))
{
    if (block == 16)
        divide(q, x, scale, n / 16, 16);
    else if (block == 32)
        divide(q, x, scale, n / 32, 32);
    else
        divide(q, x, scale, 1, n);
}

/* encode_FORMAT: code[i] = FORMAT_of(q[i]) */
#define ENCODER(format)                                                                            \
    FM_CLONES(void, encode_##format, (uint8_t *restrict code, const float *restrict q, size_t n),  \
              (code, q, n))                                                                        \
    {                                                                                              \
        for (size_t i = 0; i < n; i++)                                                             \
            code[i] = format##_of(q[i]);                                                           \
    }
ENCODER(e4m3)
ENCODER(e2m1)
ENCODER(int4)

/* Pack pairs of four-bit codes, each in a byte, into one byte. */
FM_CLONES(void, pack_pairs, (uint8_t *restrict packed, const uint8_t *restrict code, size_t pairs),
          (packed, code, pairs))
{
    for (size_t i = 0; i < pairs; i++)
        packed[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
}

static void encode(uint8_t *codes, const float *q, size_t n, enum fm_codes code)
{
    uint8_t each[CHUNK];
    if (code == FM_CODE_E4M3) {
        encode_e4m3(codes, q, n);
        return;
    }
    (code == FM_CODE_E2M1 ? encode_e2m1 : encode_int4)(each, q, n);
    pack_pairs(codes, each, n / 2);
}

/* The number of elements from `at` on to encode at once: whole blocks if these are small and divide
 * a chunk, else as much of the current block as fits in a chunk. */
static size_t some_of(size_t at, size_t n, size_t block)
{
    size_t left = n - at, some = left < CHUNK ? left : CHUNK;
    size_t rest = block - at % block;
    if (block == 16 || block == 32)
        return some >= block ? some / block * block : some;
    return some < rest ? some : rest;
}

void fm_scaled_from_f32(void *codes, const float *x, const float *scale, size_t n, size_t block,
                        enum fm_codes code)
{
    float q[CHUNK];
    size_t per_byte = 8 / (size_t)fm_code_bits(code);
    for (size_t at = 0, some; at < n; at += some) {
        some = some_of(at, n, block);
        size_t b = at / block, blocks = (some + block - 1) / block;
        quotients(q, x + at, scale + b, some, some < block ? some : block);
        for (size_t i = 0; i < blocks; i++)
            if (scale[b + i] == 0)
                memset(q + i * block, 0,
                       (some - i * block < block ? some - i * block : block) * sizeof *q);
        encode((uint8_t *)codes + at / per_byte, q, some, code);
    }
}

/* Magnitudes compare like their bits; NaN and Inf are the largest. */
FM_INLINE void most_of(float *most, const float *x, size_t blocks, size_t block)
{
    for (size_t b = 0; b < blocks; b++) {
        int32_t m = 0;
        for (size_t i = 0; i < block; i++) {
            int32_t a = (int32_t)(bits_of(x[b * block + i]) & 0x7fffffff);
            m = a > m ? a : m;
        }
        most[b] = float_of((uint32_t)m);
    }
}

FM_CLONES(void, most_of_blocks, (float *most, const float *x, size_t blocks, size_t block),
          (most, x, blocks, block))
{
    if (block == 16)
        most_of(most, x, blocks, 16);
    else if (block == 32)
        most_of(most, x, blocks, 32);
    else
        most_of(most, x, blocks, block);
}

void fm_scaled_most(float *most, const float *x, size_t n, size_t block)
{
    size_t whole = n / block;
    most_of_blocks(most, x, whole, block);
    if (n % block)
        most_of_blocks(most + whole, x + whole * block, 1, n % block);
}
