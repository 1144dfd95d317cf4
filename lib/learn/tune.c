/*
 * A step of recovery: one sweep computes the gradient of the adapter, layer by layer, and AdamW
 * applies it layer by layer.
 */
#include "lib/learn/tune.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"

static bool is_cross(const struct fm_tune *t)
{
    return t->options->strategy == FM_RECOVER_CROSS;
}

/* Offset in the adapter's values of the m-th layer with experts, and that layer's number of floats.
 */
static size_t layer_at(const struct fm_adapter *a, int m)
{
    return a->offset[(size_t)m * (size_t)a->E];
}

static size_t layer_floats(const struct fm_adapter *a, int m)
{
    return layer_at(a, m + 1) - layer_at(a, m);
}

/* Initialise the adapter: for single, with the channels of the mask; for cross, with all. */
static int start_adapter(struct fm_tune *t, struct fm_err *err)
{
    const struct fm_config *c = t->task->config;
    const uint32_t *widths = fm_masks_widths(t->masks, is_cross(t) ? 0 : t->mask);
    int rc = t->options->train->init(&t->adapter, c, t->options, widths, err);
    if (rc)
        return rc;
    fm_adapter_start(&t->adapter, t->task->run->inputs.seed);
    for (int m = 0; m < c->M; m++) {
        size_t n = layer_floats(&t->adapter, m);
        t->floats = n > t->floats ? n : t->floats;
    }
    return FM_OK;
}

static int start_moments(struct fm_tune *t, struct fm_err *err)
{
    size_t M = (size_t)t->task->config->M, record = 2 * t->floats * sizeof(float);
    int rc = fm_store_init(&t->moments, t->task->ops, record, M, t->memory / 3 * 2, err);
    if (!rc)
        rc = fm_store_init(&t->gradients, t->task->ops, record / 2, M, t->memory / 3, err);
    if (rc)
        return rc;
    const struct fm_ops *ops = t->task->ops;
    t->spare = fm_alloc_large(t->moments.record, "moments", err);
    if (!t->spare)
        return FM_ENOMEM;
    for (size_t m = 0; !rc && m < M; m++) {
        void *place = fm_store_place(&t->moments, m, t->spare);
        ops->zero(place, t->moments.record);
        rc = fm_store_put(&t->moments, m, 0, t->moments.record, place, err);
    }
    return rc;
}

int fm_tune_init(struct fm_tune *t, struct fm_err *err)
{
    int T = t->task->calib.T, micro = fm_sweep_micro(t->batch, T);
    /* Masks between the smallest and the full one, for cross; the full one is the teacher. */
    int between = t->masks->count - 2, middle = t->options->middle;
    t->lanes = is_cross(t) ? 2 + (between > 0 ? middle : 0) : 2;
    assert(t->lanes <= FM_LANES_MAX);
    if (start_adapter(t, err) || start_moments(t, err))
        return err->code;
    uint64_t merged = t->adapter.router ? 0 : fm_estimate_merged(t->task->config);
    uint64_t memory = t->task->memory > merged ? t->task->memory - merged : 0;
    if (fm_task_sweep(&t->sweep, t->task, t->batch / micro, micro * T, t->lanes, memory, err))
        return err->code;
    fm_task_warn_idle(t->task, t->batch / micro, micro * T);
    size_t slots = (size_t)fm_sweep_slots(t->sweep) * t->floats * sizeof *t->slot;
    t->slot = fm_alloc_large(slots, "gradients of batches", err);
    if (t->slot)
        t->task->ops->zero(t->slot, slots);
    t->ids = fm_alloc((size_t)t->batch * (size_t)T, sizeof *t->ids, "sequences", err);
    return t->slot && t->ids ? fm_reduction_init(&t->reduction, t->sweep, t->task->ops, FM_F32, 1,
                                                 t->floats, is_cross(t) ? t->lanes : 1, err)
                             : FM_ENOMEM;
}

/* Free the sweep, the gradients and their scratch. */
static void end_steps(struct fm_tune *t)
{
    fm_sweep_free(t->sweep);
    fm_store_release(&t->gradients);
    fm_reduction_release(&t->reduction);
    free(t->slot);
    t->sweep = NULL;
    t->slot = NULL;
}

void fm_tune_release(struct fm_tune *t)
{
    end_steps(t);
    fm_store_release(&t->moments);
    fm_adapter_release(&t->adapter);
    free(t->spare);
    free(t->ids);
    *t = (struct fm_tune){0};
}

