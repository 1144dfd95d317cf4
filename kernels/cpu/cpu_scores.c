/*
 * channel_scores computes dW = a^T b for gate_up (a = dgu, b = x) and for down (a = h, b = dy), and
 * adds (W dW)^2 to the channel that a row of W belongs to.  Four ways:
 *   - tiles of dW that are kept in registers and a few cache lines (kernels/cpu/cpu_tile.h), with
 *     b packed once, in columns as wide as a tile, and W prefetched;
 *   - tiles of dW computed as products, on CPUs without fused multiply-add;
 *   - for bfloat16, matrix registers on CPUs that have them (kernels/cpu/cpu_amx.h), else tiles
 *     computed with VDPBF16PS (cpu_bf16_scores.c).
 *
 * W is multiplied by 2^32, which is exact, so that squares of small gradients do not underflow in
 * float: |theta dtheta| may be anywhere in 1e-28 .. 4e9.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_amx.h"
#include "kernels/cpu/cpu_tile.h"
#include "kernels/ops/ops.h"
#include "lib/base/isa.h"
#include "lib/base/pool.h"

static const float scale_up = 0x1p32f;
static const double scale_down = 0x1p-64;

/* One matrix of weights: `per` rows of W (per I, H) for each channel. */
struct scores {
    double *s;
    int per;
    const float *W, *a, *b; /* a (n, per I), b (n, H) */
    int n, I, H;
    const struct fm_cpu_tile *tile;
    float *packed; /* b, column block after column block, the last one padded with zeros */
};

/* Channels per task.  With products, enough for oneDNN to be fast; with tiles, a common multiple of
 * their numbers of rows. */
enum { PRODUCT_CHANNELS = 128, PRODUCT_COLS = 1024, TILE_CHANNELS = 84 };

/* 512 KiB, half of an L2 cache. */
enum { CACHE_FLOATS = 1 << 17 };

static void pack_columns(void *arg, int index)
{
    const struct scores *t = arg;
    int j = index * FM_TILE_COLS, cols = t->H - j < FM_TILE_COLS ? t->H - j : FM_TILE_COLS;
    const float *from = t->b + j;
    float *to = t->packed + (size_t)j * t->n;
    if (cols < FM_TILE_COLS)
        memset(to, 0, (size_t)t->n * FM_TILE_COLS * sizeof *to);
    for (int r = 0; r < t->n; r++, to += FM_TILE_COLS, from += t->H) {
        if (cols == FM_TILE_COLS) /* a size that is known at compile time */
            memcpy(to, from, FM_TILE_COLS * sizeof *to);
        else
            memcpy(to, from, (size_t)cols * sizeof *to);
    }
}

/* A row of a panel has fewer than COPY floats, but COPY are copied: the next row overwrites the
 * excess; that of the last row is in the COPY spare floats at the end of the panel. */
enum { COPY = 16, ROWS_AHEAD = 8 };

/* Floats of one panel of a. */
static size_t count_panel(const struct scores *t)
{
    return (size_t)t->n * t->tile->rows + COPY;
}

/* Pack columns [i, i + rows) of a in panels as wide as a tile has rows, padded with zeros. */
FM_CLONES(void, pack_rows, (float *to, const struct scores *t, int i, int rows), (to, t, i, rows))
{
    int width = t->tile->rows;
    size_t stride = (size_t)t->per * t->I, panel = count_panel(t);
    const float *from = t->a + i;
    for (int r = 0; r < t->n; r++, to += width, from += stride) {
        float *p = to;
        int l = 0;
        for (int ahead = 0; r + ROWS_AHEAD < t->n && ahead < rows; ahead += 16)
            __builtin_prefetch(from + ROWS_AHEAD * stride + ahead);
        for (; l + COPY <= rows; l += width, p += panel)
            memcpy(p, from + l, COPY * sizeof *p);
        for (; l < rows; l += width, p += panel)
            for (int c = 0; c < width; c++)
                p[c] = l + c < rows ? from[l + c] : 0;
    }
}

/* lane (rows, cols of a tile) += (W d)^2 for the first cols columns of W. */
FM_CLONES(void, square_tile,
          (float *restrict lane, const float *restrict w, int ld, const float *restrict d, int rows,
           int cols),
          (lane, w, ld, d, rows, cols))
{
    for (int i = 0; i < rows; i++, lane += FM_TILE_COLS, d += FM_TILE_COLS, w += ld) {
        if (cols == FM_TILE_COLS)
            for (int j = 0; j < FM_TILE_COLS; j++)
                lane[j] += (w[j] * scale_up * d[j]) * (w[j] * scale_up * d[j]);
        else
            for (int j = 0; j < cols; j++)
                lane[j] += (w[j] * scale_up * d[j]) * (w[j] * scale_up * d[j]);
    }
}

