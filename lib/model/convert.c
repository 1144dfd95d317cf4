#include "lib/model/convert.h"

#include "lib/base/pool.h"

/* A tile is read along I and written along H: one cache line of floats at a time. */
#define TILE_H 16
#define TILE_I 256

static const char *element(const void *src, enum fm_dtype dtype, size_t i)
{
    return (const char *)src + i * (size_t)(fm_dtype_bits(dtype) / 8);
}

void fm_convert_rows(float *dst, size_t stride, const void *src, enum fm_dtype dtype, int n, int H,
                     const int32_t *order)
{
    size_t width = (size_t)H;
    for (int j = 0; j < n; j++) {
        size_t from = (size_t)(order ? order[j] : j);
        fm_dtype_to_f32(dst + (size_t)j * stride, element(src, dtype, from * width), dtype, width);
    }
}

/* tile (h, i) -> rows place[0..i) of dst, columns from h0. */
static void scatter(float *dst, float tile[TILE_H][TILE_I], const int32_t *place, int h, int i,
                    int h0, int H)
{
    for (int c = 0; c < i; c++) {
        float *row = dst + (size_t)place[c] * (size_t)H + (size_t)h0;
        for (int r = 0; r < h; r++)
            row[r] = tile[r][c];
    }
}

void fm_convert_transposed(float *dst, const void *src, enum fm_dtype dtype, int H, int I,
                           const int32_t *order)
{
    float tile[TILE_H][TILE_I];
    struct fm_mark mark = fm_scratch_mark();
    int32_t *place = fm_scratch((size_t)I * sizeof *place); /* row of dst of each column */
    for (int j = 0; j < I; j++)
        place[order ? order[j] : j] = j;
    for (int h0 = 0; h0 < H; h0 += TILE_H) {
        int h = H - h0 < TILE_H ? H - h0 : TILE_H;
        for (int i0 = 0; i0 < I; i0 += TILE_I) {
            int i = I - i0 < TILE_I ? I - i0 : TILE_I;
            for (int r = 0; r < h; r++) {
                size_t at = (size_t)(h0 + r) * (size_t)I + (size_t)i0;
                fm_dtype_to_f32(tile[r], element(src, dtype, at), dtype, (size_t)i);
            }
            scatter(dst, tile, place + i0, h, i, h0, H);
        }
    }
    fm_scratch_release(mark);
}
