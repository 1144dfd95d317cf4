/*
 * Methods differ in how they make a family: at once, without gradients, or step by step with
 * gradients (learned, exchange).  The rest is the same for all: check the options, resume the
 * state, make the family, finish it, write the stream.
 */
#include "lib/learn/trainer.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/learn/criterion.h"
#include "lib/learn/quality.h"
#include "lib/masks/gaps.h"
#include "lib/masks/stepcost.h"
#include "lib/stage/budgets.h"

/* Upper bounds on the bytes that a run adds to the manifest: its history, each mask, and each
 * mask's loss on one kind of text. */
#define MANIFEST_RUN 8192
#define MANIFEST_MASK 512
#define MANIFEST_KIND 64

/* ---- options ---- */

void fm_train_defaults(struct fm_train_options *options)
{
    *options = (struct fm_train_options){.method = &fm_method_exchange,
                                         .budget_step = {1, 100},
                                         .until = {8, 10},
                                         .measure_step = {5, 100},
                                         .steps = 500,
                                         .samples = 1,
                                         .prior = 4,
                                         .lr = 0.02,
                                         .tau_last = 0.5,
                                         .around_sequences = 8,
                                         .around_tokens = 2560};
}

void fm_train_report_release(struct fm_train_report *report)
{
    fm_masks_release(&report->masks);
    *report = (struct fm_train_report){0};
}

/* ---- cost: the sweeps of each method, and the number of sequences they read ---- */

int fm_trainer_around(const struct fm_calib *calib, const struct fm_train_options *o)
{
    int take = (o->around_tokens + calib->T - 1) / calib->T;
    take = take > o->around_sequences ? take : o->around_sequences;
    return take < calib->count ? take : calib->count;
}

/* Work, memory and disk space for making and measuring the masks. */
static void estimate_run(struct fm_estimate *estimate, const struct fm_train_options *o,
                         struct fm_task *task)
{
    *estimate = (struct fm_estimate){0};
    const struct fm_decimal *step = &o->budget_step, *until = &o->until;
    uint64_t targets = fm_decimal_targets(step, until), masks = targets + 1;
    uint64_t memory = task->memory;
    uint64_t measured = fm_decimal_targets(&o->measure_step, until) + 1;
    measured = measured < masks ? measured : masks;
    uint64_t group = (uint64_t)fm_quality_group(task->model, &task->held, task->memory);
    /* Students keep all channels at the start and 1 - until at the end. */
    struct fm_estimate_sweep sweep = {.T = task->calib.T, .kept = 1 - fm_decimal_value(until) / 2};
    if (o->method->cost) {
        o->method->cost(&sweep, o, task);
        fm_estimate_add(estimate, task->model, &sweep, memory);
        estimate->making = estimate->flops;
    }
    sweep.count = 1;
    sweep.rows = (uint64_t)task->held.count * (uint64_t)task->held.T;
    sweep.T = task->held.T;
    sweep.lanes = 1;
    sweep.backward = 0;
    fm_estimate_add_masks(estimate, task->model, &sweep, measured, group,
                          fm_task_part(task, group < measured ? group : measured), memory);
    /* An upper bound: uncompressed widths, and the bounds of the manifest's parts. */
    estimate->disk = masks * (uint64_t)task->config->M * (uint64_t)task->config->E * 4 +
                     masks * (MANIFEST_MASK + (uint64_t)task->held.inputs * MANIFEST_KIND) +
                     MANIFEST_RUN;
}

static void plan_run(struct fm_estimate *estimate, struct fm_task *task, void *self)
{
    const struct fm_trainer *t = self;
    estimate_run(estimate, t->options, task);
}

