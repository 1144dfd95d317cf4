/*
 * fm-recover: train steps, then measure again, on merged and rounded weights, every mask that has
 * figures in the stream.  If those are for different held-out tokens or follow an earlier recovery,
 * the masks are measured without the adapter, too, so that both sets of figures are comparable.
 * The run can stop between any two steps or groups of masks and resume from the state file.
 */
#include "lib/learn/recover.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/data/provenance.h"
#include "lib/learn/quality.h"
#include "lib/learn/tune.h"
#include "lib/masks/choose.h"
#include "lib/state/journal.h"
#include "lib/stage/budgets.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/stage.h"

#define TOOL "fm-recover"
#define BATCH 8
/* Upper bounds on the bytes that an adapter takes in addition to its values: per tensor in the
 * header, and for the rest of the header and the adapter's part of the manifest. */
#define ADAPTER_TENSOR 128
#define ADAPTER_FILE 16384

struct recovery {
    struct fm_task task;
    const struct fm_recover_options *options;
    struct fm_decimal budget;
    struct fm_budgets budgets; /* of the stream; empty in a dry run without one */
    int mask;                  /* of these, the one to recover at */
    struct fm_tune tune;
    double work_steps, work_measure; /* FLOPs, as estimated */
    double *before, *after;          /* (masks, QUALITIES); positions 0: not measured yet */
    struct fm_digest params;
    struct fm_journal_clock clock;
    int resumed;
};

enum { CE, KL, AGREE, POSITIONS, KIND, QUALITIES = KIND + FM_KINDS_MAX };

void fm_recover_defaults(struct fm_recover_options *options, enum fm_recover_train train)
{
    bool router = train == FM_RECOVER_ROUTER;
    *options = (struct fm_recover_options){.train = train,
                                           .strategy = FM_RECOVER_SINGLE,
                                           .rank = 16,
                                           .alpha = 32,
                                           .steps = 200,
                                           .lr = 1e-4,
                                           .w_task = router ? 0 : 1,
                                           .w_kl = 1,
                                           .beta1 = 0.9,
                                           .beta2 = 0.999,
                                           .eps = 1e-8,
                                           .middle = 2,
                                           .balance_eps = 1e-6};
}

void fm_recover_report_release(struct fm_recover_report *report)
{
    fm_masks_release(&report->masks);
    free(report->after);
    *report = (struct fm_recover_report){0};
}

static const char *strategy_name(enum fm_recover_strategy strategy)
{
    return strategy == FM_RECOVER_SINGLE ? "single" : "cross";
}

static int batch_of(const struct fm_run_options *run)
{
    return run->inputs.batch > 0 ? run->inputs.batch : BATCH;
}

static int check_options(const struct fm_recover_options *o, struct fm_decimal *budget,
                         struct fm_err *err)
{
    int rc = fm_decimal_parse(budget, o->budget ? o->budget : FM_RECOVER_BUDGET, "--budget", err);
    if (rc)
        return rc;
    if (o->rank < 1 || o->rank > FM_LORA_RANK_MAX)
        return fm_fail(err, FM_EUSAGE, "--lora-rank %d: give 1 to %d", o->rank, FM_LORA_RANK_MAX);
    if (!(o->alpha >= FM_RECOVER_ALPHA_MIN && o->alpha <= FM_RECOVER_ALPHA_MAX))
        return fm_fail(err, FM_EUSAGE, "--lora-alpha %g: give %g to %g", o->alpha,
                       FM_RECOVER_ALPHA_MIN, FM_RECOVER_ALPHA_MAX);
    if (o->steps < 1 || o->steps > FM_RECOVER_STEPS_MAX)
        return fm_fail(err, FM_EUSAGE, "--steps %d: give 1 to %d", o->steps, FM_RECOVER_STEPS_MAX);
    if (!(o->lr >= FM_RECOVER_LR_MIN && o->lr <= FM_RECOVER_LR_MAX))
        return fm_fail(err, FM_EUSAGE, "--lr %g: give %g to %d", o->lr, FM_RECOVER_LR_MIN,
                       FM_RECOVER_LR_MAX);
    assert(o->middle >= 0 && o->middle + 2 <= FM_LANES_MAX);
    return FM_OK;
}

