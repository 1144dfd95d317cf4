/*
 * Scores with the instruction VDPBF16PS, which adds two products of bfloat16 to a float32 sum.
 * dW = a^T b is computed in tiles of ROWS x COLS values that stay in registers until they are
 * multiplied by W, squared and added.  A pair of rows of a or b is one 32-bit element, so the sum
 * over the rows of a batch takes one instruction for two rows and 16 columns.
 *
 * With many small experts a batch has few rows, and loading and widening a tile of W takes longer
 * than its product.  So a tile of W is loaded once for all batches of a group, and the batches'
 * tiles of dW are computed one after the other:
 *
 *     for each matrix, strip of columns of b that fits into the L2 cache, ROWS rows of W,
 *     COLS columns of W, batch of the group
 *
 * Each batch has sums of its own, which are added to the scores in the order of the batches, so the
 * result does not depend on the groups.
 *
 * As in cpu_scores.c, W is multiplied by 2^32, so that squares of small gradients do not underflow.
 */
#include "kernels/cpu/cpu_tile.h"

#if defined(__x86_64__)
#include <string.h>

#include "kernels/cpu/cpu_masked.h"
#include "lib/base/pool.h"

enum {
    LANES = 16,
    ROWS = 14, /* ROWS x 2 sums, two vectors of b and one element of a fill the 32 registers */
    COLS = 2 * LANES,
    TASK_CHANNELS = 2 * ROWS,
    PACK_COLS = 16 * LANES,
    GROUP_ROWS = 512,      /* rows of a group: a panel of a is 16 KiB, a third of an L1 cache */
    CACHE_BYTES = 1 << 19, /* of b, half of an L2 cache */
    AHEAD = 2 * COLS,
};

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

/* One matrix of weights: `per` rows of W for each channel. */
struct matrix {
    int per;
    struct fm_in W;
    const uint16_t *a, *b; /* of all batches */
    uint32_t *packed;      /* b of the group, in panels of LANES columns */
};

struct scores {
    double *s;
    struct matrix of[2];
    const int32_t *first; /* (parts + 1) batch p begins at row first[p] - first[0] */
    int begin, end;       /* the batches of the group */
    int *at;              /* (parts + 1) first pair of each batch in a panel; at[begin] = 0 */
    int I, H;
};

static int rows_of(const struct scores *x, int p)
{
    return x->first[p + 1] - x->first[p];
}

/* 32-bit elements of a panel. */
static size_t panel_of(const struct scores *x)
{
    return (size_t)x->at[x->end] * LANES;
}

/* Columns of a or b to be packed into `panels` panels of `step` columns each. */
struct columns {
    const uint16_t *x; /* (rows, ld), from the first of the columns on */
    int64_t ld;
    int count, step, panels; /* panels past the last column are filled with zeros */
};

/* Pack n rows: element (k, c) of a panel holds rows 2k and 2k + 1 of column c, or zeros.  Panels
 * are `panel` elements apart. */
TARGET static void pack(uint32_t *to, size_t panel, const struct columns *of, const uint16_t *x,
                        int n)
{
    for (int k = 0; k < n; k += 2, x += 2 * of->ld, to += LANES) {
        bool both = k + 1 < n;
        const uint16_t *next = both ? x + of->ld : x;
        for (int i = 0; i < of->panels; i++) {
            int c = i * of->step;
            __mmask16 mask = fm_cpu_mask(fm_cpu_at_most(of->count - c, of->step));
            c = mask ? c : 0;
            __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x + c));
            __m512i odd =
                _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(both ? mask : 0, next + c));
            _mm512_storeu_si512(to + i * panel, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        }
    }
}

/* Pack the rows of every batch of the group. */
static void pack_group(uint32_t *to, const struct scores *x, struct columns of)
{
    for (int p = x->begin; p < x->end; p++)
        pack(to + (size_t)x->at[p] * LANES, panel_of(x), &of,
             of.x + (x->first[p] - x->first[0]) * of.ld, rows_of(x, p));
}

static int count_packs(const struct scores *x)
{
    return (x->H + PACK_COLS - 1) / PACK_COLS;
}

static void pack_columns(void *arg, int index)
{
    const struct scores *x = arg;
    const struct matrix *m = &x->of[index / count_packs(x)];
    int j = index % count_packs(x) * PACK_COLS;
    int count = fm_cpu_at_most(x->H - j, PACK_COLS);
    pack_group(m->packed + (size_t)(j / LANES) * panel_of(x), x,
               (struct columns){m->b + j, x->H, count, LANES, (count + COLS - 1) / COLS * 2});
}