/* Suggest measuring less: fewer members, or fewer tokens. */
static void suggest_measures(struct fm_estimate *estimate, const struct fm_train_options *o,
                             struct fm_task *task)
{
    struct fm_train_options wider = *o;
    struct fm_decimal *measure = &wider.measure_step;
    struct fm_estimate changed;
    for (int i = 0; i < 2; i++) {
        measure->num *= 2;
        if (measure->num > measure->den)
            break;
        estimate_run(&changed, &wider, task);
        fm_estimate_suggest(estimate, changed.flops, "--measure-step %g",
                            fm_decimal_value(measure));
    }
    int held = task->held.count;
    if (!fm_inputs_evaluate(&task->run->inputs) || held < 2 * task->held.inputs)
        return;
    task->held.count = held / 2;
    estimate_run(&changed, o, task);
    fm_estimate_suggest(estimate, changed.flops, "--max-eval-tokens %d",
                        task->held.count * task->held.T);
    task->held.count = held;
}

/* A method with the same options that takes no steps. */
static const struct fm_method *method_without_steps(void)
{
    int i = 0;
    while (fm_methods[i + 1] && (fm_methods[i]->cost || !fm_methods[i]->shapes))
        i++;
    return fm_methods[i];
}

/* Suggest cheaper runs: fewer steps, a cheaper method, or measuring less. */
static void suggest_less(struct fm_estimate *estimate, const struct fm_train_options *o,
                         struct fm_task *task)
{
    struct fm_train_options other = *o;
    struct fm_estimate changed;
    if (o->method->trains && o->steps > 1) {
        other.steps = o->steps / 2;
        estimate_run(&changed, &other, task);
        fm_estimate_suggest(estimate, changed.flops, "--steps %d", other.steps);
    }
    other.method = method_without_steps();
    estimate_run(&changed, &other, task);
    fm_estimate_suggest(estimate, changed.flops, "--method %s", other.method->name);
    suggest_measures(estimate, o, task);
}

/* ---- the state file ---- */

/*
 * The family grows during a run, so its length is taken from the state file's arrays, and it is
 * allocated before the arrays are read.  Widths from the file are checked against the actions: a
 * damaged file must not yield an index out of range.
 */

static void release_packed(struct fm_trainer_packed *packed)
{
    free(packed->steps);
    free(packed->methods);
    free(packed->quality);
    *packed = (struct fm_trainer_packed){0};
}

/* Set t->packed to the arrays of the family that the state file has in addition to its widths. */
static int pack_family(void *self, struct fm_err *err)
{
    struct fm_trainer *t = self;
    struct fm_trainer_packed *p = &t->packed;
    const struct fm_masks *f = &t->masks;
    release_packed(p);
    p->steps = fm_alloc((size_t)f->count, sizeof *p->steps, "state", err);
    p->methods = fm_alloc((size_t)f->count, sizeof *p->methods, "state", err);
    p->quality = fm_alloc((size_t)f->count, FM_QUALITY_VALUES * sizeof *p->quality, "state", err);
    if (!p->steps || !p->methods || !p->quality)
        return FM_ENOMEM;
    for (int b = 0; b < f->count; b++) {
        p->steps[b] = f->mask[b].step;
        p->methods[b] = fm_methods_index(f->mask[b].method);
        fm_quality_pack(p->quality, b, &f->mask[b].quality);
    }
    return FM_OK;
}

static size_t list_state(void *self, struct fm_journal_item *item)
{
    struct fm_trainer *t = self;
    size_t items = 0;
    uint64_t X = (uint64_t)t->task.config->M * (uint64_t)t->task.config->E;
    uint64_t count = (uint64_t)t->masks.count;
    if (t->method->save)
        t->method->save(item, &items, t);
    fm_runner_item(item, &items, "widths", FM_U32, count * X, t->masks.widths);
    fm_runner_item(item, &items, "steps", FM_I64, count, t->packed.steps);
    fm_runner_item(item, &items, "methods", FM_I64, count, t->packed.methods);
    fm_runner_item(item, &items, "quality", FM_F64, count * FM_QUALITY_VALUES, t->packed.quality);
    return items;
}

