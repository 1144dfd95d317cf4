/*
 * dW = a^T b in blocks of 32 x 32 values, summed over all rows of a batch, so that a block is
 * written to memory only once, before it is multiplied by W and squared.  oneDNN cannot do this:
 * it writes a product to an array as large as the weights, and writing and reading that takes
 * longer than the product.
 *
 * With many small experts a batch has few rows, and reading W takes longer than the product, so
 * blocks of several batches are computed before W is read.
 *
 * As in cpu_scores.c, W is multiplied by 2^32, so that squares of small gradients do not underflow.
 */
#include "kernels/cpu/cpu_amx.h"

#if defined(__x86_64__)
#include "kernels/cpu/cpu_masked.h"
#include "lib/base/pool.h"

enum {
    TILE = FM_AMX_TILE,
    BLOCK = FM_AMX_BLOCK,
    TASK_ROWS = 8 * BLOCK,
    PACK_COLS = 8 * BLOCK,
    AHEAD = 2 * BLOCK, /* columns */
    AT_ONCE = 4,       /* batches whose blocks fit into the L1 cache */
    CACHE_BYTES =
        1 << 20, /* bytes of b that stay in the L2 cache while panels of a are processed */
};

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))

struct amx {
    double *s;
    int per;
    struct fm_in W;
    const uint16_t *a, *b;
    const int32_t *first; /* (parts + 1) batch p begins at row first[p] - first[0] */
    int parts;
    int rows, H;      /* rows of W: per I */
    size_t panel;     /* numbers per panel of all batches, one batch after another */
    size_t *at;       /* (parts + 1) offset of each batch in a panel, in numbers */
    uint16_t *packed; /* b: batch p's panel j at tiles at[p] + j (at[p + 1] - at[p]) */
    size_t tiles;     /* number of panels of b */
};

static int rows_of(const struct amx *x, int p)
{
    return x->first[p + 1] - x->first[p];
}

/* Numbers per panel of batch p. */
static size_t panel_of(const struct amx *x, int p)
{
    return x->at[p + 1] - x->at[p];
}

/* Pack PACK_COLS columns of b. */
static void pack_columns(void *arg, int index)
{
    const struct amx *x = arg;
    int j = index * PACK_COLS;
    for (int p = 0; p < x->parts; p++) {
        uint16_t *to = x->packed + x->tiles * x->at[p] + (size_t)(j / TILE) * panel_of(x, p);
        const uint16_t *from = x->b + (size_t)(x->first[p] - x->first[0]) * (size_t)x->H;
        fm_amx_pack_columns(to, from + j, x->H, fm_cpu_at_most(x->H - j, PACK_COLS), rows_of(x, p));
    }
}

/* Rows of W of a task, and their columns of a: batch p's panel r is at tiles at[p] + r (at[p + 1] -
 * at[p]). */
struct strip {
    int first, rows;
    uint16_t *a;
    size_t tiles;
};

static void pack_rows(const struct strip *s, const struct amx *x)
{
    for (int p = 0; p < x->parts; p++) {
        const uint16_t *from = x->a + (size_t)(x->first[p] - x->first[0]) * (size_t)x->rows;
        uint16_t *to = s->a + s->tiles * x->at[p];
        fm_amx_pack_columns(to, from + s->first, x->rows, s->rows, rows_of(x, p));
        fm_amx_turn(to, s->tiles * panel_of(x, p) / FM_AMX_PIECE);
    }
}

/* lane (rows, TILE) += (W d)^2 for `count` blocks d, for `rows` rows of W from `row` on, columns
 * [j, j + BLOCK). */
TARGET static void square(float *lane, const struct amx *x, const float *d, int count, int row,
                          int rows, int j)
{
    const __m512 up = _mm512_set1_ps(0x1p32f);
    for (int i = 0; i < rows; i++, lane += TILE, d += BLOCK) {
        size_t at = (size_t)(row + i) * x->H + j;
        __m512 sum = _mm512_loadu_ps(lane);
        for (int half = 0; half < BLOCK && j + half < x->H; half += TILE) {
            __m512 w = fm_cpu_load_weights(x->W, at + half, fm_cpu_mask(x->H - j - half));
            w = _mm512_mul_ps(w, up);
            for (int p = 0; p < count; p++) {
                __m512 v = _mm512_mul_ps(w, _mm512_loadu_ps(d + p * BLOCK * BLOCK + half));
                sum = _mm512_fmadd_ps(v, v, sum);
            }
        }
        _mm512_storeu_ps(lane, sum);
    }
}

/* Prefetch the weights for the block at (row, j) or, if j is past the last column, for a block of
 * the next BLOCK rows: rows are too far apart for the hardware prefetcher. */
