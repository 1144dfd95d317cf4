/*
 * Reading the layers costs as much for one mask as for many, so masks go through a sweep together,
 * each a lane beside one teacher, as many as memory has boundaries for.  Sums are over the same
 * tokens in the same order in every group, so a mask's figures do not depend on its company.
 */
#include "lib/learn/quality.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/engine/sweep.h"
#include "lib/learn/estimate.h"

int fm_quality_open(struct fm_calib *train, struct fm_calib *held, const struct fm_run_options *run,
                    const struct fm_config *config, struct fm_err *err)
{
    int rc = fm_calib_open(train, run, config, false, err);
    if (rc)
        return rc;
    rc = fm_inputs_evaluate(&run->inputs)
             ? fm_calib_open(held, run, config, true, err)
             : fm_calib_hold_out(train, held, FM_QUALITY_SEQUENCES, err);
    if (!rc && (train->count < 1 || held->count < 1))
        rc = fm_fail(err, FM_EFORMAT,
                     "'%s' has too few sequences of %d tokens to train on and to measure on; give "
                     "more tokens, a smaller --seq-len, --eval-tokens or "
                     "--eval-text",
                     fm_inputs_first(&run->inputs), train->T);
    return rc;
}

/* Fewer masks than this would make the teacher, and reading the layers, the main work; their
 * boundaries are spilled where they do not fit into memory. */
#define GROUP_MIN 16

int fm_quality_group(const struct fm_config *config, const struct fm_calib *held, uint64_t memory)
{
    /* A lane keeps one boundary of every sequence; one is the teacher's. */
    uint64_t lane = (uint64_t)held->count * (uint64_t)held->T * (uint64_t)config->H * sizeof(float);
    uint64_t fit = memory / (lane ? lane : 1);
    return fit >= FM_LANES_MAX ? FM_LANES_MAX - 1 : fit <= GROUP_MIN ? GROUP_MIN : (int)fit - 1;
}

/* The held-out sequences, as micro-batches of S each. */
struct held_out {
    const struct fm_calib *calib;
    int32_t *ids;
    struct fm_batch *batch;
    int S, T, batches;
};

static int read_held(struct held_out *h, const struct fm_calib *held, struct fm_err *err)
{
    int S = fm_sweep_micro(held->count, held->T);
    size_t ids = (size_t)S * (size_t)held->T;
    *h = (struct held_out){.calib = held, .S = S, .T = held->T, .batches = held->count / S};
    h->ids = fm_alloc((size_t)held->count, (size_t)held->T * sizeof *h->ids, "tokens", err);
    h->batch = fm_alloc((size_t)h->batches, sizeof *h->batch, "batches", err);
    if (!h->ids || !h->batch)
        return err->code;
    for (int i = 0; i < h->batches; i++)
        h->batch[i] = (struct fm_batch){h->ids + (size_t)i * ids, S, held->T};
    return fm_calib_read(held, 0, held->count, h->ids, err);
}

static void release_held(struct held_out *h)
{
    free(h->batch);
    free(h->ids);
}

static void average(struct fm_quality *q, const struct fm_measure *measure, int batches, int lanes,
                    int lane, bool recovered)
{
    struct fm_measure sum = {0};
    for (int b = 0; b < batches; b++) {
        const struct fm_measure *m = &measure[(size_t)b * (size_t)lanes + (size_t)lane];
        sum.ce += m->ce;
        sum.kl += m->kl;
        sum.agree += m->agree;
        sum.n += m->n;
    }
    double n = (double)sum.n;
    *q = (struct fm_quality){sum.ce / n, sum.kl / n, (double)sum.agree / n, sum.n, recovered};
}

/* What is measured: a model within so many bytes, and what lanes compute with: widths, or NULL,
 * closed experts (masks, M, E), or NULL, and an adapter or NULL. */