/* Grow the family to its size in the state file. */
static int size_family(void *self, const struct fm_journal *j, struct fm_err *err)
{
    struct fm_trainer *t = self;
    struct fm_masks *f = &t->masks;
    uint64_t count = fm_journal_count(j, "steps");
    if (count == 0 || count > FM_BUDGETS_MAX)
        return fm_fail(err, FM_EFORMAT, "state file '%s' is damaged: it has %llu masks",
                       t->task.run->outputs.state, (unsigned long long)count);
    /* Append copies of the full mask; the arrays of the file overwrite them. */
    struct fm_mask full = f->mask[0];
    if (fm_masks_reserve(f, (size_t)count, err))
        return err->code;
    for (uint64_t b = (uint64_t)f->count; b < count; b++)
        f->mask[b] = full;
    f->count = (int)count;
    return pack_family(t, err);
}

static int check_widths(const struct fm_trainer *t, struct fm_err *err)
{
    size_t X = (size_t)t->task.config->M * (size_t)t->task.config->E;
    for (size_t x = 0; x < X * (size_t)t->masks.count; x++)
        if (fm_actions_find(&t->actions, t->masks.widths[x]) < 0)
            return fm_fail(err, FM_EFORMAT,
                           "state file '%s' is damaged: width %u is not in the action set",
                           t->task.run->outputs.state, t->masks.widths[x]);
    return FM_OK;
}

static int check_methods(const struct fm_trainer *t, const struct fm_trainer_packed *p,
                         struct fm_err *err)
{
    int methods = 0;
    while (fm_methods[methods])
        methods++;
    for (int b = 0; b < t->masks.count; b++)
        if (p->methods[b] < 0 || p->methods[b] >= methods)
            return fm_fail(err, FM_EFORMAT,
                           "state file '%s' is damaged: mask %d has method number %lld",
                           t->task.run->outputs.state, b, (long long)p->methods[b]);
    return FM_OK;
}

static int resumed(void *self, struct fm_err *err)
{
    struct fm_trainer *t = self;
    if (check_widths(t, err) || check_methods(t, &t->packed, err))
        return err->code;
    struct fm_masks *f = &t->masks;
    for (int b = 0; b < f->count; b++)
        f->mask[b] = (struct fm_mask){.removed = fm_masks_removed(f, fm_masks_widths(f, b)),
                                      .method = fm_methods[t->packed.methods[b]],
                                      .step = (int)t->packed.steps[b],
                                      .quality = fm_quality_unpack(t->packed.quality, b, false)};
    if (t->method->resumed)
        t->method->resumed(t);
    return FM_OK;
}

/* ---- finishing a family, for all methods ---- */

/* List the masks that must be measured and have no figures yet. */
static int list_unmeasured(int *number, const struct fm_trainer *t, const struct fm_masks *f,
                           struct fm_err *err)
{
    bool *measured = fm_alloc((size_t)f->count, sizeof *measured, "masks", err);
    int n = 0;
    if (!measured)
        return -1;
    fm_masks_measured(measured, f, &t->options->measure_step, &t->options->budget_step);
    for (int b = 0; b < f->count; b++)
        if (measured[b] && f->mask[b].quality.positions == 0)
            number[n++] = b;
    free(measured);
    return n;
}

static int take_figures(void *self, const int *number, const struct fm_quality *quality, int n,
                        struct fm_err *err)
{
    struct fm_trainer *t = self;
    for (int i = 0; i < n; i++) {
        assert(number[i] >= 0 && number[i] < t->masks.count);
        t->masks.mask[number[i]].quality = quality[i];
    }
    return fm_runner_due(&t->runner, err);
}

/* Measure the masks without figures, in pieces between which the state can be saved. */
static int measure_family(struct fm_trainer *t, struct fm_err *err)
{
    struct fm_masks *f = &t->masks;
    int *number = fm_alloc((size_t)f->count, sizeof *number, "quality", err);
    int unmeasured = number ? list_unmeasured(number, t, f, err) : -1, rc = FM_ENOMEM;
    fm_run_phase(t->task.run, t->runner.work_measure, 0);
    if (unmeasured >= 0)
        rc = fm_task_measure(&t->task, f, number, unmeasured, NULL, take_figures, t, err);
    free(number);
    return rc;
}