static int digest_params(struct recovery *r, struct fm_err *err)
{
    const struct fm_recover_options *o = r->options;
    char text[512];
    snprintf(text, sizeof text,
             "%smask %d strategy %s rank %d alpha %.17g steps %d lr %.17g task %.17g kl %.17g adam "
             "%.17g %.17g %.17g %.17g middle %d balance %.17g batch %d",
             o->train == FM_RECOVER_ROUTER ? "router " : "", r->tune.mask,
             strategy_name(o->strategy), o->rank, o->alpha, o->steps, o->lr, o->w_task, o->w_kl,
             o->beta1, o->beta2, o->eps, o->decay, o->middle, o->balance_eps,
             batch_of(r->task.run));
    return fm_task_params(&r->task, &r->params, text, err);
}

static void get_quality(double *to, const struct fm_quality *q)
{
    to[CE] = q->ce;
    to[KL] = q->kl;
    to[AGREE] = q->agree;
    to[POSITIONS] = (double)q->positions;
    memcpy(to + KIND, q->kind, sizeof q->kind);
}

static void set_quality(struct fm_quality *q, const double *from, bool recovered)
{
    *q = (struct fm_quality){from[CE],  from[KL], from[AGREE], (int64_t)from[POSITIONS],
                             recovered, {0}};
    memcpy(q->kind, from + KIND, sizeof q->kind);
}

static struct fm_journal_item array(const char *name, enum fm_dtype dtype, uint64_t count,
                                    void *data)
{
    return (struct fm_journal_item){.name = name, .dtype = dtype, .count = count, .data = data};
}

static size_t list_state(struct fm_journal_item *item, struct recovery *r)
{
    struct fm_tune *t = &r->tune;
    const struct fm_adapter *a = &t->adapter;
    size_t n = 0;
    item[n++] = array("taken", FM_I64, 1, &t->taken);
    item[n++] = array("loss_first", FM_F64, 1, &t->loss_first);
    item[n++] = array("loss", FM_F64, 1, &t->loss);
    item[n++] = array("values", FM_F32, a->offset[(size_t)a->M * (size_t)a->E], a->values);
    item[n++] = array("before", FM_F64, (uint64_t)r->budgets.masks.count * QUALITIES, r->before);
    item[n++] = array("after", FM_F64, (uint64_t)r->budgets.masks.count * QUALITIES, r->after);
    item[n++] = (struct fm_journal_item){.name = "moments",
                                         .dtype = FM_F32,
                                         .count = t->moments.count * t->moments.record / 4,
                                         .store = &t->moments};
    return n + fm_task_state_items(item + n, &r->task);
}

static int save(struct recovery *r, struct fm_err *err)
{
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    double began = fm_clock_now();
    int rc = fm_tune_gather(&r->tune, err);
    if (!rc)
        rc = fm_journal_save(r->task.run->machine.comm, r->task.run->outputs.state, TOOL,
                             &r->params, item, list_state(item, r), err);
    fm_journal_saved(&r->clock, began);
    return rc;
}

static int resume(struct recovery *r, struct fm_err *err)
{
    struct fm_journal j;
    bool found;
    const struct fm_run_options *run = r->task.run;
    int rc =
        fm_journal_open(&j, run->machine.comm, run->outputs.state, TOOL, &r->params, &found, err);
    if (rc || !found)
        return rc;
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    rc = fm_task_state_take(&r->task, &j, err);
    if (!rc)
        rc = fm_journal_read(&j, item, list_state(item, r), err);
    if (!rc && (r->tune.taken < 0 || r->tune.taken > r->options->steps))
        rc = fm_fail(
            err, FM_EFORMAT,
            "state file '%s' is at step %lld, but the run has %d; remove the file to start anew",
            r->task.run->outputs.state, (long long)r->tune.taken, r->options->steps);
    r->resumed = (int)r->tune.taken;
    fm_journal_close(&j);
    return rc;
}

