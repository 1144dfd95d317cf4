/*
 * fm-recover: train steps, or solve layer by layer, then measure again, on merged and rounded
 * weights, every mask that has figures in the stream.  If those are for different held-out tokens
 * or follow an earlier recovery, the masks are measured without the adapter, too, so that both sets
 * of figures are comparable. The run can stop between any two steps or groups of masks and resume
 * from the state file.
 */
#include "lib/learn/recover.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/archive.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/data/provenance.h"
#include "lib/learn/quality.h"
#include "lib/learn/runner.h"
#include "lib/learn/tune.h"
#include "lib/model/checkpoint.h"
#include "lib/stage/budgets.h"
#include "lib/stage/lorafile.h"

/* Upper bounds on the bytes that an adapter takes in addition to its values: per tensor in the
 * header, and for the rest of the header and the adapter's part of the manifest. */
#define ADAPTER_TENSOR 128
#define ADAPTER_FILE 16384

#define POINT(name) &fm_recovery_##name,
const struct fm_recovery *const fm_recoveries[] = {FM_RECOVERY_ROWS(POINT) NULL};

struct recovery {
    struct fm_runner runner;
    struct fm_task task;
    const struct fm_recover_options *options;
    struct fm_decimal budget;
    struct fm_budgets budgets; /* of the stream; empty in a dry run without one */
    int mask;                  /* of these, the one to recover at; -1: several */
    struct fm_tune tune;       /* of a closed form only the adapter, and taken */
    struct fm_solving solving;
    double *before, *after; /* (masks, FM_QUALITY_VALUES) */
    struct fm_recover_report *report;
};

