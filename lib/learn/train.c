/*
 * Methods differ in how they make a family: at once, without gradients, or step by step with
 * gradients (learned, exchange).  The rest is the same for all: check the options, resume the
 * state, make the family, finish it, write the stream.
 */
#include "lib/learn/train.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/data/provenance.h"
#include "lib/learn/criterion.h"
#include "lib/learn/quality.h"
#include "lib/learn/trainer.h"
#include "lib/masks/gaps.h"
#include "lib/masks/stepcost.h"
#include "lib/state/journal.h"
#include "lib/stage/budgets.h"
#include "lib/stage/stage.h"

#define TOOL "fm-train"
#define BATCH 8
/* Upper bounds on the bytes that a run adds to the manifest: its history, each mask, and each
 * mask's loss on one kind of text. */
#define MANIFEST_RUN 8192
#define MANIFEST_MASK 512
#define MANIFEST_KIND 64

/* ---- options ---- */

void fm_train_defaults(struct fm_train_options *options)
{
    *options = (struct fm_train_options){.method = &fm_method_exchange,
                                         .budget_step = "0.01",
                                         .until = "0.80",
                                         .measure_step = "0.05",
                                         .steps = 500,
                                         .samples = 1,
                                         .prior = 4,
                                         .lr = 0.02,
                                         .beta1 = 0.9,
                                         .beta2 = 0.99,
                                         .tau_first = 2,
                                         .tau_last = 0.5,
                                         .entropy_first = 0.02,
                                         .gain = 400,
                                         .around_sequences = 8,
                                         .around_tokens = 2560};
}

void fm_train_report_release(struct fm_train_report *report)
{
    fm_masks_release(&report->masks);
    *report = (struct fm_train_report){0};
}

static int check_options(const struct fm_train_options *o, struct fm_trainer_range *range,
                         struct fm_err *err)
{
    struct fm_decimal *step = &range->step, *until = &range->until;
    if (fm_decimal_parse(step, o->budget_step, "--budget-step", err) ||
        fm_decimal_parse(until, o->until, "--until", err) ||
        fm_decimal_parse(&range->measure, o->measure_step, "--measure-step", err))
        return err->code;
    if (step->num == 0)
        return fm_fail(err, FM_EUSAGE, "--budget-step 0: give a step above 0, such as 0.01");
    if (until->num == 0)
        return fm_fail(err, FM_EUSAGE, "--until 0: give a budget above 0, such as 0.80");
    if (range->measure.num == 0)
        return fm_fail(err, FM_EUSAGE, "--measure-step 0: give a step above 0, such as 0.05");
    if (fm_decimal_targets(step, until) >= FM_BUDGETS_MAX)
        return fm_fail(err, FM_EUSAGE, "--budget-step %s: more than %d budgets", o->budget_step,
                       FM_BUDGETS_MAX);
    if (o->steps < 1 || o->steps > FM_TRAIN_STEPS_MAX)
        return fm_fail(err, FM_EUSAGE, "--steps %d: give 1 to %d", o->steps, FM_TRAIN_STEPS_MAX);
    _Static_assert(FM_TRAIN_SAMPLES_MAX < FM_LANES_MAX, "one lane is the teacher");
    if (o->samples < 1 || o->samples > FM_TRAIN_SAMPLES_MAX)
        return fm_fail(err, FM_EUSAGE, "--samples-per-batch %d: give 1 to %d", o->samples,
                       FM_TRAIN_SAMPLES_MAX);
    if (!(o->lr >= FM_TRAIN_LR_MIN && o->lr <= FM_TRAIN_LR_MAX))
        return fm_fail(err, FM_EUSAGE, "--lr %g: give %g to %d", o->lr, FM_TRAIN_LR_MIN,
                       FM_TRAIN_LR_MAX);
    if (!(o->prior >= 0 && o->prior <= FM_TRAIN_PRIOR_MAX))
        return fm_fail(err, FM_EUSAGE, "--prior %g: give 0 to %d", o->prior, FM_TRAIN_PRIOR_MAX);
    if (o->width_multiple > FM_TRAIN_MULTIPLE_MAX)
        return fm_fail(err, FM_EUSAGE, "--width-multiple %u: give 1 to %d", o->width_multiple,
                       FM_TRAIN_MULTIPLE_MAX);
    return FM_OK;
}