static int begin_layer(void *self, int m, struct fm_err *err)
{
    (void)m, (void)err;
    struct fm_tune *t = self;
    t->task->ops->zero(t->reduction.sum, t->floats * sizeof(float));
    fm_reduction_layer(&t->reduction);
    return FM_OK;
}

static void add_expert(void *self, const struct fm_expert_view *v)
{
    struct fm_tune *t = self;
    const struct fm_adapter *a = &t->adapter;
    size_t at = a->offset[(size_t)v->layer * (size_t)a->E + (size_t)v->expert];
    float *slot = t->slot + (size_t)v->slot * t->floats;
    t->options->train->expert(a, t->task->ops, slot + (at - layer_at(a, v->layer)), v);
}

static void add_router(void *self, const struct fm_router_view *v)
{
    struct fm_tune *t = self;
    t->options->train->router(&t->adapter, t->task->ops, t->slot + (size_t)v->slot * t->floats, v);
}

static void add_batch(void *self, int m, int batch, int lane, int slot)
{
    (void)batch, (void)lane;
    struct fm_tune *t = self;
    size_t n = layer_floats(&t->adapter, m);
    fm_reduction_add(&t->reduction, t->slot + (size_t)slot * t->floats, 0, n);
}

static int end_layer(void *self, int m, struct fm_err *err)
{
    struct fm_tune *t = self;
    size_t n = layer_floats(&t->adapter, m);
    int rc = fm_reduction_end(&t->reduction, n, err);
    if (rc)
        return rc;
    if (fm_dtype_nonfinite(t->reduction.sum, FM_F32, n) != n)
        return fm_fail(err, FM_EFORMAT, "layer %d: the gradient of the %s is not finite",
                       t->task->config->moe[m], t->adapter.router ? "router" : "adapter");
    return fm_store_put(&t->gradients, (size_t)m, 0, n * sizeof(float), t->reduction.sum, err);
}

/* Mean losses of a lane. */
static void mean_losses(const struct fm_tune *t, const struct fm_measure *measure, int lane,
                        double *ce, double *kl)
{
    int batches = t->batch / fm_sweep_micro(t->batch, t->task->calib.T);
    int64_t n = 0;
    *ce = *kl = 0;
    for (int b = 0; b < batches; b++) {
        const struct fm_measure *m = &measure[b * t->lanes + lane];
        *ce += m->ce;
        *kl += m->kl;
        n += m->n;
    }
    *ce /= (double)n;
    *kl /= (double)n;
}

/* Set the loss of the step and, in a cross step, the weight of each subnet, so that none
 * dominates. */
static void weigh_lanes(void *self, const struct fm_measure *measure, float *scale)
{
    struct fm_tune *t = self;
    const struct fm_recover_options *o = t->options;
    double ce, kl, full;
    if (!is_cross(t)) {
        mean_losses(t, measure, 1, &ce, &kl);
        t->loss = o->w_task * ce + o->w_kl * kl;
        return;
    }
    mean_losses(t, measure, 0, &full, &kl);
    t->loss = o->w_task * full;
    for (int lane = 1; lane < t->lanes; lane++) {
        mean_losses(t, measure, lane, &ce, &kl);
        double weight = fabs(full) / (fabs(kl) + o->balance_eps);
        scale[lane] = (float)weight;
        t->loss += o->w_kl * weight * kl;
    }
}

static void choose_lanes(const struct fm_tune *t, struct fm_lane *lane)
{
    const struct fm_recover_options *o = t->options;
    const struct fm_masks *f = t->masks;
    float ce = (float)o->w_task, kl = (float)o->w_kl;
    if (!is_cross(t)) {
        lane[0] = (struct fm_lane){.teacher = -1, .ce = 1};
        lane[1] = (struct fm_lane){.widths = fm_masks_widths(f, t->mask),
                                   .adapter = &t->adapter,
                                   .backward = true,
                                   .teacher = 0,
                                   .ce = ce,
                                   .kl = kl};
        return;
    }
    lane[0] = (struct fm_lane){.adapter = &t->adapter, .backward = true, .teacher = -1, .ce = ce};
    for (int i = 1; i < t->lanes; i++) {
        int b = f->count - 1;
        if (i > 1)
            b = 1 + (int)fm_rng_below(t->task->run->inputs.seed, FM_STREAM_SANDWICH,
                                      (uint64_t)t->taken * (uint64_t)t->lanes + (uint64_t)i,
                                      (uint64_t)f->count - 2);
        lane[i] = (struct fm_lane){.widths = fm_masks_widths(f, b),
                                   .adapter = &t->adapter,
                                   .backward = true,
                                   .teacher = 0,
                                   .kl = kl};
    }
}