/* Read the masks of the stream and choose the one to recover at. */
static int open_masks(struct recovery *r, struct fm_err *err)
{
    int rc = fm_budgets_open(&r->budgets, &r->task.in, err);
    if (rc)
        return rc;
    const struct fm_masks *masks = &r->budgets.masks;
    const struct fm_recover_options *o = r->options;
    const struct fm_masks_wish wish = {.budget = (double)r->budget.num / (double)r->budget.den,
                                       .step = fm_stage_budget_step(&r->task.in)};
    r->mask = fm_masks_nearest(masks, &r->budget);
    if (o->strategy == FM_RECOVER_CROSS && masks->count < 2)
        return fm_fail(err, FM_ECONFIG,
                       "--strategy cross needs masks to train, but '%s' has only the full one",
                       r->task.run->inputs.stream);
    if (o->strategy != FM_RECOVER_SINGLE)
        return FM_OK;
    if (o->budget)
        rc = fm_masks_choose(&r->mask, masks, 0, masks->count - 1, &wish, err);
    if (!rc && !fm_masks_is_near(masks, r->mask, wish.budget))
        fm_run_note(r->task.run, "%s %g: the nearest member is mask %d, budget %.4f",
                    o->budget ? "--budget" : "recovery at", wish.budget, r->mask,
                    fm_masks_budget(masks, r->mask));
    return rc;
}

/* Whether the stream has figures, without an adapter, for the tokens on which this run measures;
 * true if there is no stream. */
static bool is_measured(const struct fm_task *task)
{
    const struct fm_bundle *in = &task->in;
    return !in->members ||
           (!fm_stage_history_of(in, TOOL) &&
            fm_provenance_is_held_out(fm_stage_history_of(in, "fm-train"), &task->held));
}

/* Take the figures without an adapter from the stream, for the masks that have them. */
static void take_measured(struct recovery *r)
{
    struct fm_masks *masks = &r->budgets.masks;
    const struct fm_kinds had = masks->kinds;
    fm_quality_kinds(&masks->kinds, &r->task.held);
    if (!is_measured(&r->task) || memcmp(&had, &masks->kinds, sizeof had) != 0) {
        fm_run_note(r->task.run, "masks are measured without an adapter, too, because the stream's "
                                 "losses are of other held-out tokens or of an earlier recovery");
        return;
    }
    for (int b = 0; b < masks->count; b++)
        get_quality(r->before + (size_t)b * QUALITIES, &masks->mask[b].quality);
}

static int lanes_of(const struct fm_recover_options *o)
{
    return o->strategy == FM_RECOVER_CROSS ? 2 + o->middle : 2;
}

/* Channels that the students of layer m keep, over its experts: those of the mask, or, in a dry run
 * without masks, the mean of its budget. */
static double layer_channels(const struct recovery *r, int m)
{
    const struct fm_config *c = r->task.config;
    double all = (double)c->E * c->I, kept = 0;
    if (r->options->strategy == FM_RECOVER_CROSS)
        return all;
    if (r->budgets.masks.count == 0)
        return all * (1 - (double)r->budget.num / (double)r->budget.den);
    const uint32_t *widths = fm_masks_widths(&r->budgets.masks, r->mask) + (size_t)m * (size_t)c->E;
    for (int e = 0; e < c->E; e++)
        kept += widths[e];
    return kept;
}

struct size {
    uint64_t all, layer; /* bytes of the adapter, and of the largest layer's part */
    double kept;         /* mean share of the channels */
};

static struct size adapter_size(const struct recovery *r)
{
    const struct fm_config *c = r->task.config;
    const struct fm_recover_options *o = r->options;
    struct size size = {0};
    for (int m = 0; m < c->M; m++) {
        double kept = layer_channels(r, m);
        double floats = o->train == FM_RECOVER_ROUTER
                            ? (double)c->E * (c->H + 1)
                            : 3.0 * o->rank * ((double)c->E * c->H + kept);
        uint64_t bytes = (uint64_t)(floats * sizeof(float));
        size.all += bytes;
        size.layer = bytes > size.layer ? bytes : size.layer;
        size.kept += kept / ((double)c->M * c->E * c->I);
    }
    return size;
}

/* The number of the stream's masks that have figures; only these are measured again.  Without a
 * stream: the number that a family with the default steps has. */
static uint64_t count_measured(const struct fm_bundle *in)
{
    const cJSON *budgets = cJSON_GetObjectItemCaseSensitive(in->manifest, "budgets"), *budget;
    uint64_t n = 0;
    cJSON_ArrayForEach(budget, budgets)
    {
        if (cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(budget, "quality")))
            n++;
    }
    return n ? n : 17;
}

