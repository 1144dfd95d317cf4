/*
 * Every budget in turn, round after round, then a budget that changes at every step; medians over
 * the rounds.  Each figure has its bound beside it: what the step would take if experts were as
 * fast as their share of channels and everything else as slow as before.
 */
#include "lib/bench/servebench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/bench/machine.h"
#include "lib/bench/servecase.h"
#include "lib/bench/shapes.h"

/* Seconds of all rounds. */
struct times {
    int rounds, steps;
    double *prefill; /* (B, rounds) */
    double *step;    /* (B + 1, steps, rounds); the last: the budget changes at every step */
};

/* What experts did in all rounds, of one budget. */
struct share {
    struct fm_serve_work prefill, decode;
    double prefill_seconds, decode_seconds;
};

static double *step_times(const struct times *t, int b, int step)
{
    return t->step + ((size_t)b * (size_t)t->steps + (size_t)step) * (size_t)t->rounds;
}

/* Take what was counted since the last time. */
static void gather_work(struct fm_servecase *c, struct fm_serve_work *to)
{
    to->seconds += c->work.seconds;
    to->channels += c->work.channels;
    to->touched += c->work.touched;
    c->work = (struct fm_serve_work){0};
}

static int check_stop(const struct fm_run_options *run, struct fm_err *err)
{
    return run->stop && *run->stop ? fm_fail(err, FM_ESAVED, "stopped by a signal") : FM_OK;
}

/* All sequences' next `steps` positions; row B of the times is the one with changing budgets. */
static int decode(struct fm_servecase *c, struct times *t, int row, int round,
                  const struct fm_run_options *run, struct fm_err *err)
{
    for (int i = 0; i < t->steps; i++) {
        if (check_stop(run, err))
            return err->code;
        double begin = fm_clock_now();
        c->budget = row < c->B ? row : i % c->B;
        if (fm_servecase_step(c, c->prompt + i, err))
            return err->code;
        step_times(t, row, i)[round] = fm_clock_now() - begin;
    }
    return FM_OK;
}

static int serve_budget(struct fm_servecase *c, struct times *t, struct share *s, int b, int round,
                        const struct fm_run_options *run, struct fm_err *err)
{
    c->work = (struct fm_serve_work){0};
    c->budget = b;
    double begin = fm_clock_now();
    if (fm_servecase_prefill(c, err))
        return err->code;
    double took = fm_clock_now() - begin;
    t->prefill[b * t->rounds + round] = took;
    s->prefill_seconds += took;
    gather_work(c, &s->prefill);
    begin = fm_clock_now();
    if (decode(c, t, b, round, run, err))
        return err->code;
    s->decode_seconds += fm_clock_now() - begin;
    gather_work(c, &s->decode);
    return FM_OK;
}

/* Every budget once per round, beginning with another one each time; then changing ones, on the
 * cache that the last one left, which is as long. */
static int serve(struct fm_servecase *c, struct times *t, struct share *share,
                 const struct fm_run_options *run, struct fm_err *err)
{
    c->budget = 0;
    if (fm_servecase_prefill(c, err) || /* what is compiled at first use, is now */
        fm_servecase_step(c, c->prompt, err))
        return err->code;
    for (int round = 0; round < t->rounds; round++) {
        for (int i = 0; i < c->B; i++) {
            int b = (round + i) % c->B;
            if (serve_budget(c, t, &share[b], b, round, run, err))
                return err->code;
            fm_run_report(run, "serve", (uint64_t)(round * c->B + i + 1),
                          (uint64_t)(t->rounds * c->B), "runs");
        }
        if (decode(c, t, c->B, round, run, err))
            return err->code;
    }
    return FM_OK;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, by_size);
    return (seconds[(count - 1) / 2] + seconds[count / 2]) / 2;
}

/* Bytes of the channels that no budget from b on uses. */
static uint64_t freed_bytes(const struct fm_servecase *c, int b)
{
    const struct fm_config *g = &c->config;
    uint64_t channels = 0;
    for (int l = 0; l < g->L; l++)
        for (int e = 0; e < g->E; e++) {
            int32_t widest = 0;
            for (int i = b; i < c->B; i++)
                if (c->layer[l].widths[i * g->E + e] > widest)
                    widest = c->layer[l].widths[i * g->E + e];
            channels += (uint64_t)(g->I - widest);
        }
    return channels * (fm_servecase_expert_bytes(c) / (uint64_t)g->E / (uint64_t)g->I);
}