static int sweep_once(struct fm_tune *t, struct fm_err *err)
{
    int micro = fm_sweep_micro(t->batch, t->task->calib.T), batches = t->batch / micro;
    struct fm_lane lane[FM_LANES_MAX] = {{0}};
    struct fm_visitor visitor = {.self = t,
                                 .narrow = true,
                                 .losses = weigh_lanes,
                                 .layer_begin = begin_layer,
                                 .expert = t->options->train->expert ? add_expert : NULL,
                                 .router = t->options->train->router ? add_router : NULL,
                                 .commit = add_batch,
                                 .layer_end = end_layer};
    choose_lanes(t, lane);
    fm_reduction_begin(&t->reduction, 1.0 / batches);
    return fm_task_run(t->task, t->sweep, t->ids, batches, micro, lane, t->lanes, &visitor, NULL,
                       err);
}

/* Update this rank's slice of a layer, then exchange slices with the other ranks. */
static int update_layer(struct fm_tune *t, int m, struct fm_err *err)
{
    const struct fm_recover_options *o = t->options;
    struct fm_comm *comm = t->task->run->machine.comm;
    size_t n = layer_floats(&t->adapter, m), bytes = n * sizeof(float), at, own;
    float *values = t->adapter.values + layer_at(&t->adapter, m);
    void *moments = NULL, *g = NULL;
    int rc = fm_store_get(&t->gradients, (size_t)m, 0, bytes, &g, t->reduction.sum, err);
    if (!rc)
        rc = fm_store_get(&t->moments, (size_t)m, 0, 2 * bytes, &moments, t->spare, err);
    if (rc)
        return rc;
    fm_comm_slice(comm, fm_comm_rank(comm), n, &at, &own);
    float *m1 = (float *)moments + at, *m2 = m1 + n;
    t->task->ops->adamw(values + at, m1, m2, (const float *)g + at, (int64_t)own, (float)o->lr,
                        (float)o->beta1, (float)o->beta2, (float)o->eps, (float)o->decay,
                        (int)t->taken);
    rc = fm_store_put(&t->moments, (size_t)m, 0, 2 * bytes, moments, err);
    return rc ? rc : fm_comm_spread(comm, values, sizeof *values, n, err);
}

int fm_tune_step(struct fm_tune *t, struct fm_err *err)
{
    double before = t->loss;
    int rc = fm_task_draw(t->task, t->ids, (uint64_t)t->taken * (uint64_t)t->batch, t->batch, err);
    if (!rc)
        rc = sweep_once(t, err);
    if (rc) {
        t->loss = before;
        /* At the first step the adapter has no effect yet, so the model itself gives the value that
         * is not finite. */
        return rc == FM_EFORMAT && t->taken > 0
                   ? fm_within(err, "step %lld of training diverged; use a smaller --lr",
                               (long long)t->taken + 1)
                   : rc;
    }
    if (t->taken++ == 0)
        t->loss_first = t->loss;
    for (int m = 0; !rc && m < t->task->config->M; m++)
        rc = update_layer(t, m, err);
    return fm_comm_agree(t->task->run->machine.comm, rc, err);
}

/* ---- as a part of a run ---- */

static int lanes_of(const struct fm_recover_options *o)
{
    return o->strategy == FM_RECOVER_CROSS ? 2 + o->middle : 2;
}

/* The adapter, and moments and gradients in records of the largest layer's size. */
static struct fm_recovery_memory memory(const struct fm_recoverer *r)
{
    const struct fm_task *task = &r->task;
    int T = task->calib.T, batch = task->batch, micro = fm_sweep_micro(batch, T);
    struct fm_recoverer_size size = fm_recoverer_size(r);
    uint64_t M = (uint64_t)task->config->M;
    uint64_t slots =
        (uint64_t)fm_sweep_turns(batch / micro, micro * T, task->cut, lanes_of(r->options));
    /* Of a layer: the sum, moments that were read back, and each slot's gradients. */
    return (struct fm_recovery_memory){.fixed = size.all + (3 + slots) * size.layer,
                                       .record = 3 * (size.layer + FM_ALIGN),
                                       .records = M,
                                       .state = 2 * M * size.layer};
}

static void plan(struct fm_estimate *estimate, const struct fm_recoverer *r, uint64_t bytes)
{
    const struct fm_task *task = &r->task;
    bool cross = r->options->strategy == FM_RECOVER_CROSS;
    struct fm_estimate_sweep sweep = {.count = (uint64_t)r->options->steps,
                                      .rows = (uint64_t)task->batch * (uint64_t)task->calib.T,
                                      .T = task->calib.T,
                                      .lanes = lanes_of(r->options),
                                      .backward = lanes_of(r->options) - (cross ? 0 : 1),
                                      .narrow = true,
                                      .gate_up = fm_model_ops(task->model)->operand == FM_F32,
                                      .merged = r->train->merges,
                                      .kept = cross ? 0.6 : fm_recoverer_size(r).kept};
    fm_estimate_add(estimate, task->model, &sweep, bytes);
}

