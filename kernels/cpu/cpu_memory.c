/*
 * Copies and conversions on blocks of rows, so that all free threads share the work of one call.
 * Elements are independent: any division gives the same bytes.
 */
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"
#include "lib/base/pool.h"

struct move {
    char *y;
    const char *x;
};

static void copy_block(const void *args, int64_t first, int64_t last)
{
    const struct move *a = args;
    memcpy(a->y + first, a->x + first, (size_t)(last - first));
}

void cpu_copy(void *y, const void *x, size_t bytes)
{
    fm_cpu_rows((int64_t)bytes, 1, copy_block, &(struct move){y, x});
}

static void zero_block(const void *args, int64_t first, int64_t last)
{
    const struct move *a = args;
    memset(a->y + first, 0, (size_t)(last - first));
}

void cpu_zero(void *y, size_t bytes)
{
    fm_cpu_rows((int64_t)bytes, 1, zero_block, &(struct move){.y = y});
}

struct convert {
    struct fm_out y;
    struct fm_in x;
    const int32_t *order;
    int64_t ldy;
    int H, I;
};

/* True if x and y have the same type, so that nothing is rounded. */
static bool is_copy(struct fm_out y, struct fm_in x)
{
    return y.dtype == x.dtype && !x.scales;
}

/* Convert elements [from, from + n) of x to elements [at, at + n) of y.  Elements of the same type
 * are copied, others are converted by way of float. */
static void convert_some(struct fm_out y, size_t at, struct fm_in x, size_t from, size_t n)
{
    if (is_copy(y, x)) {
        size_t bytes = (size_t)(fm_dtype_bits(y.dtype) / 8);
        memcpy(fm_element_out(y, at).data, fm_element(x, from).data, n * bytes);
        return;
    }
    if (y.dtype == FM_F32) {
        fm_read_floats((float *)y.data + at, x, from, n);
        return;
    }
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_scratch(n * sizeof *wide);
    fm_read_floats(wide, x, from, n);
    fm_dtype_from_f32(fm_element_out(y, at).data, wide, y.dtype, n);
    fm_scratch_release(mark);
}

static void convert_rows(const void *args, int64_t first, int64_t last)
{
    const struct convert *a = args;
    size_t H = (size_t)a->H;
    for (int64_t j = first; j < last; j++)
        convert_some(a->y, (size_t)(j * a->ldy), a->x, (size_t)(a->order ? a->order[j] : j) * H, H);
}

static void convert_block(const void *args, int64_t first, int64_t last)
{
    const struct convert *a = args;
    convert_some(a->y, (size_t)first, a->x, (size_t)first, (size_t)(last - first));
}

void cpu_convert(struct fm_out y, int64_t ldy, struct fm_in x, const int32_t *order, int n,
                 int64_t H)
{
    struct convert a = {.y = y, .x = x, .order = order, .ldy = ldy, .H = (int)H};
    if (!order && (n == 1 || ldy == H)) /* one long row */
        fm_cpu_rows(n * H, 1, convert_block, &a);
    else
        fm_cpu_rows(n, H, convert_rows, &a);
}

/* A tile is read along I and written along H, one cache line of floats at a time. */
enum { TILE_H = 16, TILE_I = 256 };

/* Write tile (h, i) to rows place[0..i) of y, columns from h0 on. */
static void scatter(struct fm_out y, float tile[TILE_H][TILE_I], const int32_t *place, int h, int i,
                    int h0, int H)
{
    for (int c = 0; c < i; c++) {
        size_t at = (size_t)place[c] * (size_t)H + (size_t)h0;
        float line[TILE_H], *row = y.dtype == FM_F32 ? (float *)y.data + at : line;
        for (int r = 0; r < h; r++)
            row[r] = tile[r][c];
        if (row == line)
            fm_dtype_from_f32(fm_element_out(y, at).data, line, y.dtype, (size_t)h);
    }
}

/* Height of a tile of 16-bit numbers that are not converted: twice as many fit in a cache line. */
enum { SHORTS_H = 2 * TILE_H };

#if defined(__SSE2__)
/* Write column c of an 8 x 8 block of numbers, with rows `stride` apart, to at[c]: interleave rows
 * in pairs, then in fours, then all. */