/* Add the sweeps of a run within `memory` bytes to *estimate. */
static void plan_sweeps(struct fm_estimate *estimate, const struct recovery *r, uint64_t memory)
{
    const struct fm_task *task = &r->task;
    const struct fm_recover_options *o = r->options;
    bool cross = o->strategy == FM_RECOVER_CROSS, router = o->train == FM_RECOVER_ROUTER;
    uint64_t masks = count_measured(&task->in);
    uint64_t merged = router ? 0 : fm_estimate_merged(task->config);
    int group = fm_quality_group(task->model, &task->held, memory > merged ? memory - merged : 0);
    struct fm_estimate_sweep sweep = {.count = (uint64_t)o->steps,
                                      .rows =
                                          (uint64_t)batch_of(task->run) * (uint64_t)task->calib.T,
                                      .T = task->calib.T,
                                      .lanes = lanes_of(o),
                                      .backward = cross ? 2 + o->middle : 1,
                                      .merged = router ? 0 : 1,
                                      .kept = cross ? 0.6 : adapter_size(r).kept};
    fm_estimate_add(estimate, task->model, &sweep, memory);
    sweep.count = is_measured(task) ? 1 : 2;
    sweep.rows = (uint64_t)task->held.count * (uint64_t)task->held.T;
    sweep.T = task->held.T;
    sweep.lanes = 1;
    sweep.backward = 0;
    sweep.kept = 0.6;
    fm_estimate_add_masks(estimate, task->model, &sweep, masks, (uint64_t)group,
                          fm_task_part(task, (uint64_t)group < masks ? (uint64_t)group : masks),
                          memory);
}

struct shares {
    uint64_t sweeps;  /* bytes of the run's memory that its sweeps get */
    uint64_t stores;  /* bytes for moments and gradients of all layers */
    uint64_t records; /* bytes that these need; the others spill to files */
};

/*
 * Divide the run's memory and plan its sweeps.  The adapter, and a layer's gradients in every slot,
 * are always in memory.  Moments and gradients, in records of the largest layer's size, give way
 * once no layer of the model stays in memory.
 */
static struct shares share_memory(struct fm_estimate *estimate, const struct recovery *r)
{
    const struct fm_task *task = &r->task;
    int T = task->calib.T, batch = batch_of(task->run), micro = fm_sweep_micro(batch, T);
    struct size size = adapter_size(r);
    uint64_t slots =
        (uint64_t)fm_sweep_turns(batch / micro, micro * T, task->cut, lanes_of(r->options));
    /* Of a layer: the sum, moments that were read back, and each slot's gradients. */
    uint64_t fixed = size.all + (3 + slots) * size.layer, over;
    uint64_t record = 3 * (size.layer + FM_ALIGN); /* a layer's moments and gradients */
    struct shares s = {.records = (uint64_t)task->config->M * record};
    s.stores = s.records;
    do {
        uint64_t beside = fixed + s.stores;
        s.sweeps = task->memory > beside ? task->memory - beside : 0;
        *estimate = (struct fm_estimate){0};
        plan_sweeps(estimate, r, s.sweeps);
        estimate->memory += beside;
        over = estimate->memory > task->memory ? estimate->memory - task->memory : 0;
        over = fm_model_pinned(task->model) > 0 ? 0 : over < s.stores ? over : s.stores;
        s.stores -= over;
        s.stores -= s.stores % record;
    } while (over > 0);
    estimate->spill += s.records - s.stores;
    return s;
}

static int prepare(struct recovery *r, struct fm_err *err)
{
    struct fm_task *task = &r->task;
    const struct fm_masks *masks = &r->budgets.masks;
    struct fm_estimate estimate;
    struct shares shares = share_memory(&estimate, r);
    task->memory = shares.sweeps;
    r->tune = (struct fm_tune){.task = task,
                               .memory = shares.stores,
                               .options = r->options,
                               .masks = masks,
                               .mask = r->mask,
                               .batch = batch_of(task->run)};
    r->before = fm_alloc((size_t)masks->count, QUALITIES * sizeof *r->before, "quality", err);
    r->after = fm_alloc((size_t)masks->count, QUALITIES * sizeof *r->after, "quality", err);
    int rc = r->before && r->after ? digest_params(r, err) : FM_ENOMEM;
    if (!rc)
        take_measured(r);
    if (!rc)
        rc = fm_tune_init(&r->tune, err);
    return rc ? rc : resume(r, err);
}

