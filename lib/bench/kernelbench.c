/*
 * Implementations are rows of a table.  Without a GPU, its rows are left out;
 * a case that an implementation cannot run takes 0 seconds.  A first round compares some tokens of
 * each output with the definition, and the largest error is reported with the figures.
 */
#include "lib/bench/kernelbench.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops/kernels.h"
#include "lib/base/clock.h"
#include "lib/base/dtype.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/bench/kernelcase.h"
#include "lib/bench/processor.h"

/* Implementations: seconds of one run at c->budget, or 0 if it is not available. */

static double run_clip(struct fm_kernelcase *c, int tokens)
{
    struct fm_clip_call call = fm_kernelcase_call(c, tokens);
    double begin = fm_clock_now();
    int32_t code = fm_clip_forward(c->clip, &call, NULL);
    double seconds = fm_clock_now() - begin;
    return code == FM_CLIP_OK ? seconds : 0;
}

/* ---- oneDNN: the products on prefixes of the same weights, without gate, sum or copies ---- */

struct products {
    struct fm_kernelcase *c;
    const int *rows; /* of each expert */
    int cols;        /* of a task */
    bool down;       /* the second product */
    bool refused;
};

/* Task i computes one block of columns, in all rows, of expert i / blocks. */
static void run_product(void *arg, int i)
{
    struct products *p = arg;
    struct fm_kernelcase *c = p->c;
    int H = c->layer.H, widest = p->down ? H : 2 * c->I, blocks = (widest + p->cols - 1) / p->cols;
    int e = i / blocks, width = c->widths[(int64_t)c->budget * c->layer.E + e];
    int at = i % blocks * p->cols, end = p->down ? H : 2 * width;
    int n = p->rows[e], cols = end - at < p->cols ? end - at : p->cols;
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

static double run_dnnl(struct fm_kernelcase *c, int tokens)
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

/* ---- the machine ---- */

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

/* Read bandwidth of the machine in bytes/s. */
static double measure_bandwidth(struct fm_kernelcase *c)
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

/* ---- the table ---- */

/* Implementations, in the order of the output. */
static const struct kernel {
    const char *name;
    bool checked;                                       /* its result is a layer's output */
    double (*run)(struct fm_kernelcase *c, int tokens); /* seconds; 0: it cannot run; NULL: GPU */
    int32_t path;                                       /* of the GPU */
} kernels[] = {{"oneDNN", false, run_dnnl, 0},
               {"naive", true, fm_kernelcase_naive, 0},
               {"cpu", true, run_clip, 0},
               {"gpu naive", true, NULL, FM_CLIP_NAIVE},
               {"gpu bucket", true, NULL, FM_CLIP_BUCKET},
               {"gpu mma", true, NULL, FM_CLIP_MMA}};

enum { KERNELS = sizeof kernels / sizeof *kernels };

/* Implementations available here. */
static int choose_kernels(const struct kernel *chosen[KERNELS], const struct fm_kernelcase *c)
{
    int count = 0;
    for (int k = 0; k < KERNELS; k++)
        if (kernels[k].run || c->gpu)
            chosen[count++] = &kernels[k];
    return count;
}

/* Count the FLOPs and the bytes of the routed rows. */
static void count_work(struct fm_kernelbench_row *r, const struct fm_kernelcase *c, const int *rows)
{
    double size = fm_dtype_bits(c->dtype) / 8, H = c->layer.H;
    for (int e = 0; e < c->layer.E; e++) {
        double k = c->widths[(int64_t)c->budget * c->layer.E + e], n = rows[e];
        r->flops += 6 * n * H * k;
        r->bytes += n > 0 ? size * (3 * H * k + n * (2 * H + 2 * k)) : 0;
    }
}

/* The largest error over some tokens of the current output. */
static double measure_error(struct fm_kernelcase *c, int tokens)
{
    int n = tokens < FM_KERNELCASE_CHECKED ? tokens : FM_KERNELCASE_CHECKED;
    size_t H = (size_t)c->layer.H;
    double *want = malloc((size_t)n * H * 2 * sizeof *want), worst = NAN;
    struct fm_clip_call call = fm_kernelcase_call(c, n);
    if (want && fm_clip_reference(want, want + (size_t)n * H, &c->layer, &call, NULL) == 0) {
        worst = 0;
        for (size_t i = 0; i < (size_t)n * H; i++) {
            float got;
            fm_dtype_to_f32(&got, c->out + i * (size_t)fm_dtype_bits(c->dtype) / 8, c->dtype, 1);
            double error = fabs((double)got - want[i]) / want[(size_t)n * H + i];
            worst = error > worst || isnan(error) ? error : worst;
        }
    }
    free(want);
    return worst;
}

/* Fill the rows, except for their times. */
static int lay_out(struct fm_kernelbench *b, struct fm_kernelcase *c, const int *tokens,
                   struct fm_err *err)
{
    const struct kernel *here[KERNELS];
    int n = choose_kernels(here, c), count = 0;
    while (tokens[count])
        count++;
    int *rows = fm_alloc((size_t)c->layer.E, sizeof *rows, "rows of experts", err);
    b->row = fm_alloc((size_t)(count * n * c->layer.B), sizeof *b->row, "rows", err);
    if (!rows || !b->row) {
        free(rows);
        return err->code;
    }
    for (int t = 0; t < count; t++)
        for (int k = 0; k < n; k++)
            for (c->budget = 0; c->budget < c->layer.B; c->budget++) {
                struct fm_kernelbench_row *r = &b->row[b->rows++];
                *r = (struct fm_kernelbench_row){.kernel = here[k]->name, .tokens = tokens[t]};
                r->budget = c->share[c->budget];
                r->experts = fm_kernelcase_rows(c, tokens[t], rows);
                r->error = NAN;
                count_work(r, c, rows);
                r->ideal = r->flops > 0 ? r[-c->budget].flops / r->flops : 1;
                r->roofline = !here[k]->run ? fmax(b->gpu_peak > 0 ? r->flops / b->gpu_peak : 0,
                                                   r->bytes / b->gpu_bandwidth)
                                            : fmax(r->flops / b->peak, r->bytes / b->bandwidth);
            }
    assert(b->rows == count * n * c->layer.B); /* measure() finds a row's kernel by its number */
    free(rows);
    return FM_OK;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Run every case once per round; a first round is not timed and checks the results. */
static int measure(struct fm_kernelbench *b, struct fm_kernelcase *c,
                   const struct fm_kernelbench_options *o, struct fm_err *err)
{
    const int repeat = o->repeat;
    const struct kernel *here[KERNELS];
    int n = choose_kernels(here, c);
    double *seconds = fm_alloc((size_t)(b->rows * repeat), sizeof *seconds, "times", err);
    int *cut = fm_alloc((size_t)b->rows, sizeof *cut, "cuts", err);
    if (!seconds || !cut) {
        free(seconds);
        free(cut);
        return err->code;
    }
    for (int round = -1; round < repeat; round++)
        for (int i = 0; i < b->rows && !(o->stop && *o->stop); i++) {
            const struct kernel *k = here[i / c->layer.B % n];
            c->budget = i % c->layer.B;
            fm_kernelcase_flush(c);
            c->cut = &cut[i];
            double took = k->run ? k->run(c, b->row[i].tokens)
                                 : fm_kernelcase_gpu(c, b->row[i].tokens, k->path);
            if (round < 0 && k->checked && took > 0)
                b->row[i].error = measure_error(c, b->row[i].tokens);
            else if (round >= 0)
                seconds[i * repeat + round] = took;
        }
    for (int i = 0; i < b->rows; i++) {
        qsort(seconds + (size_t)i * (size_t)repeat, (size_t)repeat, sizeof *seconds, by_size);
        bool always = seconds[i * repeat] > 0;
        b->row[i].seconds = always ? seconds[i * repeat + repeat / 2] : 0;
        double full = b->row[i - i % c->layer.B].seconds;
        b->row[i].speedup = b->row[i].seconds > 0 ? full / b->row[i].seconds : 0;
    }
    free(seconds);
    free(cut);
    return o->stop && *o->stop ? fm_fail(err, FM_ESAVED, "stopped by a signal") : FM_OK;
}

static void describe(struct fm_kernelbench *b, const struct fm_kernelcase *c)
{
    b->H = c->layer.H;
    b->I = c->I;
    b->E = c->layer.E;
    b->K = c->K;
    b->threads = c->threads;
    b->bytes = fm_kernelcase_bytes(c);
    fm_ops_dnnl_version(b->dnnl, sizeof b->dnnl);
    fm_processor_name(b->cpu, sizeof b->cpu);
}

static int run_all(struct fm_kernelbench *b, struct fm_kernelcase *c,
                   const struct fm_kernelbench_options *o, struct fm_err *err)
{
    if (fm_kernelcase_fill(c, err))
        return err->code;
    /* The machine's limits, and the names of libfm_clip's path and of the GPU. */
    snprintf(b->path, sizeof b->path, "%s", fm_clip_name(c->clip));
    b->bandwidth = measure_bandwidth(c);
    b->peak = o->peak > 0 ? o->peak : fm_processor_peak(c->layer.type == FM_CLIP_BF16);
    if (c->gpu) {
        snprintf(b->gpu, sizeof b->gpu, "%s", fm_clip_gpu_name(c->gpu));
        b->gpu_bandwidth = fm_clip_gpu_bandwidth();
        b->gpu_peak = fm_clip_gpu_peak();
    }
    int rc = lay_out(b, c, o->tokens, err);
    return rc ? rc : measure(b, c, o, err);
}

int fm_kernelbench_run(const struct fm_kernelbench_options *o, bool dry_run,
                       struct fm_kernelbench *result, struct fm_err *err)
{
    struct fm_kernelcase c = {0};
    *result = (struct fm_kernelbench){.dtype = o->dtype};
    int rc = fm_kernelcase_shape(&c, o, err);
    for (const int *tokens = o->tokens; *tokens; tokens++)
        c.tokens_max = *tokens > c.tokens_max ? *tokens : c.tokens_max;
    if (!rc)
        describe(result, &c);
    if (!rc && !dry_run)
        rc = run_all(result, &c, o, err);
    fm_kernelcase_release(&c);
    return rc;
}

void fm_kernelbench_release(struct fm_kernelbench *result)
{
    free(result->row);
    *result = (struct fm_kernelbench){0};
}
