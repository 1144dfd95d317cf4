/*
 * fm-recover: train steps, or solve layer by layer, then measure again, on merged and rounded
 * weights, every mask that has figures in the stream.  If those are for different held-out tokens
 * or follow an earlier recovery, the masks are measured without the adapter, too, so that both sets
 * of figures are comparable. The run can stop between any two steps or groups of masks and resume
 * from the state file.
 */
#include "lib/learn/recoverer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/archive.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/data/provenance.h"
#include "lib/learn/quality.h"
#include "lib/model/checkpoint.h"
#include "lib/stage/lorafile.h"

/* Upper bounds on the bytes that an adapter takes in addition to its values: per tensor in the
 * header, and for the rest of the header and the adapter's part of the manifest. */
#define ADAPTER_TENSOR 128
#define ADAPTER_FILE 16384

#define POINT(name) &fm_recovery_##name,
const struct fm_recovery *const fm_recoveries[] = {FM_RECOVERY_ROWS(POINT) NULL};

void fm_recover_defaults(struct fm_recover_options *options, const struct fm_recovery *train)
{
    *options = (struct fm_recover_options){.train = train,
                                           .strategy = FM_RECOVER_SINGLE,
                                           .rank = 16,
                                           .alpha = 32,
                                           .steps = 60,
                                           .lr = 3e-4,
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

static void print_params(void *self, struct fm_text *text)
{
    const struct fm_recoverer *r = self;
    bool first = r->train == fm_recoveries[0];
    fm_text_printf(text, "%s%smask %d strategy %s", first ? "" : r->train->name, first ? "" : " ",
                   r->mask, strategy_name(r->options->strategy));
    r->train->run->params(r, text);
    for (int i = 0; i < r->served.masks; i++)
        fm_text_printf(text, " %d %.17g", r->served.mask[i], r->served.weight[i]);
}

static size_t list_state(void *self, struct fm_journal_item *item)
{
    struct fm_recoverer *r = self;
    const struct fm_adapter *a = r->adapter;
    uint64_t values = (uint64_t)r->budgets.masks.count * FM_QUALITY_VALUES;
    size_t n = 0;
    fm_runner_item(item, &n, "taken", FM_I64, 1, &r->runner.taken);
    fm_runner_item(item, &n, "values", FM_F32, a->offset[(size_t)a->M * (size_t)a->E], a->values);
    fm_runner_item(item, &n, "before", FM_F64, values, r->before);
    fm_runner_item(item, &n, "after", FM_F64, values, r->after);
    r->train->run->save(item, &n, r);
    return n;
}

static int collect(void *self, struct fm_err *err)
{
    struct fm_recoverer *r = self;
    return r->train->run->collect ? r->train->run->collect(r, err) : FM_OK;
}

/* Read the masks of the stream and choose the one to recover at. */
static int open_masks(struct fm_recoverer *r, struct fm_err *err)
{
    int rc = fm_budgets_open(&r->budgets, &r->task.in, err);
    if (rc)
        return rc;
    const struct fm_masks *masks = &r->budgets.masks;
    const struct fm_recover_options *o = r->options;
    const struct fm_masks_wish wish = {.budget = fm_decimal_value(&r->budget),
                                       .step = fm_stage_budget_step(&r->task.in)};
    r->mask = fm_masks_nearest(masks, &r->budget);
    if (o->strategy == FM_RECOVER_CROSS)
        return masks->count >= 2
                   ? FM_OK
                   : fm_fail(err, FM_ECONFIG, "'%s' has only the full mask, which loses nothing",
                             r->task.run->inputs.stream);
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
static void take_measured(struct fm_recoverer *r)
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

/* Channels that the students of layer m keep, over its experts: those of the mask, or, in a dry run
 * without masks, the mean of its budget. */
static double layer_channels(const struct fm_recoverer *r, int m)
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

struct fm_recoverer_size fm_recoverer_size(const struct fm_recoverer *r)
{
    const struct fm_config *c = r->task.config;
    struct fm_recoverer_size size = {0};
    for (int m = 0; m < c->M; m++) {
        double kept = layer_channels(r, m);
        uint64_t bytes = (uint64_t)r->train->bytes(r, kept);
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

/* Add the sweeps of a run within `memory` bytes to *estimate. */
static void plan_sweeps(struct fm_estimate *estimate, const struct fm_recoverer *r, uint64_t memory)
{
    const struct fm_task *task = &r->task;
    bool merges = r->train->merges;
    uint64_t masks = count_measured(&task->in);
    uint64_t merged = merges ? fm_estimate_merged(task->config) : 0;
    int group = fm_quality_group(task->model, &task->held, memory > merged ? memory - merged : 0);
    struct fm_estimate_sweep measuring = {.count = is_measured(task) ? 1 : 2,
                                          .rows =
                                              (uint64_t)task->held.count * (uint64_t)task->held.T,
                                          .T = task->held.T,
                                          .lanes = 1,
                                          .merged = merges,
                                          .kept = 0.6};
    r->train->run->plan(estimate, r, memory);
    estimate->making = estimate->flops;
    fm_estimate_add_masks(estimate, task->model, &measuring, masks, (uint64_t)group,
                          fm_task_part(task, (uint64_t)group < masks ? (uint64_t)group : masks),
                          memory);
}

struct shares {
    uint64_t sweeps;  /* bytes of the run's memory that its sweeps get */
    uint64_t stores;  /* bytes for moments and gradients of all layers */
    uint64_t records; /* bytes that these need; the others spill to files */
};

/*
 * Divide the run's memory and plan its sweeps.  The adapter, and a layer's gradients in every slot
 * or the equations of an expert, are always in memory.  Records give way once no layer of the model
 * stays in memory.
 */
static struct shares share_memory(struct fm_estimate *estimate, const struct fm_recoverer *r)
{
    const struct fm_task *task = &r->task;
    const struct fm_recovery_memory n = r->train->run->memory(r);
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

static int begin(void *self, struct fm_err *err)
{
    struct fm_recoverer *r = self;
    size_t masks = (size_t)r->budgets.masks.count;
    struct fm_estimate estimate;
    struct shares shares = share_memory(&estimate, r);
    r->task.memory = shares.sweeps;
    r->memory = shares.stores;
    r->before = fm_alloc(masks, FM_QUALITY_VALUES * sizeof *r->before, "quality", err);
    r->after = fm_alloc(masks, FM_QUALITY_VALUES * sizeof *r->after, "quality", err);
    if (!r->before || !r->after)
        return FM_ENOMEM;
    take_measured(r);
    return r->train->run->begin(r, err);
}

static int step(void *self, bool *done, struct fm_err *err)
{
    (void)done;
    struct fm_recoverer *r = self;
    return r->train->run->step(r, err);
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
    struct fm_recoverer *r;
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
static int run_measure(struct fm_recoverer *r, double *to, const struct fm_adapter *adapter,
                       struct fm_err *err)
{
    const struct fm_masks *f = &r->budgets.masks;
    int *number = fm_alloc((size_t)f->count, sizeof *number, "quality", err);
    if (!number)
        return FM_ENOMEM;
    int rc = fm_task_measure(&r->task, f, number, list_unmeasured(number, f, to), adapter,
                             take_figures, &(struct figures){r, to}, err);
    free(number);
    return rc == FM_EFORMAT && adapter ? fm_within(err, "%s", r->train->run->failed) : rc;
}

static int finish(void *self, struct fm_err *err)
{
    struct fm_recoverer *r = self;
    double measuring = r->runner.work_measure, half = is_measured(&r->task) ? 0 : measuring / 2;
    int rc = FM_OK;
    if (r->train->run->finish) /* measuring makes another sweep */
        r->train->run->finish(r);
    if (half > 0) {
        fm_run_phase(r->task.run, half, half);
        rc = run_measure(r, r->before, NULL, err);
    }
    if (rc)
        return rc;
    fm_run_phase(r->task.run, measuring - half, 0);
    return run_measure(r, r->after, r->adapter, err);
}

static int fill_report(void *self, struct fm_err *err)
{
    struct fm_recoverer *r = self;
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
    report->train = r->train;
    report->served = r->served;
    report->steps = (int)r->runner.taken;
    report->resumed = r->runner.resumed;
    report->seconds = r->runner.seconds;
    report->seconds_step = r->runner.seconds_step;
    return rc;
}

static void record(void *self, cJSON *options)
{
    const struct fm_recoverer *r = self;
    const struct fm_recover_options *o = r->options;
    char text[FM_DECIMAL_TEXT];
    fm_decimal_print(text, &r->budget);
    if (r->mask >= 0)
        fm_json_add_string(options, "budget", text);
    if (r->train != fm_recoveries[0])
        fm_json_add_string(options, "train", r->train->name);
    fm_json_add_string(options, "strategy", strategy_name(o->strategy));
    r->train->run->record(options, r);
}

static void record_result(void *self, cJSON *result)
{
    const struct fm_recoverer *r = self;
    const struct fm_quality full = fm_quality_unpack(r->before, 0, false);
    if (r->mask >= 0)
        fm_json_add_uint(result, "mask", (uint64_t)r->mask);
    r->train->run->result(result, r);
    if (r->budgets.masks.mask[0].removed == 0 && full.positions > 0)
        fm_json_add_double(result, FM_STAGE_ORIGINAL_CE, full.ce);
}

static void record_adapter(cJSON *manifest, const struct fm_recoverer *r)
{
    const struct fm_recover_options *o = r->options;
    cJSON *adapter = fm_json_add_object(manifest, "adapter");
    if (r->train != fm_recoveries[0])
        fm_json_add_string(adapter, "train", r->train->name);
    if (o->train->trains && o->train->merges) {
        fm_json_add_uint(adapter, "rank", (uint64_t)o->rank);
        fm_json_add_double(adapter, "alpha", o->alpha);
    }
    cJSON *served = r->served.masks ? fm_json_add_array(adapter, "served") : NULL;
    for (int i = 0; i < r->served.masks; i++) {
        cJSON *mask = fm_json_add_object(served, NULL);
        fm_json_add_uint(mask, "budget_index", (uint64_t)r->served.mask[i]);
        fm_json_add_double(mask, "weight", r->served.weight[i]);
    }
    if (r->mask >= 0)
        fm_json_add_uint(adapter, "budget_index", (uint64_t)r->mask);
    fm_json_add_string(adapter, "strategy", strategy_name(o->strategy));
}

static int make_members(void *self, cJSON *manifest, struct fm_stage_member *member,
                        size_t *members, struct fm_err *err)
{
    struct fm_recoverer *r = self;
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
        rc = fm_lorafile_pack(r->adapter, task->config->moe, &adapter, &member[1].size, err);
    member[0] = (struct fm_stage_member){FM_MEMBER_MASKS, frame, member[0].size};
    member[1] = (struct fm_stage_member){FM_MEMBER_ADAPTER, adapter, member[1].size};
    *members = 2;
    return rc;
}

static void estimate_steps(struct fm_estimate *estimate, struct fm_task *task, void *self)
{
    const struct fm_recoverer *r = self;
    const struct fm_config *c = task->config;
    uint64_t all = fm_recoverer_size(r).all;
    share_memory(estimate, r);
    if (task->run->outputs.state)
        estimate->state = all + r->train->run->memory(r).state;
    estimate->disk =
        all + ADAPTER_FILE + (uint64_t)c->M * (uint64_t)c->E * FM_LORA_PARTS * ADAPTER_TENSOR;
}

static void forecast(void *self, struct fm_estimate *estimate)
{
    struct fm_recoverer *r = self;
    const struct fm_recover_options *all = r->options;
    if (!all->train->trains)
        return;
    struct fm_recover_options half = *all;
    struct fm_estimate changed;
    half.steps = (all->steps + 1) / 2;
    r->options = &half;
    estimate_steps(&changed, &r->task, r);
    r->options = all;
    fm_estimate_suggest(estimate, changed.flops, "--steps %d", half.steps);
}

static int open_inputs(void *self, struct fm_err *err)
{
    struct fm_recoverer *r = self;
    r->budget = r->options->budget.den ? r->options->budget : (struct fm_decimal){4, 10};
    r->runner.steps = r->options->steps;
    if (r->task.in.members && open_masks(r, err))
        return err->code;
    if (r->train->run->open)
        r->train->run->open(r);
    uint64_t bytes = fm_recoverer_size(r).all + ADAPTER_FILE;
    return bytes <= FM_ARCHIVE_SIZE_MAX
               ? FM_OK
               : fm_fail(err, FM_ECONFIG,
                         "--train %s: %llu bytes of %s (limit %llu); train something smaller",
                         r->train->name, (unsigned long long)bytes, r->train->made,
                         (unsigned long long)FM_ARCHIVE_SIZE_MAX);
}

static const struct fm_work work = {
    .tool = "fm-recover",
    .stage = FM_STAGE_RECOVER,
    .needs = FM_MEMBER_MASKS,
    .batch = 8,
    .verb = "recover",
    .unit = "step",
    .units = "steps",
    .open = open_inputs,
    .plan = estimate_steps,
    .forecast = forecast,
    .params = print_params,
    .begin = begin,
    .state = list_state,
    .collect = collect,
    .step = step,
    .finish = finish,
    .report = fill_report,
    .record = record,
    .result = record_result,
    .members = make_members,
};

int fm_recover(const struct fm_run_options *run, const struct fm_recover_options *options,
               struct fm_estimate *dry, struct fm_recover_report *report, struct fm_err *err)
{
    struct fm_recoverer r = {.runner = {.work = &work, .self = &r, .task = &r.task},
                             .options = options,
                             .train = options->train,
                             .report = report};
    int rc = fm_runner_run(&r.runner, run, dry, err);
    if (r.own)
        r.train->run->release(&r);
    free(r.own);
    fm_budgets_release(&r.budgets);
    free(r.before);
    free(r.after);
    fm_task_close(&r.task);
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