static void summarise(struct fm_servebench *s, const struct fm_servecase *c, struct times *t,
                      const struct share *share)
{
    s->rows = c->B;
    for (int b = 0; b < c->B; b++) {
        struct fm_servebench_row *r = &s->row[b];
        r->prefill = median(t->prefill + b * t->rounds, t->rounds);
        for (int i = 0; i < t->steps; i++)
            r->decode += median(step_times(t, b, i), t->rounds);
        if (c->on_gpu) { /* all experts alike; how long they take is not seen inside a graph */
            r->prefill_ideal = r->decode_ideal = 1 / (1 - r->budget);
            r->prefill_experts = r->decode_experts = NAN;
            continue;
        }
        r->prefill_experts = share[b].prefill.seconds / share[b].prefill_seconds;
        r->decode_experts = share[b].decode.seconds / share[b].decode_seconds;
        r->prefill_ideal = share[0].prefill.channels / share[b].prefill.channels;
        r->decode_ideal = share[0].decode.touched / share[b].decode.touched;
    }
    for (int i = 0; i < t->steps; i++) {
        s->switched += median(step_times(t, c->B, i), t->rounds);
        s->held += median(step_times(t, i % c->B, i), t->rounds);
    }
}

static int measure(struct fm_servebench *s, struct fm_servecase *c,
                   const struct fm_run_options *run, int rounds, struct fm_err *err)
{
    struct times t = {rounds, c->decode, NULL, NULL};
    struct share *share = fm_alloc((size_t)c->B, sizeof *share, "sums", err);
    size_t steps = (size_t)(c->B + 1) * (size_t)c->decode;
    if (share)
        t.prefill = fm_alloc((size_t)(c->B * rounds), sizeof *t.prefill, "times", err);
    if (t.prefill)
        t.step = fm_alloc(steps * (size_t)rounds, sizeof *t.step, "times", err);
    if (t.step && !serve(c, &t, share, run, err))
        summarise(s, c, &t, share);
    free(share);
    free(t.prefill);
    free(t.step);
    return err->code;
}

static void describe(struct fm_servebench *s, const struct fm_servecase *c,
                     const struct fm_servebench_options *o)
{
    const struct fm_config *g = &c->config;
    s->H = g->H;
    s->I = g->I;
    s->E = g->E;
    s->K = g->K;
    s->Q = g->Q;
    s->G = g->G;
    s->C = g->C;
    s->layers = g->L;
    s->model_layers = c->model_layers;
    s->batch = c->batch;
    s->prompt = c->prompt;
    s->decode = c->decode;
    s->threads = c->threads;
    const struct fm_shape *shape = o->shape ? fm_shapes_find(o->shape) : NULL;
    s->shared = shape && shape->shared;
    s->bytes = (uint64_t)g->L * fm_servecase_layer_bytes(c);
    s->token_bytes = (uint64_t)g->L * fm_servecase_cache_bytes(c);
    fm_machine_processor(s->cpu, sizeof s->cpu);
    s->budgets = c->B;
    for (int b = 0; b < c->B; b++) {
        s->row[b].budget = c->share[b];
        s->row[b].freed = freed_bytes(c, b);
    }
}

int fm_servebench_run(const struct fm_run_options *run, const struct fm_servebench_options *o,
                      bool dry_run, struct fm_servebench *result, struct fm_err *err)
{
    struct fm_servecase *c = fm_alloc(1, sizeof *c, "the loop", err);
    *result = (struct fm_servebench){.dtype = o->dtype};
    if (!c)
        return err->code;
    int rc = fm_servecase_shape(c, o, run, err);
    if (!rc)
        describe(result, c, o);
    if (!rc && !dry_run)
        rc = fm_servecase_fill(c, err);
    if (!rc && !dry_run) {
        snprintf(result->path, sizeof result->path, "%s",
                 c->gpu ? fm_serve_gpu_path(c->gpu) : fm_clip_name(c->layer[0].clip));
        if (c->gpu)
            snprintf(result->gpu, sizeof result->gpu, "%s", fm_serve_gpu_name(c->gpu));
        rc = measure(result, c, run, o->repeat, err);
    }
    fm_servecase_release(c);
    free(c);
    return rc;
}