static struct fm_gaps gaps_of(const struct fm_trainer *t, double *lost)
{
    const struct fm_ranking *r = &t->task.ranking;
    int size = fm_granularity_size(t->options->granularity, r->M, r->E);
    size_t X = (size_t)r->M * (size_t)r->E;
    fm_masks_lost(lost, &t->actions, r->scores, r->order, r->M, r->E, r->I);
    fm_granularity_sum(lost, lost, X, size, t->actions.count);
    return (struct fm_gaps){&t->actions, lost, size, &t->options->budget_step, &t->options->until};
}

static int fill_gaps(struct fm_trainer *t, struct fm_err *err)
{
    struct fm_masks made, *f = &t->masks;
    size_t lost_count = (size_t)f->M * (size_t)f->E * (size_t)t->actions.count;
    double *lost = fm_alloc(lost_count, sizeof *lost, "lost scores", err);
    if (!lost)
        return FM_ENOMEM;
    struct fm_gaps gaps = gaps_of(t, lost);
    fm_masks_init(&made, f->M, f->E, f->I);
    int rc = fm_gaps_fill(&made, f, &gaps, err);
    if (!rc) {
        fm_masks_release(f);
        *f = made;
        made = (struct fm_masks){0};
    }
    fm_masks_release(&made);
    free(lost);
    return rc;
}

static bool is_short(const struct fm_trainer *t, const struct fm_masks *f, uint64_t removed)
{
    uint64_t channels = fm_masks_channels(f);
    return removed + fm_decimal_ceil(&t->options->budget_step, channels) <=
           fm_decimal_floor(&t->options->until, channels);
}

/* Note in the report whether the method itself came within a step of `until`, and its last budget.
 * If it did not, warn with the reason and the option to change. */
static void report_reach(struct fm_trainer *t)
{
    const struct fm_train_options *o = t->options;
    const struct fm_masks *f = &t->masks;
    char until_text[FM_DECIMAL_TEXT];
    fm_decimal_print(until_text, &o->until);
    assert(f->count > 0);
    uint64_t end = f->mask[f->count - 1].removed, came = end;
    if (t->method->removed)
        came = t->method->removed(t, f);
    came = came < end ? came : end;
    t->report->came_to = (double)came / (double)fm_masks_channels(f);
    t->report->reached = !is_short(t, f, came);
    /* Only training runs out of steps; other methods go on while an expert can be narrowed. */
    if (!t->report->reached && came < end)
        fm_run_warn(t->task.run,
                    "%s reached only a budget of %.4f in %d steps (--steps %d and as many again); "
                    "from there to --until %s, widths follow only the scores; give more --steps, "
                    "a larger --lr or a smaller --prior",
                    t->method->name, t->report->came_to, 2 * o->steps, o->steps, until_text);
    if (!is_short(t, f, end))
        return;
    uint32_t narrow = fm_masks_widths(f, f->count - 1)[0];
    bool rounded = o->width_multiple > 1 && t->actions.width[0] <= o->width_multiple;
    if (!t->method->shapes && narrow > o->width_multiple &&
        (o->actions.count == 0 || narrow > t->actions.width[0]))
        fm_run_warn(t->task.run,
                    "the last mask removes %.4f of the channels, less than --until %s: every "
                    "expert has %u of %d channels, and the next smaller width would remove more "
                    "than --until; give a higher --until",
                    fm_masks_budget(f, f->count - 1), until_text, narrow, f->I);
    else
        fm_run_warn(t->task.run,
                    "the last mask removes %.4f of the channels, less than --until %s: experts "
                    "have their smallest width, %u of %d channels; give %s",
                    fm_masks_budget(f, f->count - 1), until_text, t->actions.width[0], f->I,
                    rounded ? "a smaller --width-multiple"
                            : "--actions that begin with a smaller share");
}

/* ---- the action set ---- */

/* The action set: --actions if given, else the method's usual one.  If all experts share one width,
 * each action is one budget, so the default is an action for every budget step, unless the step is
 * above a half, which would leave only the full width. */
