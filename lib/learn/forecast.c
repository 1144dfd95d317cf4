/*
 * The probe is a product that fits the cache, on all threads at once, in slices: a shared machine
 * gives each slice another rate, and the slowest and fastest bound what is said.  What would halve
 * the time is tried in the estimate's order: another precision of the same work first, then less
 * work.
 */
#include "lib/learn/forecast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"

#define PROBE 384
#define SLICES 4
#define SLICE_SECONDS 0.02
#define OTHERS (4.0 / 3) /* of a run beside its products */
#define HALF 0.55        /* what people would call half */

struct probe {
    const struct fm_ops *ops;
    const float *a, *b;
    float *c; /* one for each task */
};

static void multiply(void *arg, int i)
{
    const struct probe *p = arg;
    p->ops->gemm(false, true, PROBE, PROBE, PROBE, 1, fm_f32(p->a), PROBE, fm_f32(p->b), PROBE, 0,
                 p->c + (size_t)i * PROBE * PROBE, PROBE);
}

static int run_slice(double *rate, struct probe *probe, struct fm_err *err)
{
    int threads = fm_pool_threads(), rc = FM_OK;
    double began = fm_clock_now(), spent = 0, flops = 0;
    while (!rc && spent < SLICE_SECONDS) {
        fm_pool_for(threads, multiply, probe);
        rc = probe->ops->device->sync(err);
        flops += 2.0 * PROBE * PROBE * PROBE * threads;
        spent = fm_clock_now() - began;
    }
    *rate = flops / spent;
    return rc;
}

/* FLOP/s of products by `ops`: of the slowest slice and of the fastest. */
static int probe_rate(double *least, double *most, const struct fm_ops *ops, struct fm_err *err)
{
    size_t n = (size_t)PROBE * PROBE, floats = (2 + (size_t)fm_pool_threads()) * n;
    float *host = fm_alloc(2 * n, sizeof *host, "a probe", err);
    float *a = host ? ops->device->alloc(floats * sizeof *a, "a probe", err) : NULL;
    if (!a) {
        free(host);
        return FM_ENOMEM;
    }
    for (size_t i = 0; i < 2 * n; i++)
        host[i] = (float)(i % 7) - 3;
    ops->device->copy_in(a, host, 2 * n * sizeof *a);
    free(host);
    struct probe probe = {ops, a, a + n, a + 2 * n};
    /* The first product makes the library's estimate. */
    multiply(&probe, 0);
    int rc = ops->device->sync(err);
    *least = INFINITY;
    *most = 0;
    for (int i = 0; !rc && i < SLICES; i++) {
        double rate;
        rc = run_slice(&rate, &probe, err);
        *least = fmin(*least, rate);
        *most = fmax(*most, rate);
    }
    ops->device->free(a);
    return rc;
}

/* The same work in bfloat16, where this machine multiplies it that much faster. */
static int try_precision(struct fm_forecast *f, const struct fm_estimate *estimate,
                         const struct fm_run_options *run, const struct fm_ops *now,
                         struct fm_err *err)
{
    struct fm_run_options other = *run;
    const struct fm_ops *ops;
    double least, most;
    other.precision = FM_PRECISION_BF16;
    other.ops = NULL;
    struct fm_err none = {0};
    if (f->assumed || f->ranks > 1 || now->operand == FM_BF16 ||
        fm_run_ops(&ops, &other, FM_F32, &none))
        return FM_OK;
    int rc = probe_rate(&least, &most, ops, err);
    if (rc || f->rate_most > HALF * most)
        return rc;
    f->halved =
        (struct fm_estimate_change){.options = "--precision bf16", .flops = estimate->flops};
    f->halved_seconds = estimate->flops / least * OTHERS;
    return FM_OK;
}

static void try_changes(struct fm_forecast *f, const struct fm_estimate *estimate)
{
    for (int i = 0; i < estimate->changes && !f->halved.options[0]; i++) {
        double seconds = estimate->change[i].flops / f->rate_least * OTHERS;
        if (seconds > HALF * f->seconds_most)
            continue;
        f->halved = estimate->change[i];
        f->halved_seconds = seconds;
    }
}

/* The share of the work that the busiest of so many ranks has. */
static double share_of(const struct fm_estimate *estimate, int ranks)
{
    double part = 0;
    for (int i = 0; i < estimate->kinds; i++) {
        int leaves = estimate->kind[i].leaves;
        part += estimate->kind[i].flops * ((leaves + ranks - 1) / ranks) / leaves;
    }
    return estimate->flops > 0 ? part / estimate->flops : 1;
}

/* How many have work in the sweeps that cost most. */
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

int fm_forecast_make(struct fm_estimate *estimate, const struct fm_run_options *run,
                     const struct fm_ops *ops, struct fm_err *err)
{
    struct fm_forecast *f = &estimate->forecast;
    *f = (struct fm_forecast){.assumed = run->assume_rate > 0, .threads = fm_pool_threads()};
    f->rate_least = f->rate_most = run->assume_rate * 1e9;
    int rc = f->assumed ? FM_OK : probe_rate(&f->rate_least, &f->rate_most, ops, err);
    if (rc)
        return rc;
    f->ranks = fm_comm_size(run->comm);
    f->working = working_ranks(estimate, f->ranks);
    double part = share_of(estimate, f->ranks);
    f->rate_least /= part;
    f->rate_most /= part;
    f->seconds_least = estimate->flops / f->rate_most * OTHERS;
    f->seconds_most = estimate->flops / f->rate_least * OTHERS;
    rc = try_precision(f, estimate, run, ops, err);
    if (!rc)
        try_changes(f, estimate);
    return rc;
}

double fm_forecast_cores(const struct fm_forecast *f, int cores)
{
    return f->seconds_most * f->threads / cores;
}

double fm_forecast_ranks(const struct fm_estimate *estimate, int ranks)
{
    return estimate->forecast.seconds_most * share_of(estimate, ranks);
}
