/* Runs one case of lib/bench/kernelbench.c on the CPU, and measures the read bandwidth. */
#include "lib/bench/kernelcase.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/ops/kernels.h"
#include "lib/base/clock.h"
#include "lib/base/pool.h"

double fm_kernelcase_clip(struct fm_kernelcase *c, int tokens)
{
    struct fm_clip_call call = fm_kernelcase_call(c, tokens);
    double begin = fm_clock_now();
    int32_t code = fm_clip_forward(c->clip, &call, NULL);
    double seconds = fm_clock_now() - begin;
    return code == FM_CLIP_OK ? seconds : 0;
}

/* --- oneDNN: the products on prefixes of the same weights, without gate, sum or copies --- */

struct products {
    struct fm_kernelcase *c;
    const int *rows, *first; /* of each expert */
    int cols;                /* of a task */
    bool down;               /* the second product */
    bool refused;
};

static int columns_of(const struct products *p, int e)
{
    return p->down ? p->c->layer.H : 2 * p->c->widths[(int64_t)p->c->budget * p->c->layer.E + e];
}

/* Task i computes one block of columns, in all rows, of expert i / blocks. */
static void run_product(void *arg, int i)
{
    struct products *p = arg;
    struct fm_kernelcase *c = p->c;
    int H = c->layer.H, widest = p->down ? H : 2 * c->I, blocks = (widest + p->cols - 1) / p->cols;
    int e = i / blocks, at = i % blocks * p->cols, end = columns_of(p, e);
    int n = p->rows[e], cols = end - at < p->cols ? end - at : p->cols;
    int width = c->widths[(int64_t)c->budget * c->layer.E + e];
    bool bf16 = c->layer.type == FM_CLIP_BF16;
    size_t size = bf16 ? 2 : 4;
    if (n == 0 || cols <= 0 || width == 0)
        return;
    struct fm_mark mark = fm_scratch_mark();
    float *out = fm_scratch((size_t)n * (size_t)cols * sizeof *out);
    /* Any (n, I) numbers can be inputs of the second product. */
    const char *inner = (char *)c->sums;
    const char *weights = (p->down ? c->down : c->gate_up) +
                          (p->down ? (size_t)c->row0[e] * (size_t)H + (size_t)at
                                   : (2 * (size_t)c->row0[e] + (size_t)at) * (size_t)H) *
                              size;
    if (!fm_ops_dnnl_product(bf16, !p->down, n, cols, p->down ? width : H,
                             p->down ? inner : c->hidden, p->down ? c->I : H, weights, H, out))
        p->refused = true;
    fm_scratch_release(mark);
}

/* Time both products, in tasks of `cols` columns. */
static double time_products(struct fm_kernelcase *c, const int *rows, int cols)
{
    struct products p = {.c = c, .rows = rows, .cols = cols};
    double begin = fm_clock_now();
    fm_pool_for(c->layer.E * ((2 * c->I + cols - 1) / cols), run_product, &p);
    p.down = true;
    p.cols = cols < c->layer.H / 2 ? cols : (c->layer.H + 1) / 2;
    fm_pool_for(c->layer.E * ((c->layer.H + p.cols - 1) / p.cols), run_product, &p);
    double seconds = fm_clock_now() - begin;
    return p.refused ? 0 : seconds;
}

/* Find the block width that is fastest for these rows: one of four, each tried twice. */
static int find_cut(struct fm_kernelcase *c, const int *rows)
{
    static const int widths[] = {128, 256, 512, 1024};
    double best = INFINITY;
    int cut = widths[0];
    for (size_t i = 0; i < 2 * sizeof widths / sizeof *widths; i++) {
        fm_kernelcase_flush(c);
        double seconds = time_products(c, rows, widths[i % 4]);
        if (seconds > 0 && seconds < best) {
            best = seconds;
            cut = widths[i % 4];
        }
    }
    return cut;
}

double fm_kernelcase_dnnl(struct fm_kernelcase *c, int tokens)
{
    int *rows = malloc((size_t)c->layer.E * sizeof *rows);
    double seconds = 0;
    if (rows && c->layer.type != FM_CLIP_F16) {
        fm_kernelcase_rows(c, tokens, rows);
        if (!*c->cut) {
            *c->cut = find_cut(c, rows);
            fm_kernelcase_flush(c);
        }
        seconds = time_products(c, rows, *c->cut);
    }
    free(rows);
    return seconds;
}

/* --- the machine --- */

enum { READ_BLOCK = 1 << 20 };

struct reading {
    const char *from;
    uint64_t *sum; /* one per block, so that the compiler cannot skip a read */
};

static void read_block(void *arg, int i)
{
    const struct reading *r = arg;
    const uint64_t *p = (const void *)(r->from + (size_t)i * READ_BLOCK);
    uint64_t sum[8] = {0};
    for (int j = 0; j < READ_BLOCK / 8; j += 8)
        for (int k = 0; k < 8; k++)
            sum[k] += p[j + k];
    for (int k = 0; k < 8; k++)
        r->sum[i] += sum[k];
}

double fm_kernelcase_bandwidth(struct fm_kernelcase *c)
{
    size_t bytes = 2 * (size_t)(fm_kernelcase_bytes(c) / 3);
    int blocks = (int)(bytes / READ_BLOCK);
    struct reading r = {c->gate_up, calloc((size_t)blocks + 1, sizeof *r.sum)};
    double best = 0;
    for (int i = 0; i < 5 && r.sum && blocks > 0; i++) {
        fm_kernelcase_flush(c);
        double begin = fm_clock_now();
        fm_pool_for(blocks, read_block, &r);
        best = fmax(best, (double)blocks * READ_BLOCK / (fm_clock_now() - begin));
    }
    free(r.sum);
    return best;
}
