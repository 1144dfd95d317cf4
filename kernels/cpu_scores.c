#include "kernels/cpu.h"
#include "kernels/dnnl.h"
#include "kernels/ops.h"
#include "lib/base/pool.h"

/*
 * A tile of dW: rows of SCORE_CHANNELS channels, SCORE_COLS columns, so that it stays in a core's
 * second-level cache between the product and the sum.
 */
enum { SCORE_CHANNELS = 128, SCORE_COLS = 1024 };

/* dW is made 2^32 times as large, which is exact, so that squares of small gradients do not
 * underflow in float: |theta dtheta| may lie anywhere in 1e-28 .. 4e9. */
static const float scale_up = 0x1p32f;
static const double scale_down = 0x1p-64;

struct scores {
    fm_product *product;
    double *s;
    const float *gate_up, *down, *dgu, *x, *h, *dy;
    int n, I, H;
};

/* sum of (w d)^2, as fm_dot. */
FM_INLINE double sum_squares(const float *w, const float *d, int n)
{
    float lane[FM_LANES] = {0};
    int i = 0;
    for (; i + FM_LANES <= n; i += FM_LANES)
        for (int l = 0; l < FM_LANES; l++)
            lane[l] += (w[i + l] * d[i + l]) * (w[i + l] * d[i + l]);
    for (int l = 0; i < n; i++, l++)
        lane[l] += (w[i] * d[i]) * (w[i] * d[i]);
    return fm_add_lanes(lane);
}

/* s[i / per] += row i of W (ld apart) against row i of the tile D (rows, cols). */
FM_CLONES static void add_tile(double *s, int per, const float *w, int ld, const float *d, int rows,
                               int cols)
{
    for (int i = 0; i < rows; i++)
        s[i / per] += sum_squares(w + (int64_t)i * ld, d + (int64_t)i * cols, cols);
}

/* s[i / per] += (W * dW)^2 summed, over `rows` rows of W (rows, H); dW = a^T b with a (n, rows),
 * its rows lda apart, and b (n, H). */
static void score_rows(const struct scores *a, double *s, int per, const float *w,
                       const float *left, int lda, const float *b, int rows)
{
    struct fm_mark mark = fm_scratch_mark();
    int most = a->H < SCORE_COLS ? a->H : SCORE_COLS;
    float *d = fm_scratch((size_t)rows * most * sizeof *d);
    for (int j = 0; j < a->H; j += most) {
        int cols = a->H - j < most ? a->H - j : most;
        a->product(true, false, rows, cols, a->n, scale_up, left, lda, b + j, a->H, 0, d, cols);
        add_tile(s, per, w + j, a->H, d, rows, cols);
    }
    fm_scratch_release(mark);
}

static void score_channels(void *arg, int index)
{
    const struct scores *a = arg;
    int j = index * SCORE_CHANNELS;
    int channels = a->I - j < SCORE_CHANNELS ? a->I - j : SCORE_CHANNELS;
    double sum[SCORE_CHANNELS] = {0};
    score_rows(a, sum, 2, a->gate_up + 2 * (size_t)j * a->H, a->dgu + 2 * j, 2 * a->I, a->x,
               2 * channels);
    score_rows(a, sum, 1, a->down + (size_t)j * a->H, a->h + j, a->I, a->dy, channels);
    for (int i = 0; i < channels; i++)
        a->s[j + i] += sum[i] * scale_down;
}

static void score_all(struct scores *a)
{
    fm_pool_for((a->I + SCORE_CHANNELS - 1) / SCORE_CHANNELS, score_channels, a);
}

void cpu_channel_scores(double *s, const float *gate_up, const float *down, const float *dgu,
                        const float *x, const float *h, const float *dy, int n, int I, int H)
{
    score_all(&(struct scores){fm_dnnl_sgemm, s, gate_up, down, dgu, x, h, dy, n, I, H});
}

void cpu_bf16_channel_scores(double *s, const float *gate_up, const float *down, const float *dgu,
                             const float *x, const float *h, const float *dy, int n, int I, int H)
{
    score_all(&(struct scores){fm_cpu_bf16_product, s, gate_up, down, dgu, x, h, dy, n, I, H});
}