static int choose_actions(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_train_options *o = t->options;
    const struct fm_decimal *step = &o->budget_step, one = {1, 1};
    const struct fm_decimal most = {step->den - step->num, step->den};
    struct fm_actions *a = &t->actions;
    int I = t->task.config->I, rc;
    bool given = o->actions.count > 0, usual = t->method->actions.den > 0;
    bool steps = !given && usual && o->granularity == FM_PER_MODEL && 2 * step->num <= step->den;
    if (given)
        rc = fm_actions_set(a, &o->actions, I, o->width_multiple, err);
    else if (usual && !steps)
        rc = fm_actions_steps(a, &t->method->actions, &one, I, o->width_multiple, err);
    else
        rc = fm_actions_steps(a, step, steps ? &most : &o->until, I, o->width_multiple, err);
    if (rc || (!given && !usual))
        return rc;
    if ((given || o->width_multiple > 1) && a->merged && !steps)
        fm_run_warn(t->task.run,
                    "%d of %d actions give the same width as another one and are merged: %d "
                    "channels in multiples of %u allow %d widths",
                    a->merged, a->merged + a->count, I, a->multiple, a->count);
    return a->count >= 2 ? FM_OK
                         : fm_fail(err, FM_EUSAGE,
                                   "a family needs more than one width; give more --actions or a "
                                   "smaller --width-multiple");
}

/* ---- a run ---- */

static void print_params(void *self, struct fm_text *text)
{
    const struct fm_trainer *t = self;
    const struct fm_train_options *o = t->options;
    struct fm_digest widths =
        fm_digest_of(t->actions.width, (size_t)t->actions.count * sizeof *t->actions.width);
    char step[FM_DECIMAL_TEXT], until[FM_DECIMAL_TEXT], measure[FM_DECIMAL_TEXT];
    fm_decimal_print(step, &o->budget_step);
    fm_decimal_print(until, &o->until);
    fm_decimal_print(measure, &o->measure_step);
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &widths);
    fm_text_printf(text,
                   "method %s granularity %s step %s until %s steps %d samples %d prior %.17g "
                   "lr %.17g tau %.17g entropy %.17g "
                   "around %d " FM_STEPCOST_RULE " batch %d measure %s widths %s",
                   o->method->name, fm_granularity_name(o->granularity), step, until, o->steps,
                   o->samples, o->prior, o->lr, o->tau_last, o->entropy_last,
                   fm_trainer_around(&t->task.calib, o), t->task.batch, measure, hex);
}

static int begin(void *self, struct fm_err *err)
{
    struct fm_trainer *t = self;
    const struct fm_config *c = t->task.config;
    fm_masks_init(&t->masks, c->M, c->E, c->I);
    return fm_masks_full(&t->masks, t->method, err) || t->method->begin(t, err) ? err->code : FM_OK;
}

static int step(void *self, bool *done, struct fm_err *err)
{
    struct fm_trainer *t = self;
    *done = !t->method->step;
    return *done ? FM_OK : t->method->step(t, done, err);
}

static int finish(void *self, struct fm_err *err)
{
    struct fm_trainer *t = self;
    /* The uniform family has a mask at every allowed width.  Filling a family without gaps changes
     * nothing, so this may be repeated after a resume. */
    int rc = t->method->shapes ? fill_gaps(t, err) : FM_OK;
    if (rc)
        return rc;
    report_reach(t);
    return measure_family(t, err);
}

/* ---- the stream ---- */

/* Move the result's arrays to the report. */
static int fill_report(void *self, struct fm_err *err)
{
    (void)err;
    struct fm_trainer *t = self;
    struct fm_train_report *report = t->report;
    *report = (struct fm_train_report){.masks = t->masks,
                                       .actions = t->actions,
                                       .steps = t->method->trains ? (int)t->runner.taken : 0,
                                       .resumed = t->runner.resumed,
                                       .reached = report->reached,
                                       .came_to = report->came_to,
                                       .seconds = t->runner.seconds,
                                       .seconds_step = t->runner.seconds_step};
    fm_quality_kinds(&report->masks.kinds, &t->task.held);
    t->masks = (struct fm_masks){0};
    return FM_OK;
}