static int save_if_due(struct recovery *r, struct fm_err *err)
{
    bool due = false;
    int rc = fm_task_due(&r->task, &r->clock, &due, err);
    return !rc && due ? save(r, err) : rc;
}

static int run_steps(struct recovery *r, struct fm_err *err)
{
    const struct fm_run_options *run = r->task.run;
    uint64_t steps = (uint64_t)r->options->steps;
    int rc = FM_OK;
    fm_run_phase(run, r->work_steps, r->work_measure);
    while (!rc && (uint64_t)r->tune.taken < steps) {
        fm_run_report(run, "recover", (uint64_t)r->tune.taken, steps, "steps");
        rc = fm_task_stopped(&r->task, err);
        if (!rc)
            rc = fm_tune_step(&r->tune, err);
        if (!rc)
            rc = save_if_due(r, err);
    }
    fm_run_report(run, "recover", (uint64_t)r->tune.taken, steps, "steps");
    return rc;
}

/* List the masks that have figures in the stream but none in `to` yet. */
static int list_unmeasured(int *number, const struct fm_masks *f, const double *to)
{
    int n = 0;
    for (int b = 0; b < f->count; b++)
        if (f->mask[b].quality.positions > 0 && !(to[b * QUALITIES + POSITIONS] > 0))
            number[n++] = b;
    return n;
}

/* Destination of the figures of masks. */
struct figures {
    struct recovery *r;
    double *to;
};

static int take_figures(void *self, const int *number, const struct fm_quality *quality, int n,
                        struct fm_err *err)
{
    const struct figures *x = self;
    for (int i = 0; i < n; i++)
        get_quality(x->to + (size_t)number[i] * QUALITIES, &quality[i]);
    return save_if_due(x->r, err);
}

/* Measure the masks that have no figures in `to`: on merged and rounded weights, or without an
 * adapter if it is NULL. */
static int run_measure(struct recovery *r, double *to, const struct fm_adapter *adapter,
                       struct fm_err *err)
{
    const struct fm_masks *f = &r->budgets.masks;
    int *number = fm_alloc((size_t)f->count, sizeof *number, "quality", err);
    if (!number)
        return FM_ENOMEM;
    int rc = fm_task_measure(&r->task, f, number, list_unmeasured(number, f, to), adapter,
                             take_figures, &(struct figures){r, to}, err);
    free(number);
    return rc == FM_EFORMAT && adapter ? fm_within(err, "training diverged; use a smaller --lr")
                                       : rc;
}

static int run_all(struct recovery *r, struct fm_recover_report *report, struct fm_err *err)
{
    double began = r->clock.saved = fm_clock_now();
    int rc = run_steps(r, err);
    fm_tune_finish(&r->tune); /* measuring makes another sweep */
    int steps = (int)r->tune.taken - r->resumed;
    report->seconds_step = steps > 0 ? (fm_clock_now() - began) / steps : 0;
    double half = is_measured(&r->task) ? 0 : r->work_measure / 2;
    if (!rc && half > 0) {
        fm_run_phase(r->task.run, half, half);
        rc = run_measure(r, r->before, NULL, err);
    }
    if (!rc) {
        fm_run_phase(r->task.run, r->work_measure - half, 0);
        rc = run_measure(r, r->after, &r->tune.adapter, err);
    }
    if (rc != FM_ESAVED || !r->task.run->outputs.state)
        return rc;
    int saved = save(r, err);
    return saved ? saved : FM_ESAVED;
}

