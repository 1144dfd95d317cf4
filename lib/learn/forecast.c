/*
 * The probe multiplies matrices that fit into the cache, on all threads at once, in several slices
 * of time.  In float32 a small product suffices, because it is as fast as the engine's products.
 * With bfloat16 operands the product has the rows and widths of an expert, because packing the
 * operands takes part of the time.  On a shared machine the rates of the slices differ; the slowest
 * but one and the fastest give the bounds of the forecast.  Changes that could halve the time are
 * tried in this order: a different precision for the same work, then less work, in the order of the
 * estimate.  Weights that are read are also decoded, converted and reordered, which takes most
 * of the time if an expert has few tokens.  The conversion of values that are not in the cache is
 * measured too; a weight that is read counts as several such conversions.
 */
#include "lib/learn/forecast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"

#define SLICES 5
#define SLICE_SECONDS 0.02
#define HALF 0.55                 /* largest share of the time that still counts as half */
#define LOADED ((int64_t)8 << 20) /* values converted by the probe: more than fit into a cache */
#define PASSES 10 /* time of a weight that is read, divided by that of such a conversion */

/* A run's time divided by that of its products at the rate of the probe.  Other operations are in
 * float32 in both precisions.  Measured with bfloat16 on AMX: 1.5 for ranking, 2.4 for recovery. */
static double others(const struct fm_ops *ops)
{
    return ops->operand == FM_F32 ? 4.0 / 3 : 2;
}

struct probe {
    const struct fm_ops *ops;
    int M, N, K;
    struct fm_in a, b;
    float *c; /* one per thread */
};

static void multiply(void *arg, int i)
{
    const struct probe *p = arg;
    p->ops->gemm(false, true, p->M, p->N, p->K, 1, p->a, p->K, p->b, p->K, 0,
                 p->c + (size_t)i * (size_t)p->M * (size_t)p->N, p->N);
}

static double slice_rate(struct probe *probe)
{
    int threads = fm_pool_threads();
    double began = fm_clock_now(), spent = 0, flops = 0;
    while (spent < SLICE_SECONDS) {
        fm_pool_for(threads, multiply, probe);
        flops += 2.0 * probe->M * probe->N * probe->K * threads;
        spent = fm_clock_now() - began;
    }
    return flops / spent;
}

/* Allocate one block for the `c` arrays and both operands, and fill the operands with small
 * integers, which are exact in every type. */
static int fill_probe(struct probe *p, struct fm_err *err)
{
    enum fm_dtype dtype = p->ops->operand;
    size_t a = (size_t)p->M * (size_t)p->K, n = a + (size_t)p->N * (size_t)p->K;
    size_t c = (size_t)p->M * (size_t)p->N * (size_t)fm_pool_threads();
    p->c = fm_alloc_large((c + 2 * n) * sizeof *p->c, "a probe", err);
    if (!p->c)
        return err->code;
    struct fm_out all = {p->c + c, dtype};
    float *wide = p->c + c + n;
    for (size_t i = 0; i < n; i++)
        wide[i] = (float)(i % 7) - 3;
    p->ops->convert(all, (int64_t)n, fm_f32(wide), NULL, 1, (int64_t)n);
    p->a = fm_written(all);
    p->b = fm_element(p->a, a);
    return FM_OK;
}

/* FLOP/s of products by `ops`, in the slowest but one and in the fastest slice: the slowest may
 * have been interrupted. */
static int probe_rate(double *least, double *most, const struct fm_ops *ops, struct fm_err *err)
{
    bool narrow = ops->operand != FM_F32;
    struct probe probe = narrow ? (struct probe){.ops = ops, .M = 512, .N = 1024, .K = 1024}
                                : (struct probe){.ops = ops, .M = 384, .N = 384, .K = 384};
    if (fill_probe(&probe, err))
        return err->code;
    /* The first call includes the library's initialisation. */
    multiply(&probe, 0);
    double slowest = INFINITY;
    *least = INFINITY;
    *most = 0;
    for (int i = 0; i < SLICES; i++) {
        double rate = slice_rate(&probe);
        *least = fmin(*least, fmax(slowest, rate));
        slowest = fmin(slowest, rate);
        *most = fmax(*most, rate);
    }
    free(probe.c);
    return FM_OK;
}