/* w (ROWS, COLS) = 2^32 W, from element `at` on, rows ld apart; zeros outside rows x cols. */
TARGET static void take_weights(float *w, struct fm_in W, size_t at, int ld, int rows, int cols)
{
    const __m512 up = _mm512_set1_ps(0x1p32f);
    for (int i = 0; i < ROWS; i++)
        for (int half = 0; half < COLS; half += LANES) {
            __mmask16 mask = i < rows ? fm_cpu_mask(cols - half) : 0;
            __m512 v = fm_cpu_load_weights(W, mask ? at + (size_t)i * ld + half : 0, mask);
            _mm512_storeu_ps(w + i * COLS + half, _mm512_mul_ps(v, up));
        }
}

/* Prefetch the weights for the tile at (row, j) or, if j is past the last column, for a tile of the
 * next rows: rows are too far apart for the hardware prefetcher. */
static void fetch_weights(const struct scores *x, const struct matrix *m, int row, int j)
{
    size_t size = (size_t)(fm_dtype_bits(m->W.dtype) / 8), line = 64;
    if (j >= x->H) {
        row += ROWS;
        j -= x->H;
    }
    for (int i = row; i < row + ROWS && i < m->per * x->I; i++)
        for (size_t at = 0; at < COLS * size; at += line)
            __builtin_prefetch((const char *)m->W.data + ((size_t)i * x->H + j) * size + at);
}

/* lane (ROWS, LANES) += (w dW)^2, for a tile of dW: the product of a panel of a and two of b. */
TARGET static void score_tile(float *lane, const float *w, const uint32_t *a, const uint32_t *b,
                              size_t panel, int pairs)
{
    __m512 d[ROWS][2];
#pragma GCC unroll 14
    for (int i = 0; i < ROWS; i++)
        d[i][0] = d[i][1] = _mm512_setzero_ps();
    for (int k = 0; k < pairs; k++, a += LANES, b += LANES) {
        __m512bh low = (__m512bh)_mm512_loadu_si512(b);
        __m512bh high = (__m512bh)_mm512_loadu_si512(b + panel);
#pragma GCC unroll 14
        for (int i = 0; i < ROWS; i++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i]);
            d[i][0] = _mm512_dpbf16_ps(d[i][0], x, low);
            d[i][1] = _mm512_dpbf16_ps(d[i][1], x, high);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < ROWS; i++) {
        __m512 low = _mm512_mul_ps(d[i][0], _mm512_loadu_ps(w + i * COLS));
        __m512 high = _mm512_mul_ps(d[i][1], _mm512_loadu_ps(w + i * COLS + LANES));
        __m512 sum = _mm512_loadu_ps(lane + i * LANES);
        sum = _mm512_fmadd_ps(low, low, sum);
        sum = _mm512_fmadd_ps(high, high, sum);
        _mm512_storeu_ps(lane + i * LANES, sum);
    }
}

/* Columns of b that stay in the L2 cache while panels of a are processed. */
static int find_columns(const struct scores *x)
{
    int cols = CACHE_BYTES / (x->at[x->end] * (int)sizeof(uint32_t)) / COLS * COLS;
    return cols > 0 ? cols : COLS;
}

/* Add the squares of columns [from, to) of ROWS rows of W, of which `rows` exist, from `row` on. */
static void score_rows(float *lane, const struct scores *x, const struct matrix *m,
                       const uint32_t *a, int row, int rows, int from, int to)
{
    float w[ROWS * COLS];
    size_t panel = panel_of(x), at = (size_t)row * x->H;
    for (int j = from; j < to; j += COLS) {
        const uint32_t *b = m->packed + (size_t)(j / LANES) * panel;
        float *sums = lane;
        fetch_weights(x, m, row, j + AHEAD);
        take_weights(w, m->W, at + j, x->H, rows, x->H - j);
        for (int p = x->begin; p < x->end; p++, sums += ROWS * LANES) {
            size_t pair = (size_t)x->at[p] * LANES;
            if (x->at[p + 1] > x->at[p])
                score_tile(sums, w, a + pair, b + pair, panel, x->at[p + 1] - x->at[p]);
        }
    }
}

