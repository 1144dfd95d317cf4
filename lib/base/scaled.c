/*
 * The codes of a row inside one block share a scale: they are widened and then multiplied, in two
 * plain loops over data that is still in the L1 cache.  Codes of four bits are looked up in a
 * table.
 */
#include "lib/base/scaled.h"

#include <assert.h>
#include <string.h>

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

/* The number of the row of blocks that has this row. */
static size_t block_row(const struct fm_scales *s, size_t row)
{
    size_t high = (size_t)s->block_rows, chunk = (size_t)s->chunk_rows;
    return chunk ? row / chunk * ((chunk + high - 1) / high) + row % chunk / high : row / high;
}

void fm_scaled_to_f32(float *dst, const void *codes, const struct fm_scales *s, size_t at, size_t n)
{
    assert(s->columns > 0 && s->block_rows > 0 && s->block_columns > 0 && s->first >= 0);
    /* A byte holds the codes 2 i and 2 i + 1 of a matrix, so none is shared by two rows. */
    assert(codes_of[s->code].bits == 8 || (s->columns % 2 == 0 && s->first % 2 == 0));
    size_t columns = (size_t)s->columns, wide = (size_t)s->block_columns;
    size_t across = (columns + wide - 1) / wide;
    size_t row = ((size_t)s->first + at) / columns, column = ((size_t)s->first + at) % columns;
    while (n > 0) {
        size_t end = (column / wide + 1) * wide;
        size_t run = (end < columns ? end : columns) - column;
        run = run < n ? run : n;
        size_t block = block_row(s, row) * across + column / wide;
        assert(block < s->count);
        float scale = s->scale[block];
        widen(dst, codes, s->code, at, run);
        for (size_t i = 0; s->zero && i < run; i++)
            dst[i] -= s->zero[block];
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
