/*
 * Runs of one row inside one block share their scale: each is widened and then multiplied, two
 * plain loops over what is still in the first cache.
 */
#include "lib/base/scaled.h"

void fm_scaled_to_f32(float *dst, const void *codes, enum fm_dtype dtype, const struct fm_scales *s,
                      size_t at, size_t n)
{
    size_t bytes = (size_t)fm_dtype_bits(dtype) / 8, columns = (size_t)s->columns;
    size_t wide = (size_t)s->block_columns, across = (columns + wide - 1) / wide;
    const char *from = (const char *)codes + at * bytes;
    size_t row = ((size_t)s->first + at) / columns, column = ((size_t)s->first + at) % columns;
    while (n > 0) {
        size_t end = (column / wide + 1) * wide;
        size_t run = (end < columns ? end : columns) - column;
        run = run < n ? run : n;
        float scale = s->scale[row / (size_t)s->block_rows * across + column / wide];
        fm_dtype_to_f32(dst, from, dtype, run);
        for (size_t i = 0; i < run; i++)
            dst[i] *= scale;
        if (s->rounded)
            fm_dtype_round(dst, FM_BF16, run);
        dst += run;
        from += run * bytes;
        n -= run;
        column += run;
        if (column == columns) {
            column = 0;
            row++;
        }
    }
}