/* Seconds to convert `values` weights that are read. */
static int probe_loading(double *seconds, double values, const struct fm_ops *ops,
                         struct fm_err *err)
{
    size_t bytes = (size_t)LOADED * (sizeof(float) + sizeof(uint16_t));
    float *wide = fm_alloc_large(bytes, "a probe", err);
    if (!wide)
        return err->code;
    memset(wide, 0, bytes);
    const struct fm_in from = {.data = wide + LOADED, .dtype = FM_BF16};
    double least = INFINITY;
    for (int i = 0; i < SLICES; i++) {
        double began = fm_clock_now();
        ops->convert((struct fm_out){wide, FM_F32}, LOADED, from, NULL, 1, LOADED);
        least = fmin(least, fm_clock_now() - began);
    }
    *seconds = PASSES * values * least / (double)LOADED;
    free(wide);
    return FM_OK;
}

/* Suggest bfloat16 if this machine multiplies it fast enough to halve the time. */
static int try_precision(struct fm_forecast *f, const struct fm_estimate *estimate,
                         const struct fm_machine *machine, const struct fm_ops *now,
                         struct fm_err *err)
{
    struct fm_machine other = *machine;
    const struct fm_ops *ops;
    double least, most;
    other.precision = FM_PRECISION_BF16;
    other.ops = NULL;
    struct fm_err none = {0};
    if (f->ranks > 1 || now->operand == FM_BF16 || fm_machine_ops(&ops, &other, FM_F32, &none))
        return FM_OK;
    int rc = probe_rate(&least, &most, ops, err);
    if (rc || others(ops) / most > HALF * others(now) / f->rate_most)
        return rc;
    f->halved =
        (struct fm_estimate_change){.options = "--precision bf16", .flops = estimate->flops};
    f->halved_seconds = estimate->flops / least * others(ops) + f->loading;
    return FM_OK;
}

static void try_changes(struct fm_forecast *f, const struct fm_estimate *estimate,
                        const struct fm_ops *ops)
{
    for (int i = 0; i < estimate->changes && !f->halved.options[0]; i++) {
        double seconds = estimate->change[i].flops / f->rate_least * others(ops) + f->loading;
        if (seconds > HALF * f->seconds_most)
            continue;
        f->halved = estimate->change[i];
        f->halved_seconds = seconds;
    }
}

/* The share of the work that the busiest of `ranks` ranks has. */
static double share_of(const struct fm_estimate *estimate, int ranks)
{
    double part = 0;
    for (int i = 0; i < estimate->kinds; i++) {
        int leaves = estimate->kind[i].leaves;
        part += estimate->kind[i].flops * ((leaves + ranks - 1) / ranks) / leaves;
    }
    return estimate->flops > 0 ? part / estimate->flops : 1;
}

/* Number of ranks that have work in the most expensive kind of sweep. */
static int working_ranks(const struct fm_estimate *estimate, int ranks)
{
    double most = 0;
    int working = ranks;
    for (int i = 0; i < estimate->kinds; i++) {
        if (estimate->kind[i].flops > most)
            working = estimate->kind[i].leaves < ranks ? estimate->kind[i].leaves : ranks;
        most = fmax(most, estimate->kind[i].flops);
    }
    return working;
}

int fm_forecast_make(struct fm_estimate *estimate, const struct fm_machine *machine,
                     const struct fm_ops *ops, struct fm_err *err)
{
    struct fm_forecast *f = &estimate->forecast;
    *f = (struct fm_forecast){.threads = fm_pool_threads()};
    if (probe_rate(&f->rate_least, &f->rate_most, ops, err) ||
        probe_loading(&f->loading, estimate->values, ops, err))
        return err->code;
    f->ranks = fm_comm_size(machine->comm);
    f->working = working_ranks(estimate, f->ranks);
    double part = share_of(estimate, f->ranks);
    f->rate_least /= part;
    f->rate_most /= part;
    f->seconds_least = estimate->flops / f->rate_most * others(ops) + f->loading;
    f->seconds_most = estimate->flops / f->rate_least * others(ops) + f->loading;
    int rc = try_precision(f, estimate, machine, ops, err);
    if (!rc)
        try_changes(f, estimate, ops);
    return rc;
}

double fm_forecast_cores(const struct fm_forecast *f, int cores)
{
    return f->seconds_most * f->threads / cores;
}

double fm_forecast_ranks(const struct fm_estimate *estimate, int ranks)
{
    const struct fm_forecast *f = &estimate->forecast;
    return (f->seconds_most - f->loading) * share_of(estimate, ranks) + f->loading;
}