/* sum (batches, TASK_CHANNELS) += the scores of `channels` channels by matrix m. */
static void score_channels(double *sum, const struct scores *x, const struct matrix *m, int first,
                           int channels)
{
    int rows = channels * m->per, strips = (rows + ROWS - 1) / ROWS, batches = x->end - x->begin;
    int row = first * m->per, cols = find_columns(x);
    size_t lanes = (size_t)batches * ROWS * LANES;
    struct fm_mark mark = fm_scratch_mark();
    uint32_t *a = fm_scratch((size_t)strips * panel_of(x) * sizeof *a);
    float *lane = fm_scratch_floats((size_t)strips * lanes);
    memset(lane, 0, (size_t)strips * lanes * sizeof *lane);
    pack_group(a, x, (struct columns){m->a + row, (int64_t)m->per * x->I, rows, ROWS, strips});
    for (int j = 0; j < x->H; j += cols)
        for (int i = 0; i < strips; i++)
            score_rows(lane + (size_t)i * lanes, x, m, a + (size_t)i * panel_of(x), row + i * ROWS,
                       fm_cpu_at_most(rows - i * ROWS, ROWS), j, fm_cpu_at_most(x->H, j + cols));
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < batches; p++) {
            const float *from = lane + (size_t)(r / ROWS) * lanes + (p * ROWS + r % ROWS) * LANES;
            for (int l = 0; l < LANES; l++)
                sum[p * TASK_CHANNELS + r / m->per] += (double)from[l];
        }
    fm_scratch_release(mark);
}

static void score_task(void *arg, int index)
{
    const struct scores *x = arg;
    if (fm_pool_ending())
        return;
    int first = index * TASK_CHANNELS, channels = fm_cpu_at_most(x->I - first, TASK_CHANNELS);
    int batches = x->end - x->begin;
    struct fm_mark mark = fm_scratch_mark();
    double *sum = fm_scratch((size_t)batches * TASK_CHANNELS * sizeof *sum);
    memset(sum, 0, (size_t)batches * TASK_CHANNELS * sizeof *sum);
    score_channels(sum, x, &x->of[0], first, channels);
    score_channels(sum, x, &x->of[1], first, channels);
    for (int p = 0; p < batches; p++)
        for (int i = 0; i < channels; i++)
            x->s[first + i] += sum[p * TASK_CHANNELS + i] * 0x1p-64;
    fm_scratch_release(mark);
}

static void score_group(struct scores *x)
{
    if (x->at[x->end] == 0)
        return;
    struct fm_mark mark = fm_scratch_mark();
    size_t panels = (size_t)((x->H + COLS - 1) / COLS) * 2;
    for (int i = 0; i < 2; i++)
        x->of[i].packed = fm_scratch(panels * panel_of(x) * sizeof(uint32_t));
    fm_pool_for(2 * count_packs(x), pack_columns, x);
    fm_pool_for((x->I + TASK_CHANNELS - 1) / TASK_CHANNELS, score_task, x);
    fm_scratch_release(mark);
}

void fm_cpu_bf16_scores(double *s, struct fm_in gate_up, struct fm_in down, const uint16_t *dgu,
                        const uint16_t *x, const uint16_t *h, const uint16_t *dy,
                        const int32_t *first, int parts, int I, int H)
{
    struct scores all = {.s = s, .first = first, .I = I, .H = H};
    struct fm_mark mark = fm_scratch_mark();
    all.of[0] = (struct matrix){2, gate_up, dgu, x, NULL};
    all.of[1] = (struct matrix){1, down, h, dy, NULL};
    all.at = fm_scratch(((size_t)parts + 1) * sizeof *all.at);
    for (; all.begin < parts; all.begin = all.end) {
        int p = all.begin;
        for (all.at[p] = 0; p < parts; p++) {
            if (p > all.begin && first[p + 1] - first[all.begin] > GROUP_ROWS)
                break;
            all.at[p + 1] = all.at[p] + (rows_of(&all, p) + 1) / 2;
        }
        all.end = p;
        score_group(&all);
    }
    fm_scratch_release(mark);
}

#else
void fm_cpu_bf16_scores(double *s, struct fm_in gate_up, struct fm_in down, const uint16_t *dgu,
                        const uint16_t *x, const uint16_t *h, const uint16_t *dy,
                        const int32_t *first, int parts, int I, int H)
{
    (void)s, (void)gate_up, (void)down, (void)dgu, (void)x, (void)h, (void)dy;
    (void)first, (void)parts, (void)I, (void)H;
}
#endif