/* sum[i] = the sum of the lanes of row i: one half is added to the other until one lane is left. */
FM_CLONES(void, add_lanes, (double *sum, float *lane, int rows), (sum, lane, rows))
{
    for (int i = 0; i < rows; i++, lane += FM_TILE_COLS) {
#pragma GCC unroll 5
        for (int half = FM_TILE_COLS / 2; half > 0; half /= 2)
            for (int j = 0; j < half; j++)
                lane[j] += lane[j + half];
        sum[i] = lane[0];
    }
}

/* lane += (W dW)^2 for columns [from, to) of `rows` rows of W, at most as many as a tile has. */
static void score_panel(const struct scores *t, float *lane, const float *W, const float *panel,
                        int rows, int from, int to)
{
    float d[FM_TILE_ROWS_MAX * FM_TILE_COLS];
    for (int j = from; j < to; j += FM_TILE_COLS) {
        if (j + FM_TILE_COLS < t->H)
            for (int i = 0; i < rows; i++) {
                __builtin_prefetch(W + j + FM_TILE_COLS + (size_t)i * t->H);
                __builtin_prefetch(W + j + FM_TILE_COLS + (size_t)i * t->H + 16);
            }
        t->tile->run(d, panel, t->packed + (size_t)j * t->n, t->n);
        square_tile(lane, W + j, t->H, d, rows, to - j < FM_TILE_COLS ? to - j : FM_TILE_COLS);
    }
}

/* Columns of b that stay in the L2 cache while panels of a are processed: a multiple of
 * FM_TILE_COLS. */
static int find_columns(int n)
{
    int cols = CACHE_FLOATS / n / FM_TILE_COLS * FM_TILE_COLS;
    return cols > 0 ? cols : FM_TILE_COLS;
}

static void score_by_tiles(void *arg, int index)
{
    const struct scores *t = arg;
    if (fm_pool_ending())
        return;
    int first = index * TILE_CHANNELS, step = t->tile->rows, cols = find_columns(t->n);
    int channels = t->I - first < TILE_CHANNELS ? t->I - first : TILE_CHANNELS;
    int rows = channels * t->per;
    double sum[2 * TILE_CHANNELS];
    float lane[2 * TILE_CHANNELS * FM_TILE_COLS] = {0};
    struct fm_mark mark = fm_scratch_mark();
    float *panels =
        fm_scratch((size_t)((rows + step - 1) / step) * count_panel(t) * sizeof *panels);
    pack_rows(panels, t, first * t->per, rows);
    for (int j = 0; j < t->H; j += cols)
        for (int p = 0; p < rows; p += step)
            score_panel(t, lane + p * FM_TILE_COLS,
                        t->W + ((size_t)first * t->per + (size_t)p) * t->H,
                        panels + (size_t)(p / step) * count_panel(t),
                        rows - p < step ? rows - p : step, j, t->H - j < cols ? t->H : j + cols);
    add_lanes(sum, lane, rows);
    for (int r = 0; r < rows; r++)
        t->s[first + r / t->per] += sum[r] * scale_down;
    fm_scratch_release(mark);
}

/* sum of (w d)^2, in the order of fm_dot. */
FM_INLINE double sum_squares(const float *w, const float *d, int n)
{
    float lane[FM_LANES] = {0};
    int i = 0;
    for (; i + FM_LANES <= n; i += FM_LANES)
        for (int l = 0; l < FM_LANES; l++)
            lane[l] += (w[i + l] * scale_up * d[i + l]) * (w[i + l] * scale_up * d[i + l]);
    for (int l = 0; i < n; i++, l++)
        lane[l] += (w[i] * scale_up * d[i]) * (w[i] * scale_up * d[i]);
    return fm_add_lanes(lane);
}

/* sum[i] += sum of (w d)^2 over row i of W, rows ld apart, and row i of d (rows, cols). */
FM_CLONES(void, square_rows,
          (double *sum, const float *w, int ld, const float *d, int rows, int cols),
          (sum, w, ld, d, rows, cols))
{
    for (int i = 0; i < rows; i++)
        sum[i] += sum_squares(w + (int64_t)i * ld, d + (int64_t)i * cols, cols);
}

static void score_by_products(void *arg, int index)
{
    const struct scores *t = arg;
    if (fm_pool_ending())
        return;
    int first = index * PRODUCT_CHANNELS, i = first * t->per;
    int channels = t->I - first < PRODUCT_CHANNELS ? t->I - first : PRODUCT_CHANNELS;
    int rows = channels * t->per, most = t->H < PRODUCT_COLS ? t->H : PRODUCT_COLS;
    double sum[2 * PRODUCT_CHANNELS] = {0};
    struct fm_mark mark = fm_scratch_mark();
    float *d = fm_scratch((size_t)rows * most * sizeof *d);
    for (int j = 0; j < t->H; j += most) {
        int cols = t->H - j < most ? t->H - j : most;
        fm_cpu_f32_product(true, false, rows, cols, t->n, 1, fm_f32(t->a + i), t->per * t->I,
                           fm_f32(t->b + j), t->H, 0, d, cols);
        square_rows(sum, t->W + (size_t)i * t->H + j, t->H, d, rows, cols);
    }
    for (int r = 0; r < rows; r++)
        t->s[first + r / t->per] += sum[r] * scale_down;
    fm_scratch_release(mark);
}