static int fill_report(struct recovery *r, struct fm_recover_report *report, struct fm_err *err)
{
    const struct fm_masks *f = &r->budgets.masks;
    fm_masks_init(&report->masks, f->M, f->E, f->I);
    report->masks.kinds = f->kinds;
    report->after = fm_alloc((size_t)f->count, sizeof *report->after, "quality", err);
    int rc = report->after ? FM_OK : FM_ENOMEM;
    for (int b = 0; !rc && b < f->count; b++) {
        rc = fm_masks_append(&report->masks, fm_masks_widths(f, b), f->mask[b].method,
                             f->mask[b].step, err);
        if (!rc)
            set_quality(&report->masks.mask[b].quality, r->before + (size_t)b * QUALITIES, false);
        set_quality(&report->after[b], r->after + (size_t)b * QUALITIES, true);
    }
    report->mask = r->tune.mask;
    report->steps = (int)r->tune.taken;
    report->resumed = r->resumed;
    report->loss_first = r->tune.loss_first;
    report->loss_last = r->tune.loss;
    return rc;
}

static void record(cJSON *manifest, const struct recovery *r)
{
    const struct fm_recover_options *o = r->options;
    char text[FM_DECIMAL_TEXT];
    cJSON *entry = fm_stage_history(manifest, TOOL);
    cJSON *options = fm_task_options(entry, &r->task, batch_of(r->task.run));
    fm_decimal_print(text, &r->budget);
    fm_json_add_string(options, "budget", text);
    if (r->tune.adapter.router)
        fm_json_add_string(options, "train", FM_LORAFILE_ROUTER);
    fm_json_add_string(options, "strategy", strategy_name(o->strategy));
    if (!r->tune.adapter.router) {
        fm_json_add_uint(options, "lora_rank", (uint64_t)o->rank);
        fm_json_add_double(options, "lora_alpha", o->alpha);
    }
    fm_json_add_uint(options, "steps", (uint64_t)o->steps);
    fm_json_add_double(options, "lr", o->lr);
    fm_json_add_double(options, "w_task", o->w_task);
    fm_json_add_double(options, "w_kl", o->w_kl);
    fm_provenance_tokens(entry, &r->task.calib);
    fm_provenance_held_out(entry, &r->task.held);
    cJSON *result = fm_json_add_object(entry, "result");
    fm_json_add_uint(result, "mask", (uint64_t)r->tune.mask);
    fm_json_add_double(result, "loss_first", r->tune.loss_first);
    fm_json_add_double(result, "loss_last", r->tune.loss);
    if (r->budgets.masks.mask[0].removed == 0 && r->before[POSITIONS] > 0)
        fm_json_add_double(result, FM_STAGE_ORIGINAL_CE, r->before[CE]);
}

static void record_adapter(cJSON *manifest, const struct recovery *r)
{
    cJSON *adapter = fm_json_add_object(manifest, "adapter");
    if (r->tune.adapter.router) {
        fm_json_add_string(adapter, "train", FM_LORAFILE_ROUTER);
    } else {
        fm_json_add_uint(adapter, "rank", (uint64_t)r->options->rank);
        fm_json_add_double(adapter, "alpha", r->options->alpha);
    }
    fm_json_add_uint(adapter, "budget_index", (uint64_t)r->tune.mask);
    fm_json_add_string(adapter, "strategy", strategy_name(r->options->strategy));
}

static int fill_manifest(cJSON *manifest, struct recovery *r, struct fm_stage_member *masks,
                         struct fm_err *err)
{
    struct fm_task *task = &r->task;
    struct fm_masks *f = &r->budgets.masks;
    void *frame = NULL;
    for (int b = 0; b < f->count; b++)
        set_quality(&f->mask[b].quality, r->after + (size_t)b * QUALITIES, true);
    record(manifest, r);
    int rc = fm_budgets_pack(f, &r->budgets.actions, task->config,
                             fm_stage_tensor_bytes(&task->dir, task->config),
                             fm_model_dtype(task->model), manifest, &frame, &masks->size, err);
    masks->data = frame;
    record_adapter(manifest, r);
    return rc;
}