static inline void turn_eight(uint16_t *const at[8], const uint16_t *x, size_t stride)
{
    __m128i v[8], u[8];
    for (size_t r = 0; r < 8; r++)
        v[r] = _mm_loadu_si128((const void *)(x + r * stride));
    for (size_t r = 0; r < 4; r++) {
        u[2 * r] = _mm_unpacklo_epi16(v[2 * r], v[2 * r + 1]);
        u[2 * r + 1] = _mm_unpackhi_epi16(v[2 * r], v[2 * r + 1]);
    }
    for (size_t r = 0; r < 2; r++)
        for (size_t half = 0; half < 2; half++) {
            v[4 * r + 2 * half] = _mm_unpacklo_epi32(u[4 * r + half], u[4 * r + 2 + half]);
            v[4 * r + 2 * half + 1] = _mm_unpackhi_epi32(u[4 * r + half], u[4 * r + 2 + half]);
        }
    for (size_t c = 0; c < 4; c++) {
        _mm_storeu_si128((void *)at[2 * c], _mm_unpacklo_epi64(v[c], v[c + 4]));
        _mm_storeu_si128((void *)at[2 * c + 1], _mm_unpackhi_epi64(v[c], v[c + 4]));
    }
}

/* Write eight columns of a tile, SHORTS_H high, to rows of y. */
static void turn_columns(uint16_t *y, const uint16_t *tile, const int32_t *place, size_t H)
{
    uint16_t *at[8];
    for (size_t r = 0; r < SHORTS_H; r += 8) {
        for (size_t c = 0; c < 8; c++)
            at[c] = y + (size_t)place[c] * H + r;
        turn_eight(at, tile + r * TILE_I, TILE_I);
    }
}
#endif

static void transpose_shorts(void *arg, int index)
{
    const struct convert *a = arg;
    uint16_t tile[SHORTS_H][TILE_I], *y = a->y.data;
    const uint16_t *x = a->x.data;
    int h0 = index * SHORTS_H, h = a->H - h0 < SHORTS_H ? a->H - h0 : SHORTS_H;
    for (int i0 = 0; i0 < a->I; i0 += TILE_I) {
        int i = a->I - i0 < TILE_I ? a->I - i0 : TILE_I;
        for (int r = 0; r < h; r++)
            memcpy(tile[r], x + (size_t)(h0 + r) * (size_t)a->I + i0, (size_t)i * sizeof *x);
        int c = 0;
#if defined(__SSE2__)
        for (; h == SHORTS_H && c + 8 <= i; c += 8)
            turn_columns(y + h0, tile[0] + c, a->order + i0 + c, (size_t)a->H);
#endif
        for (; c < i; c++) {
            uint16_t *row = y + (size_t)a->order[i0 + c] * (size_t)a->H + h0;
            for (int r = 0; r < h; r++)
                row[r] = tile[r][c];
        }
    }
}

/* Copy rows [TILE_H index, ...) of x to columns of y. */
static void transpose_strip(void *arg, int index)
{
    const struct convert *a = arg;
    float tile[TILE_H][TILE_I];
    int h0 = index * TILE_H, h = a->H - h0 < TILE_H ? a->H - h0 : TILE_H;
    for (int i0 = 0; i0 < a->I; i0 += TILE_I) {
        int i = a->I - i0 < TILE_I ? a->I - i0 : TILE_I;
        for (int r = 0; r < h; r++) {
            size_t at = (size_t)(h0 + r) * (size_t)a->I + (size_t)i0;
            fm_read_floats(tile[r], a->x, at, (size_t)i);
        }
        scatter(a->y, tile, a->order + i0, h, i, h0, a->H);
    }
}

void cpu_transpose(struct fm_out y, struct fm_in x, const int32_t *order, int H, int I)
{
    struct fm_mark mark = fm_scratch_mark();
    int32_t *place = fm_scratch((size_t)I * sizeof *place); /* row of y for each column */
    for (int j = 0; j < I; j++)
        place[order ? order[j] : j] = j;
    struct convert a = {.y = y, .x = x, .order = place, .H = H, .I = I};
    if (is_copy(y, x) && fm_dtype_bits(x.dtype) == 16)
        fm_pool_for((H + SHORTS_H - 1) / SHORTS_H, transpose_shorts, &a);
    else
        fm_pool_for((H + TILE_H - 1) / TILE_H, transpose_strip, &a);
    fm_scratch_release(mark);
}

struct narrowing {
    float *x;
    enum fm_dtype dtype;
};

static void round_block(const void *args, int64_t first, int64_t last)
{
    const struct narrowing *a = args;
    fm_dtype_round(a->x + first, a->dtype, (size_t)(last - first));
}

void cpu_round_to(float *x, enum fm_dtype dtype, int64_t count)
{
    fm_cpu_rows(count, 1, round_block, &(struct narrowing){x, dtype});
}
