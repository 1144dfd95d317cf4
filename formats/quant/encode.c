/*
 * Rows of numbers to codes; and matrices, in bands of rows as high as a block: the values are
 * widened to float32; the largest magnitude of each block is found; a scale is computed from it, in
 * the dtype in which scales are stored; and codes are computed from the scales.
 */
#include "formats/quant/encode.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "formats/quant/formats.h"
#include "lib/base/pool.h"
#include "lib/base/vector.h"

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
    float step = fm_float_of((uint32_t)(127 + lowest - fraction + 23) << 23);
    uint32_t tiny = fm_bits_of(fm_float_of((uint32_t)a) + step) - fm_bits_of(step);
    uint32_t below = 0U - (uint32_t)(a < first);
    return (tiny & below) | (normal & ~below);
}

/* E4M3: -0, and negative numbers that round to 0, give -0. */
FM_INLINE uint8_t e4m3_of(float x)
{
    uint32_t u = fm_bits_of(x);
    return (uint8_t)((u >> 24 & 0x80) | small_float(u & 0x7fffffff, 0x43e00000, 3, -6));
}

/* E2M1: negative numbers that round to 0 give -0, but -0 gives 0. */
FM_INLINE uint8_t e2m1_of(float x)
{
    uint32_t u = fm_bits_of(x), a = u & 0x7fffffff;
    uint32_t there = 0U - (uint32_t)(a != 0);
    return (uint8_t)((u >> 28 & 8 & there) | small_float(a, 0x40c00000, 1, 0));
}

/* Adding 1.5 * 2^23 rounds to an integer, ties to even. */
FM_INLINE uint8_t int4_of(float x)
{
    x = x > -8 ? x : -8;
    x = x < 7 ? x : 7;
    return (uint8_t)((fm_bits_of(x + 0x1.8p23f) - fm_bits_of(0x1.8p23f) + 8) & 15);
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

void fm_encode_codes(void *codes, const float *x, const float *scale, size_t n, size_t block,
                     enum fm_codes code)
{
    float q[CHUNK];
    size_t per_byte = 8 / (size_t)fm_code_bits(code);
    assert(n % per_byte == 0);
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
            int32_t a = (int32_t)(fm_bits_of(x[b * block + i]) & 0x7fffffff);
            m = a > m ? a : m;
        }
        most[b] = fm_float_of((uint32_t)m);
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

void fm_encode_most(float *most, const float *x, size_t n, size_t block)
{
    size_t whole = n / block;
    most_of_blocks(most, x, whole, block);
    if (n % block)
        most_of_blocks(most + whole, x + whole * block, 1, n % block);
}

/* ---- scales ---- */

/* The distance from 1 to the next larger number: 2^-7 for BF16, 2^-10 for F16, 2^-23 for F32. */
static float epsilon_of(enum fm_dtype dtype)
{
    return dtype == FM_BF16 ? 0x1p-7F : dtype == FM_F16 ? 0x1p-10F : FLT_EPSILON;
}

static float rounded(float x, enum fm_dtype dtype)
{
    fm_dtype_round(&x, dtype, 1);
    return x;
}

/* The biased exponent of an MX scale.  frexp's fraction is in [1/2, 1), so 1.75 is 7/8 here. */
static uint8_t power_of(float most, int offset)
{
    int e;
    float fraction = frexpf(most, &e);
    if (most == 0)
        return 0;
    e += 127 - 1 + (fraction >= 0.875F) - offset;
    return (uint8_t)(e < 0 ? 0 : e > 254 ? 254 : e);
}

float fm_encode_power_scale(void *stored, const struct fm_encode_block *b, int offset)
{
    uint8_t *byte = stored;
    *byte = power_of(b->most, offset);
    return ldexpf(1, *byte - 127);
}

float fm_encode_rounded_scale(void *stored, const struct fm_encode_block *b, float top)
{
    float s = rounded(b->most / top, b->weights);
    s = s == 0 ? epsilon_of(b->weights) : s;
    fm_dtype_from_f32(stored, &s, b->weights, 1);
    return s;
}

/* ---- matrices ---- */

/* Row i of a matrix, as float32. */
static void read_row(float *wide, const struct fm_encode_matrix *w, size_t i)
{
    fm_dtype_to_f32(wide, w->at + i * w->stride, w->dtype, w->columns);
}

bool fm_encode_factor(float *factor, const struct fm_quantiser *q, const struct fm_scheme *to,
                      const struct fm_encode_matrix *w)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_scratch((w->columns + 1) * sizeof *wide), most = 0;
    *factor = 1;
    for (size_t i = 0; to->storage->factor_end && i < w->rows && isfinite(most); i++) {
        float row = 0;
        read_row(wide, w, i);
        fm_encode_most(&row, wide, w->columns, w->columns ? w->columns : 1);
        most = row <= most ? most : row; /* if `row` is NaN, so is `most` */
    }
    fm_scratch_release(mark);
    if (to->storage->factor_end)
        *factor = q->factor(&(struct fm_encode_block){.weights = w->dtype, .most = most});
    return isfinite(most);
}