struct subnets {
    struct fm_model *model;
    const struct fm_ops *ops;
    uint64_t memory;
    const uint32_t *widths;
    const float *closed;
    const struct fm_adapter *adapter;
    bool taught;                    /* the full model is lane 0, and the teacher */
    const struct fm_sweep *teacher; /* another model's, or NULL */
};

/* One sweep of masks from `first` on. */
static int measure_group(struct fm_quality *quality, struct fm_sweep *sweep,
                         const struct held_out *h, const struct subnets *subnets, int first,
                         size_t experts, int masks, struct fm_err *err)
{
    const struct fm_adapter *adapter = subnets->adapter;
    struct fm_lane lane[FM_LANES_MAX] = {{.teacher = -1, .ce = 1}};
    int own = subnets->taught ? 1 : 0, lanes = own + masks;
    assert(lanes <= FM_LANES_MAX);
    for (int i = 0; i < masks; i++) {
        size_t at = (size_t)(first + i) * experts;
        lane[own + i] = (struct fm_lane){.widths = subnets->widths ? subnets->widths + at : NULL,
                                         .closed = subnets->closed ? subnets->closed + at : NULL,
                                         .adapter = adapter,
                                         .round = adapter != NULL,
                                         .teacher = own - 1,
                                         .ce = 1,
                                         .kl = 1};
    }
    struct fm_measure *measure =
        fm_alloc((size_t)h->batches * (size_t)lanes, sizeof *measure, "measures", err);
    if (!measure)
        return FM_ENOMEM;
    int rc = fm_sweep_run(sweep, h->batch, h->batches, lane, lanes, NULL, measure, NULL, err);
    for (int i = 0; !rc && i < masks; i++)
        average(&quality[i], measure, h->batches, lanes, own + i, adapter != NULL);
    free(measure);
    return rc;
}

/* How far the measuring is: layers of the original, where there is one, and of all groups of
 * masks. */
struct watch {
    const struct fm_run_options *run;
    int group, groups;
};

static void watch_layers(void *self, int done, int total)
{
    const struct watch *w = self;
    fm_run_report(w->run, "measure", (uint64_t)w->group * (uint64_t)total + (uint64_t)done,
                  (uint64_t)w->groups * (uint64_t)total, "layers");
}

/* A sweep of so many lanes over all of the held-out sequences. */
static int new_sweep(struct fm_sweep **sweep, const struct subnets *subnets,
                     const struct held_out *h, int lanes, struct watch *watch, struct fm_err *err)
{
    int rows = h->S * h->T;
    struct fm_sweep_options options = {
        .memory = fm_estimate_boundaries(subnets->model, rows, subnets->memory),
        .progress = watch_layers,
        .progress_self = watch,
        .stop = watch->run->stop,
        .comm = watch->run->machine.comm,
        .teacher = subnets->teacher};
    return fm_sweep_new(sweep, subnets->model, subnets->ops, h->batches, rows, h->T, lanes,
                        &options, err);
}

/* Masks, in groups. */
static int measure_masks(struct fm_quality *quality, const struct subnets *subnets, int masks,
                         const struct held_out *h, struct watch *watch, struct fm_err *err)
{
    const struct fm_config *config = fm_model_config(subnets->model);
    uint64_t space = fm_estimate_boundaries(subnets->model, h->S * h->T, subnets->memory);
    int group = fm_quality_group(config, h->calib, space), before = watch->group;
    size_t experts = (size_t)config->M * (size_t)config->E;
    struct fm_sweep *sweep = NULL;
    group = group < masks ? group : masks;
    int rc = fm_comm_least(watch->run->machine.comm, &group, err);
    watch->groups = before + (masks + group - 1) / group;
    /* As bundles and exports have the weights; an adapter is merged before experts are rounded. */
    fm_model_round(subnets->model, subnets->adapter ? FM_MODEL_ROUND_REST : FM_MODEL_ROUND_ALL);
    if (!rc)
        rc = new_sweep(&sweep, subnets, h, group + 1, watch, err);
    for (int at = 0; !rc && at < masks; at += group) {
        int n = masks - at < group ? masks - at : group;
        watch->group = before + at / group;
        rc = measure_group(quality + at, sweep, h, subnets, at, experts, n, err);
    }
    fm_model_round(subnets->model, FM_MODEL_EXACT);
    fm_sweep_free(sweep);
    return rc;
}