static void record(void *self, cJSON *to)
{
    const struct fm_trainer *t = self;
    const struct fm_train_options *o = t->options;
    enum fm_granularity granularity = t->method->shapes ? o->granularity : FM_PER_MODEL;
    char step[FM_DECIMAL_TEXT], until[FM_DECIMAL_TEXT], measure[FM_DECIMAL_TEXT];
    fm_json_add_string(to, "method", o->method->name);
    fm_decimal_print(step, &t->options->budget_step);
    fm_decimal_print(until, &t->options->until);
    fm_json_add_string(to, "granularity", fm_granularity_name(granularity));
    fm_json_add_uint(to, "width_multiple", o->width_multiple);
    fm_json_add_string(to, "budget_step", step);
    fm_json_add_string(to, "until", until);
    fm_decimal_print(measure, &t->options->measure_step);
    fm_json_add_string(to, "measure_step", measure);
    if (t->method->record)
        t->method->record(to, t);
}

static void record_result(void *self, cJSON *result)
{
    const struct fm_trainer *t = self;
    fm_json_add_uint(result, "masks", (uint64_t)t->report->masks.count);
    fm_json_add_uint(result, "steps", (uint64_t)t->report->steps);
    if (!t->report->reached) {
        fm_json_add_bool(result, "reached", false);
        fm_json_add_double(result, "came_to", t->report->came_to);
    }
}

static int make_members(void *self, cJSON *manifest, struct fm_stage_member *member,
                        size_t *members, struct fm_err *err)
{
    const struct fm_trainer *t = self;
    const struct fm_task *task = &t->task;
    void *frame = NULL;
    member->name = FM_MEMBER_MASKS;
    int rc = fm_budgets_pack(&t->report->masks, &t->report->actions, task->config,
                             fm_stage_tensor_bytes(&task->dir, task->config),
                             fm_model_dtype(task->model), manifest, &frame, &member->size, err);
    member->data = frame;
    *members = 1;
    return rc;
}

/* Methods that compare experts by scores are refused for criteria whose scores only order the
 * channels of one expert (FM_ECONFIG). */
static int check_criterion(const struct fm_train_options *o, const struct fm_task *task,
                           struct fm_err *err)
{
    const struct fm_criterion *criterion;
    char prior[32] = "";
    int rc = fm_criterion_read(&criterion, &task->in, err);
    if (rc || criterion->comparable)
        return rc;
    const struct fm_method *m = o->method;
    if (!m->weighs || (m->trains && o->prior == 0))
        return FM_OK;
    if (m->trains)
        snprintf(prior, sizeof prior, " with --prior %g", o->prior);
    return fm_fail(err, FM_ECONFIG,
                   "the channels were ranked by %s, but --method %s%s needs taylor scores: run "
                   "fm-rank with --criterion taylor, or use --method exchange, uniform or "
                   "%s--prior 0",
                   criterion->name, o->method->name, prior, prior[0] ? "" : "learned with ");
}

/* Widths must not split a channel group: by default the multiple is the ranking's group. */
static int choose_multiple(struct fm_train_options *o, const struct fm_task *task,
                           struct fm_err *err)
{
    int group;
    if (fm_ranking_group(&group, &task->in, task->config->I, err))
        return err->code;
    if (o->width_multiple == 0)
        o->width_multiple = (uint32_t)group;
    if (o->width_multiple % (uint32_t)group == 0)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "--width-multiple %u: the channels were ranked in groups of %d (fm-rank "
                   "--channel-group); use a multiple of %d",
                   o->width_multiple, group, group);
}