/* Rows that share scales, and intermediate results. */
struct band {
    float *wide;         /* (rows, columns) */
    float *most, *row;   /* (blocks): of all its rows; of one row */
    float *scale;        /* (blocks) */
    char *stored;        /* the same as bytes */
    size_t blocks, size; /* blocks in a row; columns of one */
};

/* The largest magnitudes of the blocks of rows [first, first + n); false: NaN or Inf. */
static bool read_band(struct band *b, const struct fm_encode_matrix *w, size_t first, size_t n)
{
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        float *wide = b->wide + i * w->columns, *most = i ? b->row : b->most;
        read_row(wide, w, first + i);
        fm_encode_most(most, wide, w->columns, b->size);
        for (size_t k = 0; k < b->blocks; k++) {
            finite = finite && isfinite(most[k]);
            b->most[k] = most[k] > b->most[k] ? most[k] : b->most[k];
        }
    }
    return finite;
}

bool fm_encode(void *codes, void *scales, const struct fm_quantiser *q, const struct fm_scheme *to,
               const struct fm_encode_matrix *w, float factor)
{
    size_t columns = w->columns, high = (size_t)to->block_rows;
    size_t size = to->block_columns > 0 ? (size_t)to->block_columns : columns ? columns : 1;
    size_t blocks = to->block_columns > 0 ? (columns + size - 1) / size : 1;
    size_t element = (size_t)fm_dtype_bits(fm_quantiser_scales(q, w->dtype)) / 8;
    size_t row = columns * (size_t)fm_storage_bits(to->storage) / 8;
    struct fm_mark mark = fm_scratch_mark();
    struct band b = {.blocks = blocks, .size = size};
    assert(high > 0 && row * 8 == columns * (size_t)fm_storage_bits(to->storage));
    assert(blocks * size >= columns && (blocks - 1) * size <= columns);
    bool finite = true;
    b.wide = fm_scratch((high * columns + 1) * sizeof *b.wide);
    b.most = fm_scratch((blocks + 1) * sizeof *b.most);
    b.row = fm_scratch((blocks + 1) * sizeof *b.row);
    b.scale = fm_scratch((blocks + 1) * sizeof *b.scale);
    b.stored = fm_scratch((blocks + 1) * element);
    b.most[0] = b.row[0] = 0; /* for a matrix without columns */
    for (size_t first = 0; first < w->rows && finite; first += high) {
        size_t n = w->rows - first < high ? w->rows - first : high;
        finite = read_band(&b, w, first, n);
        for (size_t k = 0; k < blocks && finite; k++)
            b.scale[k] = q->scale(b.stored + k * element,
                                  &(struct fm_encode_block){w->dtype, b.most[k], factor});
        if (scales && finite)
            memcpy((char *)scales + first / high * blocks * element, b.stored, blocks * element);
        for (size_t i = 0; i < n && codes && finite; i++)
            fm_encode_codes((char *)codes + (first + i) * row, b.wide + i * columns, b.scale,
                            columns, size, to->storage->code);
    }
    fm_scratch_release(mark);
    return finite;
}
