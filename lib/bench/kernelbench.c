/*
 * Implementations are rows of a table.  Without a GPU, its rows are left out;
 * a case that an implementation cannot run takes 0 seconds.  A first round compares some tokens of
 * each output with the definition, and the largest error is reported with the figures.
 */
#include "lib/bench/kernelbench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops/kernels.h"
#include "lib/base/dtype.h"
#include "lib/base/mem.h"
#include "lib/bench/kernelcase.h"
#include "lib/bench/processor.h"

/* Implementations, in the order of the output. */
static const struct kernel {
    const char *name;
    bool checked;                                       /* its result is a layer's output */
    double (*run)(struct fm_kernelcase *c, int tokens); /* seconds; 0: it cannot run; NULL: GPU */
    int32_t path;                                       /* of the GPU */
} kernels[] = {{"oneDNN", false, fm_kernelcase_dnnl, 0},   {"naive", true, fm_kernelcase_naive, 0},
               {"cpu", true, fm_kernelcase_clip, 0},       {"gpu naive", true, NULL, FM_CLIP_NAIVE},
               {"gpu bucket", true, NULL, FM_CLIP_BUCKET}, {"gpu mma", true, NULL, FM_CLIP_MMA}};

/* Seconds of one run, or 0 if it is not available. */
static double run_kernel(const struct kernel *k, struct fm_kernelcase *c, int tokens)
{
    return k->run ? k->run(c, tokens) : fm_kernelcase_gpu(c, tokens, k->path);
}

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
    double size = c->layer.type == FM_CLIP_F32 ? 4 : 2, H = c->layer.H;
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
            size_t size = c->layer.type == FM_CLIP_F32 ? 4 : 2;
            fm_dtype_to_f32(&got, c->out + i * size,
                            c->layer.type == FM_CLIP_F32   ? FM_F32
                            : c->layer.type == FM_CLIP_F16 ? FM_F16
                                                           : FM_BF16,
                            1);
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
            double took = run_kernel(k, c, b->row[i].tokens);
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

/* Measure the machine's limits, and record the names of libfm_clip's path and the GPU. */
static void survey(struct fm_kernelbench *b, struct fm_kernelcase *c,
                   const struct fm_kernelbench_options *o)
{
    snprintf(b->path, sizeof b->path, "%s", fm_clip_name(c->clip));
    b->bandwidth = fm_kernelcase_bandwidth(c);
    b->peak = o->peak > 0 ? o->peak : fm_processor_peak(c->layer.type == FM_CLIP_BF16);
    if (c->gpu) {
        snprintf(b->gpu, sizeof b->gpu, "%s", fm_clip_gpu_name(c->gpu));
        b->gpu_bandwidth = fm_clip_gpu_bandwidth();
        b->gpu_peak = fm_clip_gpu_peak();
    }
}

static int run_all(struct fm_kernelbench *b, struct fm_kernelcase *c,
                   const struct fm_kernelbench_options *o, struct fm_err *err)
{
    if (fm_kernelcase_fill(c, err))
        return err->code;
    survey(b, c, o);
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