static void fetch_weights(const struct amx *x, int row, int j)
{
    size_t step = (size_t)(fm_dtype_bits(x->W.dtype) / 8), line = 64;
    if (j >= x->H) {
        row += BLOCK;
        j -= x->H;
    }
    for (int i = row; i < row + BLOCK && i < x->rows; i++)
        for (size_t at = 0; at < BLOCK * step; at += line)
            __builtin_prefetch((const char *)x->W.data + ((size_t)i * x->H + j) * step + at);
}

/* Columns of dW for which b's part stays in the cache: a multiple of BLOCK. */
static int find_columns(const struct amx *x)
{
    int cols = CACHE_BYTES / ((int)(x->panel / TILE * sizeof(uint16_t))) / BLOCK * BLOCK;
    return cols > 0 ? cols : BLOCK;
}

/* Compute the block at row r of the strip and column j, for as many batches at a time as fit into
 * the cache. */
static void score_block(float *lane, const struct amx *x, const struct strip *s, int r, int j)
{
    float d[AT_ONCE * BLOCK * BLOCK];
    for (int p = 0; p < x->parts;) {
        int count = 0;
        for (; count < AT_ONCE && p < x->parts; p++) {
            size_t panel = panel_of(x, p);
            if (panel == 0)
                continue;
            const uint16_t *left = s->a + s->tiles * x->at[p] + (size_t)(r / TILE) * panel;
            const uint16_t *right = x->packed + x->tiles * x->at[p] + (size_t)(j / TILE) * panel;
            fm_amx_multiply(d + count++ * BLOCK * BLOCK, BLOCK, false, left, right,
                            (int)(panel / FM_AMX_PIECE));
        }
        square(lane + r * TILE, x, d, count, s->first + r, fm_cpu_at_most(s->rows - r, BLOCK), j);
    }
}

/* Score TASK_ROWS rows of W. */
static void score_rows(void *arg, int index)
{
    const struct amx *x = arg;
    if (fm_pool_ending())
        return;
    struct strip s = {.first = index * TASK_ROWS};
    int cols = find_columns(x);
    float lane[TASK_ROWS * TILE] = {0};
    struct fm_mark mark = fm_scratch_mark();
    s.rows = fm_cpu_at_most(x->rows - s.first, TASK_ROWS);
    s.tiles = (size_t)((s.rows + BLOCK - 1) / BLOCK) * 2;
    s.a = fm_scratch(s.tiles * x->panel * sizeof *s.a);
    pack_rows(&s, x);
    fm_amx_begin();
    for (int from = 0; from < x->H; from += cols)
        for (int r = 0; r < s.rows; r += BLOCK)
            for (int j = from; j < x->H && j < from + cols; j += BLOCK) {
                fetch_weights(x, s.first + r, j + AHEAD);
                score_block(lane, x, &s, r, j);
            }
    fm_amx_end();
    for (int r = 0; r < s.rows; r++) {
        double sum = 0;
        for (int l = 0; l < TILE; l++)
            sum += lane[r * TILE + l];
        x->s[(s.first + r) / x->per] += sum * 0x1p-64;
    }
    fm_scratch_release(mark);
}

void fm_cpu_amx_scores(double *s, int per, struct fm_in W, const uint16_t *a, const uint16_t *b,
                       const int32_t *first, int parts, int I, int H)
{
    if (first[parts] <= first[0])
        return;
    struct fm_mark mark = fm_scratch_mark();
    struct amx x = {.s = s, .per = per, .W = W, .a = a, .b = b, .H = H};
    x.first = first;
    x.parts = parts;
    x.rows = per * I;
    x.at = fm_scratch(((size_t)parts + 1) * sizeof *x.at);
    x.at[0] = 0;
    for (int p = 0; p < parts; p++)
        x.at[p + 1] = x.at[p] + (size_t)fm_amx_steps(first[p + 1] - first[p]) * FM_AMX_PIECE;
    x.panel = x.at[parts];
    x.tiles = (size_t)((H + BLOCK - 1) / BLOCK) * 2;
    x.packed = fm_scratch(x.tiles * x.panel * sizeof *x.packed);
    fm_pool_for((H + PACK_COLS - 1) / PACK_COLS, pack_columns, &x);
    fm_pool_for((x.rows + TASK_ROWS - 1) / TASK_ROWS, score_rows, &x);
    fm_scratch_release(mark);
}

#else

void fm_cpu_amx_scores(double *s, int per, struct fm_in W, const uint16_t *a, const uint16_t *b,
                       const int32_t *first, int parts, int I, int H)
{
    (void)s, (void)per, (void)W, (void)a, (void)b, (void)first, (void)parts, (void)I, (void)H;
}
#endif