/* ---- cost: the sweeps of each method, and the number of sequences they read ---- */

int fm_trainer_around(const struct fm_calib *calib, const struct fm_train_options *o)
{
    int take = (o->around_tokens + calib->T - 1) / calib->T;
    take = take > o->around_sequences ? take : o->around_sequences;
    return take < calib->count ? take : calib->count;
}

int fm_trainer_batch(const struct fm_run_options *run)
{
    return run->inputs.batch > 0 ? run->inputs.batch : BATCH;
}

/* Students keep all channels at the start and 1 - until at the end. */
static double mean_kept(const struct fm_decimal *until)
{
    return 1 - (double)until->num / (double)until->den / 2;
}

/* Work, memory and disk space for making and measuring the masks. */
static void estimate_run(struct fm_estimate *estimate, const struct fm_train_options *o,
                         struct fm_task *task, const struct fm_trainer_range *range)
{
    *estimate = (struct fm_estimate){0};
    const struct fm_decimal *step = &range->step, *until = &range->until;
    uint64_t targets = fm_decimal_targets(step, until), masks = targets + 1;
    uint64_t memory = task->memory;
    uint64_t measured = fm_decimal_targets(&range->measure, until) + 1;
    measured = measured < masks ? measured : masks;
    uint64_t group = (uint64_t)fm_quality_group(task->model, &task->held, task->memory);
    struct fm_estimate_sweep sweep = {.T = task->calib.T, .kept = mean_kept(until)};
    if (o->method->cost) {
        o->method->cost(&sweep, &(struct fm_trainer_plan){o, task, range});
        fm_estimate_add(estimate, task->model, &sweep, memory);
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

struct planned {
    const struct fm_train_options *options;
    const struct fm_trainer_range *range;
};

static void plan_run(struct fm_estimate *estimate, struct fm_task *task, void *self)
{
    const struct planned *p = self;
    estimate_run(estimate, p->options, task, p->range);
}

/* Suggest measuring less: fewer members, or fewer tokens. */
static void suggest_measures(struct fm_estimate *estimate, const struct fm_train_options *o,
                             struct fm_task *task, const struct fm_trainer_range *range)
{
    struct fm_trainer_range wider = *range;
    struct fm_estimate changed;
    for (int i = 0; i < 2; i++) {
        wider.measure.num *= 2;
        if (wider.measure.num > wider.measure.den)
            break;
        estimate_run(&changed, o, task, &wider);
        fm_estimate_suggest(estimate, changed.flops, "--measure-step %g",
                            (double)wider.measure.num / (double)wider.measure.den);
    }
    int held = task->held.count;
    if (!fm_inputs_evaluate(&task->run->inputs) || held < 2 * task->held.inputs)
        return;
    task->held.count = held / 2;
    estimate_run(&changed, o, task, range);
    fm_estimate_suggest(estimate, changed.flops, "--max-eval-tokens %d",
                        task->held.count * task->held.T);
    task->held.count = held;
}

/* A method with the same options that takes no steps. */
static const struct fm_method *cheapest(void)
{
    int i = 0;
    while (fm_methods[i + 1] && (fm_methods[i]->cost || !fm_methods[i]->shapes))
        i++;
    return fm_methods[i];
}

/* Suggest cheaper runs: fewer steps, a cheaper method, or measuring less. */
static void suggest_less(struct fm_estimate *estimate, const struct fm_train_options *o,
                         struct fm_task *task, const struct fm_trainer_range *range)
{
    struct fm_train_options other = *o;
    struct fm_estimate changed;
    if (o->method->trains && o->steps > 1) {
        other.steps = o->steps / 2;
        estimate_run(&changed, &other, task, range);
        fm_estimate_suggest(estimate, changed.flops, "--steps %d", other.steps);
    }
    other.method = cheapest();
    estimate_run(&changed, &other, task, range);
    fm_estimate_suggest(estimate, changed.flops, "--method %s", other.method->name);
    suggest_measures(estimate, o, task, range);
}

/* Copy the work of each part from the estimate, in the order in which estimate_run added them. */
static void take_work(struct fm_trainer *t, const struct fm_estimate *estimate)
{
    int at = 0;
    t->work.make = t->method->cost ? estimate->kind[at++].flops : 0;
    for (; at < estimate->kinds; at++)
        t->work.measure += estimate->kind[at].flops;
}

/* ---- the state file ---- */

/*
 * The family grows during a run, so its length is taken from the state file's arrays, and it is
 * allocated before the arrays are read.  Widths from the file are checked against the actions: a
 * damaged file must not yield an index out of range.
 */

void fm_trainer_item(struct fm_journal_item *item, size_t *items, const char *name,
                     enum fm_dtype dtype, uint64_t count, void *data)
{
    item[(*items)++] =
        (struct fm_journal_item){.name = name, .dtype = dtype, .count = count, .data = data};
}

/* The arrays of the family in the state file, in addition to its widths. */
struct packed {
    int64_t *steps;  /* (count) */
    double *quality; /* (count, QUALITIES) */
};

enum { CE, KL, AGREE, POSITIONS, METHOD, KIND, QUALITIES = KIND + FM_KINDS_MAX };

static int pack_family(struct packed *p, const struct fm_masks *f, struct fm_err *err)
{
    p->steps = fm_alloc((size_t)f->count, sizeof *p->steps, "state", err);
    p->quality = fm_alloc((size_t)f->count, QUALITIES * sizeof *p->quality, "state", err);
    if (!p->steps || !p->quality)
        return FM_ENOMEM;
    for (int b = 0; b < f->count; b++) {
        const struct fm_quality *q = &f->mask[b].quality;
        double *to = p->quality + (size_t)b * QUALITIES;
        p->steps[b] = f->mask[b].step;
        to[CE] = q->ce;
        to[KL] = q->kl;
        to[AGREE] = q->agree;
        to[POSITIONS] = (double)q->positions;
        to[METHOD] = fm_methods_index(f->mask[b].method);
        memcpy(to + KIND, q->kind, sizeof q->kind);
    }
    return FM_OK;
}

static void release_packed(struct packed *packed)
{
    free(packed->steps);
    free(packed->quality);
}

static void unpack_family(struct fm_masks *f, const struct packed *p)
{
    for (int b = 0; b < f->count; b++) {
        const double *q = p->quality + (size_t)b * QUALITIES;
        f->mask[b].step = (int)p->steps[b];
        f->mask[b].method = fm_methods[(int)q[METHOD]];
        f->mask[b].removed = fm_masks_removed(f, fm_masks_widths(f, b));
        f->mask[b].quality =
            (struct fm_quality){q[CE], q[KL], q[AGREE], (int64_t)q[POSITIONS], false, {0}};
        memcpy(f->mask[b].quality.kind, q + KIND, sizeof f->mask[b].quality.kind);
    }
}

static size_t list_state(struct fm_journal_item *item, struct fm_trainer *t,
                         const struct packed *packed)
{
    size_t items = 0;
    uint64_t X = (uint64_t)t->task.config->M * (uint64_t)t->task.config->E;
    uint64_t count = (uint64_t)t->masks.count;
    if (t->method->save)
        t->method->save(item, &items, t);
    fm_trainer_item(item, &items, "widths", FM_U32, count * X, t->masks.widths);
    fm_trainer_item(item, &items, "steps", FM_I64, count, packed->steps);
    fm_trainer_item(item, &items, "quality", FM_F64, count * QUALITIES, packed->quality);
    return items + fm_task_state_items(item + items, &t->task);
}

static int save_state(struct fm_trainer *t, struct fm_err *err)
{
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    struct packed packed = {0};
    double began = fm_clock_now();
    int rc = pack_family(&packed, &t->masks, err);
    if (!rc)
        rc = fm_journal_save(t->task.run->machine.comm, t->task.run->outputs.state, TOOL,
                             &t->params, item, list_state(item, t, &packed), err);
    release_packed(&packed);
    fm_journal_saved(&t->clock, began);
    return rc;
}

static int save_if_due(struct fm_trainer *t, struct fm_err *err)
{
    bool due = false;
    int rc = fm_task_due(&t->task, &t->clock, &due, err);
    return !rc && due ? save_state(t, err) : rc;
}

/* Grow the family to its size in the state file. */
static int size_family(struct fm_trainer *t, const struct fm_journal *j, struct fm_err *err)
{
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
    return FM_OK;
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

static int check_methods(const struct fm_trainer *t, const struct packed *p, struct fm_err *err)
{
    int methods = 0;
    while (fm_methods[methods])
        methods++;
    for (int b = 0; b < t->masks.count; b++) {
        double method = p->quality[(size_t)b * QUALITIES + METHOD];
        if (!(method >= 0 && method < methods))
            return fm_fail(err, FM_EFORMAT,
                           "state file '%s' is damaged: mask %d has method number %g",
                           t->task.run->outputs.state, b, method);
    }
    return FM_OK;
}

static int read_state(struct fm_trainer *t, const struct fm_journal *j, struct fm_err *err)
{
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    struct packed packed = {0};
    int rc = FM_OK;
    if (size_family(t, j, err) || fm_task_state_take(&t->task, j, err) ||
        pack_family(&packed, &t->masks, err) ||
        fm_journal_read(j, item, list_state(item, t, &packed), err) || check_widths(t, err) ||
        check_methods(t, &packed, err)) {
        rc = err->code;
        goto out;
    }
    unpack_family(&t->masks, &packed);
    if (t->method->resumed)
        t->method->resumed(t);
    t->resumed = (int)t->taken;
out:
    release_packed(&packed);
    return rc;
}

/* Read run->outputs.state, if there is one, after the method has begun.  FM_ECONFIG if it belongs
 * to a different run. */
static int resume(struct fm_trainer *t, struct fm_err *err)
{
    struct fm_journal j;
    bool found;
    const struct fm_run_options *run = t->task.run;
    int rc =
        fm_journal_open(&j, run->machine.comm, run->outputs.state, TOOL, &t->params, &found, err);
    if (!rc && found) {
        rc = read_state(t, &j, err);
        fm_journal_close(&j);
    }
    return rc;
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
    fm_masks_measured(measured, f, &t->range.measure, &t->range.step);
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
    for (int i = 0; i < n; i++)
        t->masks.mask[number[i]].quality = quality[i];
    return save_if_due(t, err);
}

/* Measure the masks without figures, in pieces between which the state can be saved. */
static int measure_family(struct fm_trainer *t, struct fm_err *err)
{
    struct fm_masks *f = &t->masks;
    int *number = fm_alloc((size_t)f->count, sizeof *number, "quality", err);
    int unmeasured = number ? list_unmeasured(number, t, f, err) : -1, rc = FM_ENOMEM;
    fm_run_phase(t->task.run, t->work.measure, 0);
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
    return (struct fm_gaps){&t->actions, lost, size, &t->range.step, &t->range.until};
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
    return removed + fm_decimal_ceil(&t->range.step, channels) <=
           fm_decimal_floor(&t->range.until, channels);
}

/* Only `learned` can run out of steps; the other methods continue as long as an expert can be
 * narrowed. */
static void warn_learned(struct fm_trainer *t, double budget)
{
    const struct fm_train_options *o = t->options;
    if (t->warned)
        return;
    t->warned = true;
    fm_run_warn(t->task.run,
                "learned reached only a budget of %.4f in %d steps (--steps %d and as many again); "
                "from there to --until %s, widths follow only the scores; give more --steps, a "
                "larger --lr or a smaller --prior",
                budget, 2 * o->steps, o->steps, o->until);
}

/* Fill gaps, except in the uniform family, which has a mask at every allowed width.  A family
 * without gaps does not change, so this may be repeated after a resume. */
static int fill_family(struct fm_trainer *t, struct fm_err *err)
{
    struct fm_masks *f = &t->masks;
    if (!t->method->shapes)
        return FM_OK;
    struct fm_mask last = f->mask[f->count - 1];
    double budget = fm_masks_budget(f, f->count - 1);
    int rc = fill_gaps(t, err);
    if (!rc && t->method->removed && is_short(t, f, last.removed) &&
        f->mask[f->count - 1].removed > last.removed)
        warn_learned(t, budget);
    return rc;
}

/* Whether the method itself came within a step of `until`; *came_to is its last budget.  If not,
 * warn with the reason and the option to change.  f is the result. */
static bool has_reached(struct fm_trainer *t, const struct fm_masks *f, double *came_to)
{
    const struct fm_train_options *o = t->options;
    uint64_t end = f->mask[f->count - 1].removed, came = end;
    if (t->method->removed)
        came = t->method->removed(t, f);
    came = came < end ? came : end;
    *came_to = (double)came / (double)fm_masks_channels(f);
    if (!is_short(t, f, came))
        return true;
    if (came < end)
        warn_learned(t, *came_to);
    if (!is_short(t, f, end))
        return false;
    uint32_t narrow = fm_masks_widths(f, f->count - 1)[0];
    if (!t->method->shapes && narrow > o->width_multiple &&
        (!o->actions || narrow > t->actions.width[0])) {
        fm_run_warn(t->task.run,
                    "the last mask removes %.4f of the channels, less than --until %s: every "
                    "expert has %u of %d channels, and the next smaller width would remove more "
                    "than --until; give a higher --until",
                    fm_masks_budget(f, f->count - 1), o->until, narrow, f->I);
        return false;
    }
    bool rounded = o->width_multiple > 1 && t->actions.width[0] <= o->width_multiple;
    fm_run_warn(t->task.run,
                "the last mask removes %.4f of the channels, less than --until %s: experts have "
                "their smallest width, %u of %d channels; give %s",
                fm_masks_budget(f, f->count - 1), o->until, t->actions.width[0], f->I,
                rounded ? "a smaller --width-multiple"
                        : "--actions that begin with a smaller share");
    return false;
}

/* ---- the action set ---- */

static int check_several(const struct fm_trainer *t, struct fm_err *err)
{
    if (t->actions.count >= 2)
        return FM_OK;
    return fm_fail(err, FM_EUSAGE,
                   "a family needs more than one width; give more --actions or a "
                   "smaller --width-multiple");
}

static int parse_actions(struct fm_trainer *t, const char *usual, struct fm_err *err)
{
    const struct fm_train_options *o = t->options;
    int I = t->task.config->I;
    int rc =
        fm_actions_parse(&t->actions, o->actions ? o->actions : usual, I, o->width_multiple, err);
    if (!rc && (o->actions || o->width_multiple > 1) && t->actions.merged)
        fm_run_warn(t->task.run,
                    "%d of %d actions give the same width as another one and are merged: %d "
                    "channels in multiples of %u allow %d widths",
                    t->actions.merged, t->actions.merged + t->actions.count, I, t->actions.multiple,
                    t->actions.count);
    return rc ? rc : check_several(t, err);
}

/* The action set: --actions if given, else the method's usual one.  If all experts share one width,
 * each action is one budget, so the default is an action for every budget step, unless the step is
 * above a half, which would leave only the full width. */
static int choose_actions(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_train_options *o = t->options;
    const struct fm_decimal *step = &t->range.step;
    const struct fm_decimal most = {step->den - step->num, step->den};
    int I = t->task.config->I;
    if (!o->actions && !t->method->actions)
        return fm_actions_steps(&t->actions, step, &t->range.until, I, o->width_multiple, err);
    if (o->actions || o->granularity != FM_PER_MODEL || 2 * step->num > step->den)
        return parse_actions(t, t->method->actions, err);
    int rc = fm_actions_steps(&t->actions, step, &most, I, o->width_multiple, err);
    return rc ? rc : check_several(t, err);
}

/* ---- a run ---- */

/* Set t->params, for the state file: the digest of everything that affects the result. */
static int digest_params(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_train_options *o = t->options;
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "method %s granularity %s step %s until %s steps %d samples %d prior %.17g "
                     "adam %.17g %.17g %.17g tau %.17g %.17g entropy %.17g %.17g gain %.17g "
                     "around %d " FM_STEPCOST_RULE " batch %d measure %s widths",
                     o->method->name, fm_granularity_name(o->granularity), o->budget_step, o->until,
                     o->steps, o->samples, o->prior, o->lr, o->beta1, o->beta2, o->tau_first,
                     o->tau_last, o->entropy_first, o->entropy_last, o->gain,
                     fm_trainer_around(&t->task.calib, o), fm_trainer_batch(t->task.run),
                     o->measure_step);
    struct fm_digest widths =
        fm_digest_of(t->actions.width, (size_t)t->actions.count * sizeof *t->actions.width);
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &widths);
    assert(n > 0 && (size_t)n + sizeof hex < sizeof text);
    snprintf(text + n, sizeof text - (size_t)n, " %s", hex);
    return fm_task_params(&t->task, &t->params, text, err);
}

static int prepare(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_config *c = t->task.config;
    fm_masks_init(&t->masks, c->M, c->E, c->I);
    if (choose_actions(t, err) || digest_params(t, err) ||
        fm_masks_full(&t->masks, t->method, err) || t->method->begin(t, err))
        return err->code;
    return resume(t, err);
}

static int take_steps(struct fm_trainer *t, struct fm_err *err)
{
    bool done = !t->method->step;
    if (!done)
        fm_run_phase(t->task.run, t->work.make, t->work.measure);
    while (!done)
        if (fm_task_stopped(&t->task, err) || t->method->step(t, &done, err) || save_if_due(t, err))
            return err->code;
    return FM_OK;
}

static int run_all(struct fm_trainer *t, struct fm_train_report *report, struct fm_err *err)
{
    t->clock.saved = fm_clock_now();
    double began = fm_clock_now();
    int rc = take_steps(t, err);
    int steps = (int)t->taken - t->resumed;
    report->seconds_step = steps > 0 ? (fm_clock_now() - began) / steps : 0;
    if (!rc)
        rc = fill_family(t, err);
    if (!rc)
        rc = measure_family(t, err);
    if (rc != FM_ESAVED || !t->task.run->outputs.state)
        return rc;
    int saved = save_state(t, err);
    return saved ? saved : FM_ESAVED;
}

/* ---- the stream ---- */

/* Move the result's arrays to the report. */
static void fill_report(struct fm_train_report *report, struct fm_trainer *t)
{
    report->masks = t->masks;
    fm_quality_kinds(&report->masks.kinds, &t->task.held);
    t->masks = (struct fm_masks){0};
    report->actions = t->actions;
    report->steps = t->method->trains ? (int)t->taken : 0;
    report->resumed = t->resumed;
    report->reached = has_reached(t, &report->masks, &report->came_to);
}

static void record_options(cJSON *to, const struct fm_trainer *t)
{
    const struct fm_train_options *o = t->options;
    enum fm_granularity granularity = t->method->shapes ? o->granularity : FM_PER_MODEL;
    char step[FM_DECIMAL_TEXT], until[FM_DECIMAL_TEXT], measure[FM_DECIMAL_TEXT];
    fm_json_add_string(to, "method", o->method->name);
    fm_decimal_print(step, &t->range.step);
    fm_decimal_print(until, &t->range.until);
    fm_json_add_string(to, "granularity", fm_granularity_name(granularity));
    fm_json_add_uint(to, "width_multiple", o->width_multiple);
    fm_json_add_string(to, "budget_step", step);
    fm_json_add_string(to, "until", until);
    fm_decimal_print(measure, &t->range.measure);
    fm_json_add_string(to, "measure_step", measure);
    if (t->method->record)
        t->method->record(to, t);
}

static void record(cJSON *manifest, const struct fm_trainer *t,
                   const struct fm_train_report *report)
{
    cJSON *entry = fm_stage_history(manifest, TOOL);
    record_options(fm_task_options(entry, &t->task, fm_trainer_batch(t->task.run)), t);
    fm_provenance_tokens(entry, &t->task.calib);
    fm_provenance_held_out(entry, &t->task.held);
    cJSON *result = fm_json_add_object(entry, "result");
    fm_json_add_uint(result, "masks", (uint64_t)report->masks.count);
    fm_json_add_uint(result, "steps", (uint64_t)report->steps);
    if (!report->reached) {
        fm_json_add_bool(result, "reached", false);
        fm_json_add_double(result, "came_to", report->came_to);
    }
}

static int write_stream(struct fm_trainer *t, const struct fm_train_report *report,
                        struct fm_err *err)
{
    struct fm_task *task = &t->task;
    char dropped[FM_STAGE_DROPPED_BYTES] = "";
    cJSON *manifest = fm_stage_manifest(FM_STAGE_TRAIN, &task->in, NULL, dropped);
    void *frame = NULL;
    size_t size = 0;
    if (dropped[0])
        fm_run_warn(task->run, "%s", dropped);
    record(manifest, t, report);
    if (fm_budgets_pack(&report->masks, &report->actions, task->config,
                        fm_stage_tensor_bytes(&task->dir, task->config),
                        fm_model_dtype(task->model), manifest, &frame, &size, err)) {
        cJSON_Delete(manifest);
        return err->code;
    }
    struct fm_stage_member member = {FM_MEMBER_MASKS, frame, size};
    int rc = fm_stage_write(task->run, FM_STAGE_TRAIN, manifest, &task->in, NULL, &member, 1, err);
    free(frame);
    return rc;
}

/* Make the masks, unless the output is up to date. */
static int make_masks(struct fm_trainer *t, struct fm_train_report *report, struct fm_err *err)
{
    struct fm_estimate estimate;
    fm_task_plan(&estimate, &t->task, plan_run, &(struct planned){t->options, &t->range});
    if (fm_estimate_check(&estimate, t->task.run,
                          fm_stage_copied_bytes(FM_STAGE_TRAIN, &t->task.in), err))
        return err->code;
    take_work(t, &estimate);
    int rc = prepare(t, err);
    if (!rc)
        rc = run_all(t, report, err);
    if (!rc)
        fill_report(report, t);
    return rc;
}

static int run_trainer(struct fm_trainer *t, struct fm_train_report *report, struct fm_err *err)
{
    struct fm_comm *comm = t->task.run->machine.comm;
    int rc = fm_comm_agree(comm, make_masks(t, report, err), err);
    if (rc)
        return rc;
    rc = fm_comm_share_tallies(comm, err);
    report->seconds = fm_clock_now() - t->task.began;
    if (!rc && fm_comm_rank(comm) == 0)
        rc = write_stream(t, report, err);
    rc = fm_comm_agree(comm, rc, err);
    if (!rc)
        fm_task_forget(&t->task, TOOL);
    return rc;
}

/*
 * Taylor scores are squared estimates of changes of the loss, so they are comparable between
 * experts.  The scores of other criteria only order the channels of one expert, so methods that
 * compare experts by scores are refused for them (FM_ECONFIG).
 */
static int check_criterion(const struct fm_train_options *o, const struct fm_task *task,
                           struct fm_err *err)
{
    enum fm_criterion criterion;
    char prior[32] = "";
    int rc = fm_criterion_read(&criterion, &task->in, err);
    if (rc || criterion == FM_CRITERION_TAYLOR)
        return rc;
    const struct fm_method *m = o->method;
    if (!m->weighs || (m->trains && o->prior == 0))
        return FM_OK;
    if (m->trains)
        snprintf(prior, sizeof prior, " with --prior %g", o->prior);
    return fm_fail(err, FM_ECONFIG,
                   "the channels were ranked by %s, but --method %s%s needs taylor scores: run "
                   "fm-rank with --criterion taylor, or use --method uniform or %s--prior 0",
                   fm_criterion_name(criterion), o->method->name, prior,
                   prior[0] ? "" : "learned with ");
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

int fm_train(const struct fm_run_options *run, const struct fm_train_options *given,
             struct fm_train_report *report, struct fm_err *err)
{
    struct fm_train_options own = *given, *options = &own;
    struct fm_trainer t = {.options = options, .method = options->method};
    int rc = FM_OK;
    if (check_options(options, &t.range, err) ||
        fm_task_open(&t.task, run, FM_MEMBER_RANKING, err) ||
        check_criterion(options, &t.task, err) || choose_multiple(options, &t.task, err))
        rc = err->code;
    else
        rc = run_trainer(&t, report, err);
    if (t.own && t.method->release)
        t.method->release(&t);
    free(t.own);
    fm_masks_release(&t.masks);
    fm_task_close(&t.task);
    return rc;
}

/* Set *reach to the last mask's budget: `until`, or that of the narrowest widths if it is smaller.
 * Set *beyond to the distance beyond *reach up to which --budget is accepted (lib/masks/choose.h).
 * With one width for the whole model, the first action that removes `until` is the last mask; for
 * `uniform` it is the last one that does not remove more.  With other granularities, the last mask
 * may exceed `until` by one action step of a group, and the mask before it is at most a budget step
 * and an action step away.  `learned` can skip actions, so its steps may be larger. */
static int estimate_reach(double *reach, double *beyond, struct fm_trainer *t,
                          struct fm_train_options *o, struct fm_err *err)
{
    const struct fm_config *c = t->task.config;
    const struct fm_actions *actions = &t->actions;
    const struct fm_decimal *until = &t->range.until;
    if (o->width_multiple == 0)
        o->width_multiple = 1;
    if (choose_actions(t, err))
        return err->code;
    bool skips = t->method->trains, shaped = t->method->shapes;
    bool together = !shaped || o->granularity == FM_PER_MODEL;
    uint64_t I = (uint64_t)c->I;
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
    double to = (double)until->num / (double)until->den;
    double step = (double)t->range.step.num / (double)t->range.step.den;
    int size = together ? c->M * c->E : fm_granularity_size(o->granularity, c->M, c->E);
    double share = (double)most / c->I * size / ((double)c->M * c->E);
    *reach = together || last < to ? last : to;
    *beyond = together ? fmax(step, share) : step + 2 * share;
    return FM_OK;
}

int fm_train_estimate(const struct fm_run_options *run, const struct fm_train_options *given,
                      struct fm_estimate *estimate, struct fm_err *err)
{
    struct fm_train_options own = *given, *options = &own;
    struct fm_trainer t = {.options = options, .method = options->method};
    double reach = 0, beyond = 0;
    int rc = FM_OK;
    if (check_options(options, &t.range, err) || fm_task_open_inputs(&t.task, run, true, err) ||
        fm_task_open_named(&t.task, FM_MEMBER_RANKING, err) ||
        (t.task.in.members &&
         (check_criterion(options, &t.task, err) || choose_multiple(options, &t.task, err))) ||
        estimate_reach(&reach, &beyond, &t, options, err)) {
        rc = err->code;
        goto out;
    }
    fm_task_plan(estimate, &t.task, plan_run, &(struct planned){options, &t.range});
    suggest_less(estimate, options, &t.task, &t.range);
    estimate->reach = reach;
    estimate->beyond = beyond;
    estimate->method = options->method->name;
    rc = fm_task_estimate_end(&t.task, FM_STAGE_TRAIN, estimate, err);
out:
    fm_task_close(&t.task);
    return rc;
}