static void params(const struct fm_recoverer *r, struct fm_text *text)
{
    const struct fm_recover_options *o = r->options;
    fm_text_printf(text,
                   " rank %d alpha %.17g steps %d lr %.17g task %.17g kl %.17g adam %.17g %.17g "
                   "%.17g %.17g middle %d balance %.17g batch %d",
                   o->rank, o->alpha, o->steps, o->lr, o->w_task, o->w_kl, o->beta1, o->beta2,
                   o->eps, o->decay, o->middle, o->balance_eps, r->task.batch);
}

static int begin(struct fm_recoverer *r, struct fm_err *err)
{
    struct fm_tune *t = r->own = fm_alloc(1, sizeof *t, "training", err);
    if (!t)
        return FM_ENOMEM;
    *t = (struct fm_tune){.task = &r->task,
                          .memory = r->memory,
                          .options = r->options,
                          .masks = &r->budgets.masks,
                          .mask = r->mask,
                          .batch = r->task.batch};
    r->adapter = &t->adapter;
    return fm_tune_init(t, err);
}

static void save(struct fm_journal_item *item, size_t *items, struct fm_recoverer *r)
{
    struct fm_tune *t = r->own;
    fm_runner_item(item, items, "loss_first", FM_F64, 1, &t->loss_first);
    fm_runner_item(item, items, "loss", FM_F64, 1, &t->loss);
    fm_runner_item(item, items, "moments", FM_F32, t->moments.count * t->moments.record / 4, NULL);
    item[*items - 1].store = &t->moments;
}

/* Gather the moments of all ranks on rank 0, to save them. */
static int gather(struct fm_recoverer *r, struct fm_err *err)
{
    struct fm_tune *t = r->own;
    struct fm_comm *comm = t->task->run->machine.comm;
    if (!comm)
        return FM_OK;
    for (size_t m = 0; m < (size_t)t->task->config->M; m++) {
        size_t n = layer_floats(&t->adapter, (int)m), bytes = n * sizeof(float);
        void *moments = NULL;
        int rc = fm_store_get(&t->moments, m, 0, 2 * bytes, &moments, t->spare, err);
        if (!rc)
            rc = fm_comm_gather(comm, moments, sizeof(float), n, err);
        if (!rc)
            rc = fm_comm_gather(comm, (float *)moments + n, sizeof(float), n, err);
        if (!rc)
            rc = fm_store_put(&t->moments, m, 0, 2 * bytes, moments, err);
        if (rc)
            return rc;
    }
    return FM_OK;
}

static int step(struct fm_recoverer *r, struct fm_err *err)
{
    struct fm_tune *t = r->own;
    t->taken = r->runner.taken;
    int rc = fm_tune_step(t, err);
    r->runner.taken = t->taken;
    return rc;
}

static void finish(struct fm_recoverer *r)
{
    const struct fm_tune *t = r->own;
    r->report->loss_first = t->loss_first;
    r->report->loss_last = t->loss;
    end_steps(r->own);
}

static void record(cJSON *options, const struct fm_recoverer *r)
{
    const struct fm_recover_options *o = r->options;
    if (r->train->merges) {
        fm_json_add_uint(options, "lora_rank", (uint64_t)o->rank);
        fm_json_add_double(options, "lora_alpha", o->alpha);
    }
    fm_json_add_uint(options, "steps", (uint64_t)o->steps);
    fm_json_add_double(options, "lr", o->lr);
    fm_json_add_double(options, "w_task", o->w_task);
    fm_json_add_double(options, "w_kl", o->w_kl);
}

static void record_result(cJSON *result, const struct fm_recoverer *r)
{
    fm_json_add_double(result, "loss_first", r->report->loss_first);
    fm_json_add_double(result, "loss_last", r->report->loss_last);
}

static void release(struct fm_recoverer *r)
{
    fm_tune_release(r->own);
}

const struct fm_recovery_run fm_tuning = {
    .memory = memory,
    .plan = plan,
    .params = params,
    .begin = begin,
    .save = save,
    .collect = gather,
    .step = step,
    .finish = finish,
    .record = record,
    .result = record_result,
    .release = release,
    .failed = "training diverged; use a smaller --lr",
};