/* Set *reach to the last mask's budget: `until`, or that of the narrowest widths if it is smaller.
 * Set *beyond to the distance beyond *reach up to which --budget is accepted (lib/masks/masks.h,
 * fm_masks_choose). With one width for the whole model, the first action that removes `until` is
 * the last mask; for `uniform` it is the last one that does not remove more.  With other
 * granularities, the last mask may exceed `until` by one action step of a group, and the mask
 * before it is at most a budget step and an action step away.  `learned` can skip actions, so its
 * steps may be larger. */
static void forecast_reach(double *reach, double *beyond, const struct fm_trainer *t)
{
    const struct fm_train_options *o = t->options;
    const struct fm_config *c = t->task.config;
    const struct fm_actions *actions = &t->actions;
    const struct fm_decimal *until = &t->options->until;
    bool skips = t->method->trains, shaped = t->method->shapes;
    bool together = !shaped || o->granularity == FM_PER_MODEL;
    uint64_t I = (uint64_t)c->I;
    assert(actions->count > 0 && actions->width[actions->count - 1] == I);
    uint32_t most = skips ? actions->width[actions->count - 1] - actions->width[0] : 0;
    int end = 0;
    for (int a = 1; a < actions->count; a++) {
        uint32_t change = actions->width[a] - actions->width[a - 1];
        most = change > most ? change : most;
        if (shaped && together && !skips && (I - actions->width[a]) * until->den >= until->num * I)
            end = a;
    }
    if (!shaped) { /* as fm_masks_uniform() */
        uint64_t experts = (uint64_t)c->M * (uint64_t)c->E;
        uint64_t removed = fm_decimal_ceil(until, experts * I);
        while (end < actions->count - 1 && (I - actions->width[end]) * experts > removed)
            end++;
        most = end < actions->count - 1 ? actions->width[end + 1] - actions->width[end] : 0;
    }
    double last = 1 - (double)actions->width[end] / c->I;
    double to = fm_decimal_value(until);
    double step = fm_decimal_value(&o->budget_step);
    int size = together ? c->M * c->E : fm_granularity_size(o->granularity, c->M, c->E);
    double share = (double)most / c->I * size / ((double)c->M * c->E);
    *reach = together || last < to ? last : to;
    *beyond = together ? fmax(step, share) : step + 2 * share;
}

static void forecast(void *self, struct fm_estimate *estimate)
{
    struct fm_trainer *t = self;
    suggest_less(estimate, t->options, &t->task);
    forecast_reach(&estimate->reach, &estimate->beyond, t);
    estimate->method = t->method->name;
}

/* Choose the width multiple and the actions. */
static int open_inputs(void *self, struct fm_err *err)
{
    struct fm_trainer *t = self;
    if (t->task.in.members &&
        (check_criterion(t->options, &t->task, err) || choose_multiple(&t->given, &t->task, err)))
        return err->code;
    if (t->given.width_multiple == 0)
        t->given.width_multiple = 1;
    return choose_actions(t, err);
}

static const struct fm_work work = {
    .tool = "fm-train",
    .stage = FM_STAGE_TRAIN,
    .needs = FM_MEMBER_RANKING,
    .batch = 8,
    .open = open_inputs,
    .plan = plan_run,
    .forecast = forecast,
    .params = print_params,
    .begin = begin,
    .state = list_state,
    .size = size_family,
    .resumed = resumed,
    .collect = pack_family,
    .step = step,
    .finish = finish,
    .report = fill_report,
    .record = record,
    .result = record_result,
    .members = make_members,
};

int fm_train(const struct fm_run_options *run, const struct fm_train_options *options,
             struct fm_estimate *dry, struct fm_train_report *report, struct fm_err *err)
{
    struct fm_trainer t = {.runner = {.work = &work, .self = &t, .task = &t.task},
                           .given = *options,
                           .options = &t.given,
                           .method = options->method,
                           .report = report};
    int rc = fm_runner_run(&t.runner, run, dry, err);
    if (t.own && t.method->release)
        t.method->release(&t);
    free(t.own);
    release_packed(&t.packed);
    fm_masks_release(&t.masks);
    fm_task_close(&t.task);
    return rc;
}