/* The original by itself; its sweep stays, for what is compared with it. */
static int measure_original(struct fm_sweep **sweep, struct fm_quality_original *original,
                            uint64_t memory, const struct held_out *h, struct watch *watch,
                            struct fm_err *err)
{
    const struct subnets whole = {.model = original->model, .ops = original->ops, .memory = memory};
    watch->groups = 2;
    fm_model_round(original->model, FM_MODEL_ROUND_ALL);
    int rc = new_sweep(sweep, &whole, h, 1, watch, err);
    if (!rc)
        rc = measure_group(&original->quality, *sweep, h, &whole, 0, 0, 1, err);
    watch->group = 1;
    return rc;
}

static int measure(struct fm_quality *quality, struct subnets *subnets, int masks,
                   const struct fm_calib *held, struct fm_quality_original *original,
                   const struct fm_run_options *run, struct fm_err *err)
{
    struct watch watch = {.run = run};
    struct held_out h;
    struct fm_sweep *teacher = NULL;
    subnets->memory = fm_machine_memory(&run->machine) / (original ? 2 : 1);
    int rc = read_held(&h, held, err);
    if (!rc && original)
        rc = measure_original(&teacher, original, subnets->memory, &h, &watch, err);
    subnets->teacher = teacher;
    if (!rc)
        rc = measure_masks(quality, subnets, masks, &h, &watch, err);
    if (original)
        fm_model_round(original->model, FM_MODEL_EXACT);
    fm_sweep_free(teacher);
    release_held(&h);
    return rc;
}

static void report_part(void *self, const char *stage, uint64_t done, uint64_t total,
                        const char *unit)
{
    const struct fm_quality_parts *p = self;
    fm_run_report(p->to, stage, (uint64_t)p->part * total + done, (uint64_t)p->parts * total, unit);
}

void fm_quality_parts_begin(struct fm_quality_parts *p, const struct fm_run_options *to, int parts)
{
    *p = (struct fm_quality_parts){*to, to, 0, parts};
    p->run.progress = (struct fm_progress){0};
    p->run.progress.report = report_part;
    p->run.progress.self = p;
}

int fm_quality_measure(struct fm_quality *quality, struct fm_model *model, const struct fm_ops *ops,
                       const struct fm_calib *held, const uint32_t *widths, int masks,
                       const struct fm_adapter *adapter, const struct fm_run_options *run,
                       struct fm_err *err)
{
    struct subnets subnets = {
        .model = model, .ops = ops, .widths = widths, .adapter = adapter, .taught = true};
    return measure(quality, &subnets, masks, held, NULL, run, err);
}

int fm_quality_compare(struct fm_quality *quality, struct fm_model *model, const struct fm_ops *ops,
                       const struct fm_calib *held, const uint32_t *widths, int masks,
                       struct fm_quality_original *original, const struct fm_run_options *run,
                       struct fm_err *err)
{
    struct subnets subnets = {.model = model, .ops = ops, .widths = widths};
    return measure(quality, &subnets, masks, held, original, run, err);
}

int fm_quality_measure_closed(struct fm_quality *quality, struct fm_model *model,
                              const struct fm_ops *ops, const struct fm_calib *held,
                              const uint32_t *widths, const float *closed, int masks,
                              const struct fm_run_options *run, struct fm_err *err)
{
    struct subnets subnets = {
        .model = model, .ops = ops, .widths = widths, .closed = closed, .taught = true};
    return measure(quality, &subnets, masks, held, NULL, run, err);
}