void fm_recover_defaults(struct fm_recover_options *options, const struct fm_recovery *train)
{
    *options = (struct fm_recover_options){.train = train,
                                           .strategy = FM_RECOVER_SINGLE,
                                           .rank = 16,
                                           .alpha = 32,
                                           .steps = 200,
                                           .lr = 1e-4,
                                           .w_task = train->w_task,
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

static int check_options(void *self, struct fm_err *err)
{
    struct recovery *r = self;
    const struct fm_recover_options *o = r->options;
    r->budget = o->budget.den ? o->budget : (struct fm_decimal){4, 10};
    if (o->rank < 1 || o->rank > FM_LORA_RANK_MAX)
        return fm_fail(err, FM_EUSAGE, "--lora-rank %d: give 1 to %d", o->rank, FM_LORA_RANK_MAX);
    if (o->steps < 1 || o->steps > FM_RECOVER_STEPS_MAX)
        return fm_fail(err, FM_EUSAGE, "--steps %d: give 1 to %d", o->steps, FM_RECOVER_STEPS_MAX);
    if (!(o->lr >= FM_RECOVER_LR_MIN && o->lr <= FM_RECOVER_LR_MAX))
        return fm_fail(err, FM_EUSAGE, "--lr %g: give %g to %d", o->lr, FM_RECOVER_LR_MIN,
                       FM_RECOVER_LR_MAX);
    assert(o->middle >= 0 && o->middle + 2 <= FM_LANES_MAX);
    return FM_OK;
}

/* The masks that a closed form serves, and the weights of their errors. */
static const struct {
    struct fm_decimal budget;
    double weight;
} served[FM_LORAFILE_SERVED] = {{{0, 1}, 8}, {{2, 10}, 4}, {{4, 10}, 2}, {{6, 10}, 1}};

static void choose_served(struct recovery *r)
{
    struct fm_solving *s = &r->solving;
    const struct fm_masks *masks = &r->budgets.masks;
    s->family = masks;
    if (r->options->strategy == FM_RECOVER_SINGLE) {
        s->masks = 1;
        s->mask[0] = r->mask;
        s->weight[0] = 1;
        return;
    }
    for (int i = 0; i < FM_LORAFILE_SERVED; i++) {
        int mask = fm_masks_nearest(masks, &served[i].budget);
        if (s->masks > 0 && s->mask[s->masks - 1] == mask) {
            s->weight[s->masks - 1] += served[i].weight;
            continue;
        }
        s->mask[s->masks] = mask;
        s->weight[s->masks++] = served[i].weight;
    }
    r->mask = -1;
}

/* The options of a closed form; its masks follow from the stream and the strategy. */
static void print_solving(const struct recovery *r, struct fm_text *text)
{
    const struct fm_recovery *train = r->options->train;
    fm_text_printf(text, "%s mask %d strategy %s ridge %.17g", train->name, r->mask,
                   strategy_name(r->options->strategy), train->ridge);
    for (int i = 0; i < r->solving.masks; i++)
        fm_text_printf(text, " %d %.17g", r->solving.mask[i], r->solving.weight[i]);
}

static void print_params(void *self, struct fm_text *text)
{
    const struct recovery *r = self;
    const struct fm_recover_options *o = r->options;
    if (o->train->solve) {
        print_solving(r, text);
        return;
    }
    bool first = o->train == fm_recoveries[0];
    fm_text_printf(text,
                   "%s%smask %d strategy %s rank %d alpha %.17g steps %d lr %.17g task %.17g kl "
                   "%.17g adam %.17g %.17g %.17g %.17g middle %d balance %.17g batch %d",
                   first ? "" : o->train->name, first ? "" : " ", r->mask,
                   strategy_name(o->strategy), o->rank, o->alpha, o->steps, o->lr, o->w_task,
                   o->w_kl, o->beta1, o->beta2, o->eps, o->decay, o->middle, o->balance_eps,
                   r->task.batch);
}

static size_t list_state(void *self, struct fm_journal_item *item)
{
    struct recovery *r = self;
    struct fm_tune *t = &r->tune;
    const struct fm_adapter *a = &t->adapter;
    uint64_t values = (uint64_t)r->budgets.masks.count * FM_QUALITY_VALUES;
    size_t n = 0;
    fm_runner_item(item, &n, "taken", FM_I64, 1, &t->taken);
    if (r->options->train->solve) {
        fm_runner_item(item, &n, "least", FM_I64, 1, &r->solving.least);
        fm_runner_item(item, &n, "most", FM_I64, 1, &r->solving.most);
    }
    fm_runner_item(item, &n, "loss_first", FM_F64, 1, &t->loss_first);
    fm_runner_item(item, &n, "loss", FM_F64, 1, &t->loss);
    fm_runner_item(item, &n, "values", FM_F32, a->offset[(size_t)a->M * (size_t)a->E], a->values);
    fm_runner_item(item, &n, "before", FM_F64, values, r->before);
    fm_runner_item(item, &n, "after", FM_F64, values, r->after);
    if (r->options->train->solve)
        return n;
    fm_runner_item(item, &n, "moments", FM_F32, t->moments.count * t->moments.record / 4, NULL);
    item[n - 1].store = &t->moments;
    return n;
}

static int gather(void *self, struct fm_err *err)
{
    struct recovery *r = self;
    return r->options->train->solve ? FM_OK : fm_tune_gather(&r->tune, err);
}

static int resumed(void *self, struct fm_err *err)
{
    (void)err;
    struct recovery *r = self;
    r->runner.taken = r->tune.taken;
    return FM_OK;
}

/* Read the masks of the stream and choose the one to recover at. */
static int open_masks(struct recovery *r, struct fm_err *err)
{
    int rc = fm_budgets_open(&r->budgets, &r->task.in, err);
    if (rc)
        return rc;
    const struct fm_masks *masks = &r->budgets.masks;
    const struct fm_recover_options *o = r->options;
    const struct fm_masks_wish wish = {.budget = fm_decimal_value(&r->budget),
                                       .step = fm_stage_budget_step(&r->task.in)};
    r->mask = fm_masks_nearest(masks, &r->budget);
    if (o->train->solve && masks->count < 2)
        return fm_fail(err, FM_ECONFIG, "'%s' has only the full mask, which loses nothing",
                       r->task.run->inputs.stream);
    if (o->strategy == FM_RECOVER_CROSS && masks->count < 2)
        return fm_fail(err, FM_ECONFIG,
                       "--strategy cross needs masks to train, but '%s' has only the full one",
                       r->task.run->inputs.stream);
    if (o->strategy != FM_RECOVER_SINGLE)
        return FM_OK;
    if (o->budget.den)
        rc = fm_masks_choose(&r->mask, masks, 0, masks->count - 1, &wish, err);
    if (!rc && !fm_masks_is_near(masks, r->mask, wish.budget))
        fm_run_note(r->task.run, "%s %g: the nearest member is mask %d, budget %.4f",
                    o->budget.den ? "--budget" : "recovery at", wish.budget, r->mask,
                    fm_masks_budget(masks, r->mask));
    return rc;
}

/* Whether the stream has figures, without an adapter, for the tokens on which this run measures;
 * true if there is no stream. */
static bool is_measured(const struct fm_task *task)
{
    const struct fm_bundle *in = &task->in;
    return !in->members ||
           (!fm_stage_history_of(in, "fm-recover") &&
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
        fm_quality_pack(r->before, b, &masks->mask[b].quality);
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
        return all * (1 - fm_decimal_value(&r->budget));
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
        double floats = o->train->floats(c, o, kept);
        if (o->train->solve) /* projections have the stored dtype */
            floats *= fm_dtype_bits(fm_model_dtype(r->task.model)) / 32.0;
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
    return in->members ? n : 17;
}

/* Add the sweep of a closed form, and its products: moments, right-hand sides and equations. */
static void plan_solving(struct fm_estimate *estimate, const struct recovery *r, uint64_t memory)
{
    const struct fm_task *task = &r->task;
    const struct fm_config *c = task->config;
    double I = c->I, tokens = (double)task->calib.count * task->calib.T;
    struct fm_estimate_sweep sweep = {
        .count = 1, .rows = (uint64_t)tokens, .T = task->calib.T, .lanes = 1, .kept = 1};
    fm_estimate_add(estimate, task->model, &sweep, memory);
    double products = 2 * tokens * c->K * I * I + c->E * I * I * (I / 3 + 4.0 * c->H);
    estimate->flops += c->M * products;
    estimate->kind[estimate->kinds - 1].flops += c->M * products;
}

/* Add the sweeps of a run within `memory` bytes to *estimate. */
static void plan_sweeps(struct fm_estimate *estimate, const struct recovery *r, uint64_t memory)
{
    const struct fm_task *task = &r->task;
    const struct fm_recover_options *o = r->options;
    bool cross = o->strategy == FM_RECOVER_CROSS, merges = o->train->merges;
    uint64_t masks = count_measured(&task->in);
    uint64_t merged = merges ? fm_estimate_merged(task->config) : 0;
    int group = fm_quality_group(task->model, &task->held, memory > merged ? memory - merged : 0);
    struct fm_estimate_sweep sweep = {.count = (uint64_t)o->steps,
                                      .rows = (uint64_t)task->batch * (uint64_t)task->calib.T,
                                      .T = task->calib.T,
                                      .lanes = lanes_of(o),
                                      .backward = cross ? 2 + o->middle : 1,
                                      .narrow = true,
                                      .gate_up = fm_model_ops(task->model)->operand == FM_F32,
                                      .merged = merges,
                                      .kept = cross ? 0.6 : adapter_size(r).kept};
    if (o->train->solve)
        plan_solving(estimate, r, memory);
    else
        fm_estimate_add(estimate, task->model, &sweep, memory);
    estimate->making = estimate->flops;
    sweep.merged = merges;
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

/* The adapter, and moments and gradients in records of the largest layer's size. */
static struct fm_recovery_memory training_memory(const struct recovery *r)
{
    const struct fm_task *task = &r->task;
    int T = task->calib.T, batch = task->batch, micro = fm_sweep_micro(batch, T);
    struct size size = adapter_size(r);
    uint64_t slots =
        (uint64_t)fm_sweep_turns(batch / micro, micro * T, task->cut, lanes_of(r->options));
    /* Of a layer: the sum, moments that were read back, and each slot's gradients. */
    return (struct fm_recovery_memory){.fixed = size.all + (3 + slots) * size.layer,
                                       .record = 3 * (size.layer + FM_ALIGN),
                                       .records = (uint64_t)task->config->M};
}

static struct fm_recovery_memory solving_memory(const struct recovery *r)
{
    struct fm_recovery_memory memory = r->options->train->memory(&r->task);
    uint64_t all = adapter_size(r).all; /* at the end, also as a member */
    memory.fixed = all + (all > memory.fixed ? all : memory.fixed);
    return memory;
}

/*
 * Divide the run's memory and plan its sweeps.  The adapter, and a layer's gradients in every slot
 * or the equations of an expert, are always in memory.  Records give way once no layer of the model
 * stays in memory.
 */
static struct shares share_memory(struct fm_estimate *estimate, const struct recovery *r)
{
    const struct fm_task *task = &r->task;
    const struct fm_recovery_memory n =
        r->options->train->solve ? solving_memory(r) : training_memory(r);
    struct shares s = {.records = n.records * n.record};
    uint64_t over;
    s.stores = s.records;
    do {
        uint64_t beside = n.fixed + s.stores;
        s.sweeps = task->memory > beside ? task->memory - beside : 0;
        *estimate = (struct fm_estimate){0};
        plan_sweeps(estimate, r, s.sweeps);
        estimate->memory += beside;
        over = estimate->memory > task->memory ? estimate->memory - task->memory : 0;
        over = fm_model_pinned(task->model) > 0 ? 0 : over < s.stores ? over : s.stores;
        s.stores -= over;
        s.stores -= s.stores % n.record;
    } while (over > 0);
    estimate->spill += s.records - s.stores;
    return s;
}

static int begin_solving(struct recovery *r, uint64_t memory, struct fm_err *err)
{
    const struct fm_config *c = r->task.config;
    r->solving.memory = memory;
    r->solving.least = INT64_MAX;
    return fm_adapter_init_down(&r->tune.adapter, c->M, c->E, c->H, c->I,
                                fm_model_dtype(r->task.model), err);
}

static int begin(void *self, struct fm_err *err)
{
    struct recovery *r = self;
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
                               .batch = task->batch};
    r->before =
        fm_alloc((size_t)masks->count, FM_QUALITY_VALUES * sizeof *r->before, "quality", err);
    r->after = fm_alloc((size_t)masks->count, FM_QUALITY_VALUES * sizeof *r->after, "quality", err);
    if (!r->before || !r->after)
        return FM_ENOMEM;
    take_measured(r);
    return r->options->train->solve ? begin_solving(r, shares.stores, err)
                                    : fm_tune_init(&r->tune, err);
}

static int solved_layer(void *self, struct fm_err *err)
{
    struct recovery *r = self;
    r->runner.taken = r->tune.taken = r->solving.solved;
    return fm_runner_due(&r->runner, err);
}

/* Solve all layers that are not solved yet. */
static int step_solving(struct recovery *r, struct fm_err *err)
{
    struct fm_solving *s = &r->solving;
    s->task = &r->task;
    s->adapter = &r->tune.adapter;
    s->solved = r->tune.taken;
    s->due = solved_layer;
    s->self = r;
    r->task.units = (double)r->runner.steps;
    int rc = r->options->train->solve(s, err);
    r->task.units = 0;
    return rc;
}

static int step(void *self, bool *done, struct fm_err *err)
{
    (void)done;
    struct recovery *r = self;
    if (r->options->train->solve)
        return step_solving(r, err);
    int rc = fm_tune_step(&r->tune, err);
    r->runner.taken = r->tune.taken;
    return rc;
}

/* List the masks that have figures in the stream but none in `to` yet. */
static int list_unmeasured(int *number, const struct fm_masks *f, const double *to)
{
    int n = 0;
    for (int b = 0; b < f->count; b++)
        if (f->mask[b].quality.positions > 0 && fm_quality_unpack(to, b, false).positions <= 0)
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
        fm_quality_pack(x->to, number[i], &quality[i]);
    return fm_runner_due(&x->r->runner, err);
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
    if (rc != FM_EFORMAT || !adapter)
        return rc;
    return fm_within(err, r->options->train->solve ? "with the solved projections"
                                                   : "training diverged; use a smaller --lr");
}

static int finish(void *self, struct fm_err *err)
{
    struct recovery *r = self;
    double measuring = r->runner.work_measure, half = is_measured(&r->task) ? 0 : measuring / 2;
    int rc = FM_OK;
    fm_tune_finish(&r->tune); /* measuring makes another sweep */
    if (half > 0) {
        fm_run_phase(r->task.run, half, half);
        rc = run_measure(r, r->before, NULL, err);
    }
    if (rc)
        return rc;
    fm_run_phase(r->task.run, measuring - half, 0);
    return run_measure(r, r->after, &r->tune.adapter, err);
}

static int fill_report(void *self, struct fm_err *err)
{
    struct recovery *r = self;
    struct fm_recover_report *report = r->report;
    const struct fm_masks *f = &r->budgets.masks;
    fm_masks_init(&report->masks, f->M, f->E, f->I);
    report->masks.kinds = f->kinds;
    report->after = fm_alloc((size_t)f->count, sizeof *report->after, "quality", err);
    int rc = report->after ? FM_OK : FM_ENOMEM;
    for (int b = 0; !rc && b < f->count; b++) {
        rc = fm_masks_append(&report->masks, fm_masks_widths(f, b), f->mask[b].method,
                             f->mask[b].step, err);
        if (!rc)
            report->masks.mask[b].quality = fm_quality_unpack(r->before, b, false);
        report->after[b] = fm_quality_unpack(r->after, b, true);
    }
    report->mask = r->mask;
    report->steps = (int)r->tune.taken;
    report->resumed = r->runner.resumed;
    report->seconds = r->runner.seconds;
    report->seconds_step = r->runner.seconds_step;
    report->solving = r->solving;
    report->loss_first = r->tune.loss_first;
    report->loss_last = r->tune.loss;
    return rc;
}

static void record(void *self, cJSON *options)
{
    const struct recovery *r = self;
    const struct fm_recover_options *o = r->options;
    char text[FM_DECIMAL_TEXT];
    fm_decimal_print(text, &r->budget);
    if (r->mask >= 0)
        fm_json_add_string(options, "budget", text);
    if (o->train != fm_recoveries[0])
        fm_json_add_string(options, "train", o->train->name);
    fm_json_add_string(options, "strategy", strategy_name(o->strategy));
    if (o->train->solve) {
        fm_json_add_double(options, "ridge", o->train->ridge);
        return;
    }
    if (o->train->merges) {
        fm_json_add_uint(options, "lora_rank", (uint64_t)o->rank);
        fm_json_add_double(options, "lora_alpha", o->alpha);
    }
    fm_json_add_uint(options, "steps", (uint64_t)o->steps);
    fm_json_add_double(options, "lr", o->lr);
    fm_json_add_double(options, "w_task", o->w_task);
    fm_json_add_double(options, "w_kl", o->w_kl);
}

static void record_result(void *self, cJSON *result)
{
    const struct recovery *r = self;
    const struct fm_quality full = fm_quality_unpack(r->before, 0, false);
    if (r->mask >= 0)
        fm_json_add_uint(result, "mask", (uint64_t)r->mask);
    if (r->options->train->solve) {
        fm_json_add_uint(result, "rows_least", (uint64_t)r->solving.least);
        fm_json_add_uint(result, "rows_most", (uint64_t)r->solving.most);
    } else {
        fm_json_add_double(result, "loss_first", r->tune.loss_first);
        fm_json_add_double(result, "loss_last", r->tune.loss);
    }
    if (r->budgets.masks.mask[0].removed == 0 && full.positions > 0)
        fm_json_add_double(result, FM_STAGE_ORIGINAL_CE, full.ce);
}

static void record_adapter(cJSON *manifest, const struct recovery *r)
{
    const struct fm_recover_options *o = r->options;
    cJSON *adapter = fm_json_add_object(manifest, "adapter");
    if (o->train != fm_recoveries[0])
        fm_json_add_string(adapter, "train", o->train->name);
    if (o->train->merges && !o->train->solve) {
        fm_json_add_uint(adapter, "rank", (uint64_t)o->rank);
        fm_json_add_double(adapter, "alpha", o->alpha);
    }
    cJSON *budgets = o->train->solve ? fm_json_add_array(adapter, "served") : NULL;
    for (int i = 0; i < r->solving.masks; i++) {
        cJSON *mask = fm_json_add_object(budgets, NULL);
        fm_json_add_uint(mask, "budget_index", (uint64_t)r->solving.mask[i]);
        fm_json_add_double(mask, "weight", r->solving.weight[i]);
    }
    if (r->mask >= 0)
        fm_json_add_uint(adapter, "budget_index", (uint64_t)r->mask);
    fm_json_add_string(adapter, "strategy", strategy_name(o->strategy));
}

static int make_members(void *self, cJSON *manifest, struct fm_stage_member *member,
                        size_t *members, struct fm_err *err)
{
    struct recovery *r = self;
    const struct fm_task *task = &r->task;
    struct fm_masks *f = &r->budgets.masks;
    void *frame = NULL, *adapter = NULL;
    for (int b = 0; b < f->count; b++)
        f->mask[b].quality = fm_quality_unpack(r->after, b, true);
    int rc = fm_budgets_pack(f, &r->budgets.actions, task->config,
                             fm_stage_tensor_bytes(&task->dir, task->config),
                             fm_model_dtype(task->model), manifest, &frame, &member[0].size, err);
    record_adapter(manifest, r);
    if (!rc)
        rc = fm_lorafile_pack(&r->tune.adapter, task->config->moe, &adapter, &member[1].size, err);
    member[0] = (struct fm_stage_member){FM_MEMBER_MASKS, frame, member[0].size};
    member[1] = (struct fm_stage_member){FM_MEMBER_ADAPTER, adapter, member[1].size};
    *members = 2;
    return rc;
}

static void estimate_steps(struct fm_estimate *estimate, struct fm_task *task, void *self)
{
    const struct recovery *r = self;
    const struct fm_config *c = task->config;
    struct size size = adapter_size(r);
    share_memory(estimate, r);
    if (task->run->outputs.state) /* the adapter, and two moments in records of one size */
        estimate->state =
            size.all + (r->options->train->solve ? 0 : 2 * (uint64_t)c->M * size.layer);
    estimate->disk =
        size.all + ADAPTER_FILE + (uint64_t)c->M * (uint64_t)c->E * FM_LORA_PARTS * ADAPTER_TENSOR;
}

static void forecast(void *self, struct fm_estimate *estimate)
{
    struct recovery *r = self;
    const struct fm_recover_options *all = r->options;
    if (all->train->solve)
        return;
    struct fm_recover_options half = *all;
    struct fm_estimate changed;
    half.steps = (all->steps + 1) / 2;
    r->options = &half;
    estimate_steps(&changed, &r->task, r);
    r->options = all;
    fm_estimate_suggest(estimate, changed.flops, "--steps %d", half.steps);
}

/* What a closed form does not support. */
static int check_solving(const struct recovery *r, struct fm_err *err)
{
    const char *name = r->options->train->name;
    uint64_t bytes = adapter_size(r).all + ADAPTER_FILE;
    if (bytes > FM_ARCHIVE_SIZE_MAX)
        return fm_fail(err, FM_ECONFIG,
                       "--train %s: the down projections have %llu bytes (limit %llu); train an "
                       "adapter instead",
                       name, (unsigned long long)bytes, (unsigned long long)FM_ARCHIVE_SIZE_MAX);
    return FM_OK;
}

static int open_inputs(void *self, struct fm_err *err)
{
    struct recovery *r = self;
    bool solves = r->options->train->solve;
    r->runner.steps = solves ? r->task.config->M : r->options->steps;
    int rc = r->task.in.members ? open_masks(r, err) : FM_OK;
    if (rc || !solves)
        return rc;
    if (r->task.in.members)
        choose_served(r);
    return check_solving(r, err);
}

static const struct fm_work work = {
    .tool = "fm-recover",
    .stage = FM_STAGE_RECOVER,
    .needs = FM_MEMBER_MASKS,
    .batch = 8,
    .verb = "recover",
    .unit = "step",
    .units = "steps",
    .check = check_options,
    .open = open_inputs,
    .plan = estimate_steps,
    .forecast = forecast,
    .params = print_params,
    .begin = begin,
    .state = list_state,
    .resumed = resumed,
    .collect = gather,
    .step = step,
    .finish = finish,
    .report = fill_report,
    .record = record,
    .result = record_result,
    .members = make_members,
};

static void release(struct recovery *r)
{
    fm_tune_release(&r->tune);
    fm_budgets_release(&r->budgets);
    free(r->before);
    free(r->after);
    fm_task_close(&r->task);
}

int fm_recover(const struct fm_run_options *run, const struct fm_recover_options *options,
               struct fm_estimate *dry, struct fm_recover_report *report, struct fm_err *err)
{
    struct recovery r = {.runner = {.work = &work, .self = &r, .task = &r.task},
                         .options = options,
                         .report = report};
    int rc = fm_runner_run(&r.runner, run, dry, err);
    release(&r);
    return rc;
}

bool fm_recover_loses_codes(const char *model)
{
    struct fm_checkpoint checkpoint;
    struct fm_err unread = {0};
    bool loses = !fm_checkpoint_open(&checkpoint, model, &unread) &&
                 checkpoint.config.scheme.storage != NULL;
    fm_checkpoint_close(&checkpoint);
    return loses;
}
