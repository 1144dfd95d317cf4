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
    rc = fm_run_evaluates(run) ? fm_calib_open(held, run, config, true, err)
                               : fm_calib_hold_out(train, held, FM_QUALITY_SEQUENCES, err);
    if (!rc && (train->count < 1 || held->count < 1))
        rc = fm_fail(err, FM_EFORMAT,
                     "'%s' has too few sequences of %d tokens to train on and to measure on; give "
                     "more tokens, a smaller --seq-len, --eval-tokens or "
                     "--eval-text",
                     fm_run_first_input(run), train->T);
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

/* The held-out sequences as micro-batches of S each. */
static struct fm_batch *make_batches(const struct fm_calib *held, const int32_t *id, int S,
                                     struct fm_err *err)
{
    int batches = held->count / S;
    size_t ids = (size_t)S * (size_t)held->T;
    struct fm_batch *batch = fm_alloc((size_t)batches, sizeof *batch, "batches", err);
    for (int i = 0; batch && i < batches; i++)
        batch[i] = (struct fm_batch){id + (size_t)i * ids, S, held->T};
    return batch;
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

/* What lanes compute with: widths, closed experts (masks, M, E), on the device, or NULL, and an
 * adapter or NULL. */
struct subnets {
    const uint32_t *widths;
    const float *closed;
    const struct fm_adapter *adapter;
};

/* One sweep: the teacher in lane 0, masks behind it; without masks it is what is measured. */
static int measure_group(struct fm_quality *quality, struct fm_sweep *sweep,
                         const struct fm_batch *batch, int batches, const struct subnets *subnets,
                         int first, size_t experts, int masks, struct fm_err *err)
{
    const struct fm_adapter *adapter = subnets->adapter;
    struct fm_lane lane[FM_LANES_MAX] = {{.teacher = -1, .ce = 1}};
    int lanes = masks + 1;
    if (masks == 0)
        lane[0].widths = subnets->widths;
    assert(lanes <= FM_LANES_MAX);
    for (int i = 1; i < lanes; i++)
        lane[i] = (struct fm_lane){
            .widths = subnets->widths + (size_t)(first + i - 1) * experts,
            .closed = subnets->closed ? subnets->closed + (size_t)(first + i - 1) * experts : NULL,
            .adapter = adapter,
            .round = adapter != NULL,
            .teacher = 0,
            .ce = 1,
            .kl = 1};
    struct fm_measure *measure =
        fm_alloc((size_t)batches * (size_t)lanes, sizeof *measure, "measures", err);
    if (!measure)
        return FM_ENOMEM;
    int rc = fm_sweep_run(sweep, batch, batches, lane, lanes, NULL, measure, NULL, err);
    for (int i = 0; !rc && i < masks; i++)
        average(&quality[i], measure, batches, lanes, i + 1, adapter != NULL);
    if (!rc && masks == 0)
        average(quality, measure, batches, 1, 0, false);
    free(measure);
    return rc;
}

/* How far the measuring is: layers of all groups of masks. */
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

static int measure(struct fm_quality *quality, struct fm_model *model, const struct fm_ops *ops,
                   const struct fm_calib *held, const struct subnets *subnets, int masks,
                   const struct fm_run_options *run, struct fm_err *err)
{
    const struct fm_config *config = fm_model_config(model);
    int S = fm_sweep_micro(held->count, held->T), batches = held->count / S;
    uint64_t memory = fm_estimate_boundaries(model, S * held->T, fm_run_memory(run));
    int group = fm_quality_group(config, held, memory), rc = FM_ENOMEM;
    size_t experts = (size_t)config->M * (size_t)config->E;
    struct watch watch = {.run = run};
    struct fm_sweep_options options = {.memory = memory,
                                       .progress = watch_layers,
                                       .progress_self = &watch,
                                       .stop = run->stop,
                                       .comm = run->comm};
    struct fm_sweep *sweep = NULL;
    int32_t *ids = fm_alloc((size_t)held->count, (size_t)held->T * sizeof *ids, "tokens", err);
    struct fm_batch *batch = ids ? make_batches(held, ids, S, err) : NULL;
    if (!batch)
        goto out;
    /* As bundles and exports have the weights; an adapter is merged before experts are rounded. */
    fm_model_round(model, subnets->adapter ? FM_MODEL_ROUND_REST : FM_MODEL_ROUND_ALL);
    group = group < masks ? group : masks;
    rc = fm_comm_least(run->comm, &group, err);
    watch.groups = masks > 0 ? (masks + group - 1) / group : 1;
    if (!rc)
        rc = fm_calib_read(held, 0, held->count, ids, err);
    if (!rc)
        rc = fm_sweep_new(&sweep, model, ops, batches, S * held->T, held->T, group + 1, &options,
                          err);
    if (!rc && masks == 0)
        rc = measure_group(quality, sweep, batch, batches, subnets, 0, experts, 0, err);
    for (int at = 0; !rc && at < masks; at += group) {
        int n = masks - at < group ? masks - at : group;
        watch.group = at / group;
        rc = measure_group(quality + at, sweep, batch, batches, subnets, at, experts, n, err);
    }
out:
    fm_model_round(model, FM_MODEL_EXACT);
    fm_sweep_free(sweep);
    free(batch);
    free(ids);
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
    const struct subnets subnets = {.widths = widths, .adapter = adapter};
    return measure(quality, model, ops, held, &subnets, masks, run, err);
}

int fm_quality_measure_plain(struct fm_quality *quality, struct fm_model *model,
                             const struct fm_ops *ops, const struct fm_calib *held,
                             const uint32_t *widths, const struct fm_run_options *run,
                             struct fm_err *err)
{
    const struct subnets subnets = {.widths = widths};
    return measure(quality, model, ops, held, &subnets, 0, run, err);
}

int fm_quality_measure_closed(struct fm_quality *quality, struct fm_model *model,
                              const struct fm_ops *ops, const struct fm_calib *held,
                              const uint32_t *widths, const float *closed, int masks,
                              const struct fm_run_options *run, struct fm_err *err)
{
    const struct fm_config *c = fm_model_config(model);
    size_t bytes = (size_t)masks * (size_t)c->M * (size_t)c->E * sizeof *closed;
    float *placed = ops->device->alloc(bytes, "closed experts", err);
    if (!placed)
        return err->code;
    ops->device->copy_in(placed, closed, bytes);
    const struct subnets subnets = {.widths = widths, .closed = placed};
    int rc = measure(quality, model, ops, held, &subnets, masks, run, err);
    ops->device->free(placed);
    return rc;
}