static int write_stream(struct recovery *r, struct fm_err *err)
{
    struct fm_task *task = &r->task;
    char dropped[FM_STAGE_DROPPED_BYTES] = "";
    cJSON *manifest = fm_stage_manifest(FM_STAGE_RECOVER, &task->in, NULL, dropped);
    void *adapter = NULL;
    struct fm_stage_member member[2] = {{.name = FM_MEMBER_MASKS}, {.name = FM_MEMBER_ADAPTER}};
    if (dropped[0])
        fm_run_warn(task->run, "%s", dropped);
    int rc = fill_manifest(manifest, r, &member[0], err);
    if (!rc)
        rc = fm_lorafile_pack(&r->tune.adapter, task->config->moe, &adapter, &member[1].size, err);
    member[1].data = adapter;
    if (!rc) {
        rc = fm_stage_write(task->run, FM_STAGE_RECOVER, manifest, &task->in, NULL, member, 2, err);
        manifest = NULL;
    }
    cJSON_Delete(manifest);
    free((void *)(uintptr_t)member[0].data);
    free(adapter);
    return rc;
}

static void estimate_steps(struct fm_estimate *estimate, struct fm_task *task, void *self)
{
    const struct recovery *r = self;
    const struct fm_config *c = task->config;
    struct size size = adapter_size(r);
    share_memory(estimate, r);
    if (task->run->outputs.state) /* the adapter, and two moments in records of one size */
        estimate->state = size.all + 2 * (uint64_t)c->M * size.layer;
    estimate->disk =
        size.all + ADAPTER_FILE + (uint64_t)c->M * (uint64_t)c->E * FM_LORA_PARTS * ADAPTER_TENSOR;
}

static int make_all(struct recovery *r, struct fm_recover_report *report, struct fm_err *err)
{
    int rc = run_all(r, report, err);
    if (!rc)
        rc = fill_report(r, report, err);
    rc = fm_comm_agree(r->task.run->machine.comm, rc, err);
    if (!rc)
        rc = fm_comm_share_tallies(r->task.run->machine.comm, err);
    report->seconds = fm_clock_now() - r->task.began;
    return rc || fm_comm_rank(r->task.run->machine.comm) != 0 ? rc : write_stream(r, err);
}

static int run_task(struct recovery *r, struct fm_recover_report *report, struct fm_err *err)
{
    const struct fm_run_options *run = r->task.run;
    struct fm_estimate estimate;
    int rc = open_masks(r, err);
    if (rc)
        return rc;
    fm_task_plan(&estimate, &r->task, estimate_steps, r);
    r->work_steps = estimate.kind[0].flops;
    r->work_measure = estimate.flops - r->work_steps;
    if (fm_estimate_check(&estimate, run, fm_stage_copied_bytes(FM_STAGE_RECOVER, &r->task.in),
                          err) ||
        prepare(r, err))
        return err->code;
    return make_all(r, report, err);
}

int fm_recover(const struct fm_run_options *run, const struct fm_recover_options *options,
               struct fm_recover_report *report, struct fm_err *err)
{
    struct recovery r = {.options = options};
    int rc = FM_OK;
    if (check_options(options, &r.budget, err) || fm_task_open(&r.task, run, FM_MEMBER_MASKS, err))
        rc = err->code;
    else
        rc = run_task(&r, report, err);
    rc = fm_comm_agree(run->machine.comm, rc, err);
    fm_tune_release(&r.tune);
    fm_budgets_release(&r.budgets);
    free(r.before);
    free(r.after);
    if (!rc)
        fm_task_forget(&r.task, TOOL);
    fm_task_close(&r.task);
    return rc;
}

int fm_recover_estimate(const struct fm_run_options *run, const struct fm_recover_options *options,
                        struct fm_estimate *estimate, struct fm_err *err)
{
    struct recovery r = {.options = options};
    struct fm_task *task = &r.task;
    int rc = FM_OK;
    if (check_options(options, &r.budget, err) || fm_task_open_inputs(task, run, true, err) ||
        fm_task_open_named(task, FM_MEMBER_MASKS, err) ||
        (task->in.members && open_masks(&r, err))) {
        rc = err->code;
        goto out;
    }
    fm_task_plan(estimate, task, estimate_steps, &r);
    struct fm_recover_options half = *options;
    struct fm_estimate changed;
    half.steps = (options->steps + 1) / 2;
    r.options = &half;
    estimate_steps(&changed, task, &r);
    fm_estimate_suggest(estimate, changed.flops, "--steps %d", half.steps);
    rc = fm_task_estimate_end(task, FM_STAGE_RECOVER, estimate, err);
out:
    fm_budgets_release(&r.budgets);
    fm_task_close(task);
    return rc;
}