static void score_matrix(struct scores t)
{
    if (t.n <= 0)
        return;
    if (!t.tile) {
        fm_pool_for((t.I + PRODUCT_CHANNELS - 1) / PRODUCT_CHANNELS, score_by_products, &t);
        return;
    }
    struct fm_mark mark = fm_scratch_mark();
    int blocks = (t.H + FM_TILE_COLS - 1) / FM_TILE_COLS;
    t.packed = fm_scratch((size_t)blocks * FM_TILE_COLS * t.n * sizeof *t.packed);
    fm_pool_for(blocks, pack_columns, &t);
    fm_pool_for((t.I + TILE_CHANNELS - 1) / TILE_CHANNELS, score_by_tiles, &t);
    fm_scratch_release(mark);
}

/* The scores of one matrix W (per I, H), whose gradient is A^T B. */
static void score(double *s, int per, struct fm_in W, struct fm_in A, struct fm_in B, int n, int I,
                  int H, const struct fm_cpu_tile *tile)
{
    struct fm_mark mark = fm_scratch_mark();
    size_t rows = (size_t)n * (size_t)H, wide = (size_t)n * (size_t)(per * I);
    struct scores t = {.s = s, .per = per, .n = n, .I = I, .H = H, .tile = tile};
    t.W = fm_widen(W, (size_t)(per * I) * (size_t)H);
    t.a = fm_cpu_as(A, FM_F32, wide).data;
    t.b = fm_cpu_as(B, FM_F32, rows).data;
    score_matrix(t);
    fm_scratch_release(mark);
}

void fm_cpu_tile_scores(const struct fm_cpu_tile *tile, double *s, struct fm_in gate_up,
                        struct fm_in down, struct fm_in dgu, struct fm_in x, struct fm_in h,
                        struct fm_in dy, int n, int I, int H)
{
    score(s, 2, gate_up, dgu, x, n, I, H, tile);
    score(s, 1, down, h, dy, n, I, H, tile);
}

void cpu_channel_scores(double *s, struct fm_in gate_up, struct fm_in down, struct fm_in dgu,
                        struct fm_in x, struct fm_in h, struct fm_in dy, int n, int I, int H)
{
    fm_cpu_tile_scores(fm_cpu_tile_get(0), s, gate_up, down, dgu, x, h, dy, n, I, H);
}

void cpu_channel_scores_each(double *s, struct fm_in gate_up, struct fm_in down, struct fm_in dgu,
                             struct fm_in x, struct fm_in h, struct fm_in dy, const int32_t *first,
                             int parts, int I, int H)
{
    fm_scores_each(cpu_channel_scores, s, gate_up, down, dgu, x, h, dy, first, parts, I, H);
}

void cpu_bf16_channel_scores(double *s, struct fm_in gate_up, struct fm_in down, struct fm_in dgu,
                             struct fm_in x, struct fm_in h, struct fm_in dy, int n, int I, int H)
{
    const int32_t first[] = {0, n};
    cpu_bf16_channel_scores_each(s, gate_up, down, dgu, x, h, dy, first, 1, I, H);
}

void cpu_bf16_channel_scores_each(double *s, struct fm_in gate_up, struct fm_in down,
                                  struct fm_in dgu, struct fm_in x, struct fm_in h, struct fm_in dy,
                                  const int32_t *first, int parts, int I, int H)
{
    bool amx = fm_isa_amx();
    if (!amx && !fm_isa_avx512_bf16()) {
        cpu_channel_scores_each(s, gate_up, down, dgu, x, h, dy, first, parts, I, H);
        return;
    }
    struct fm_mark mark = fm_scratch_mark();
    size_t n = (size_t)(first[parts] - first[0]), rows = n * (size_t)H, wide = n * (size_t)I;
    dgu = fm_cpu_as(dgu, FM_BF16, 2 * wide);
    x = fm_cpu_as(x, FM_BF16, rows);
    h = fm_cpu_as(h, FM_BF16, wide);
    dy = fm_cpu_as(dy, FM_BF16, rows);
    if (amx) {
        fm_cpu_amx_scores(s, 2, gate_up, dgu.data, x.data, first, parts, I, H);
        fm_cpu_amx_scores(s, 1, down, h.data, dy.data, first, parts, I, H);
    } else {
        fm_cpu_bf16_scores(s, gate_up, down, dgu.data, x.data, h.data, dy.data, first, parts, I, H);
    }
    fm_scratch_release(mark);
}
