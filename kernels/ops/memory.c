/*
 * Reference implementation of operations that copy numbers or convert between types.
 */
#include "kernels/ops/ops.h"

#include <string.h>

void ref_copy(void *y, const void *x, size_t bytes)
{
    memcpy(y, x, bytes);
}

void ref_zero(void *y, size_t bytes)
{
    memset(y, 0, bytes);
}

const float *fm_widen(struct fm_in x, size_t n)
{
    if (x.dtype == FM_F32)
        return x.data;
    float *wide = fm_scratch(n * sizeof *wide);
    fm_dtype_to_f32(wide, x.data, x.dtype, n);
    return wide;
}

float *fm_wide(struct fm_out y, size_t n)
{
    return y.dtype == FM_F32 ? y.data : fm_scratch(n * sizeof(float));
}

void fm_narrow(struct fm_out y, const float *wide, size_t n)
{
    if (y.data != wide)
        fm_dtype_from_f32(y.data, wide, y.dtype, n);
}

void fm_read_floats(float *to, struct fm_in x, size_t at, size_t n)
{
    if (x.scales)
        fm_scaled_to_f32(to, x.data, x.scales, at, n);
    else
        fm_dtype_to_f32(to, fm_element(x, at).data, x.dtype, n);
}

/* Write elements [at, at + n) of y from floats. */
static void write_row(struct fm_out y, size_t at, const float *row, size_t n)
{
    fm_dtype_from_f32(fm_element_out(y, at).data, row, y.dtype, n);
}

void ref_convert(struct fm_out y, int64_t ldy, struct fm_in x, const int32_t *order, int n,
                 int64_t H)
{
    struct fm_mark mark = fm_scratch_mark();
    size_t width = (size_t)H;
    float *row = fm_scratch(width * sizeof *row);
    for (int j = 0; j < n; j++) {
        size_t from = (size_t)(order ? order[j] : j);
        fm_read_floats(row, x, from * width, width);
        write_row(y, (size_t)j * (size_t)ldy, row, width);
    }
    fm_scratch_release(mark);
}

void ref_transpose(struct fm_out y, struct fm_in x, const int32_t *order, int H, int I)
{
    struct fm_mark mark = fm_scratch_mark();
    float *row = fm_scratch((size_t)I * sizeof *row);
    for (int i = 0; i < H; i++) {
        fm_read_floats(row, x, (size_t)i * (size_t)I, (size_t)I);
        for (int j = 0; j < I; j++)
            write_row(y, (size_t)j * (size_t)H + (size_t)i, row + (order ? order[j] : j), 1);
    }
    fm_scratch_release(mark);
}

void ref_round_to(float *x, enum fm_dtype dtype, int64_t count)
{
    fm_dtype_round(x, dtype, (size_t)count);
}
