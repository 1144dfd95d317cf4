/*
 * Methods differ in how a family comes about: at once from scores, or step by step by gradients
 * (learned, walk, exchange).  Around them everything is the same: check the options, take up the
 * state, make the family, finish it (lib/learn/finish.h), write the stream.
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
#include "lib/learn/criterion.h"
#include "lib/learn/finish.h"
#include "lib/learn/quality.h"
#include "lib/learn/refine.h"
#include "lib/learn/trainplan.h"
#include "lib/learn/trainstate.h"
#include "lib/stage/budgets.h"
#include "lib/stage/stage.h"

#define TOOL "fm-train"

void fm_train_defaults(struct fm_train_options *options)
{
    *options = (struct fm_train_options){.method = FM_METHOD_EXCHANGE,
                                         .width_multiple = 1,
                                         .budget_step = "0.01",
                                         .until = "0.80",
                                         .steps = 500,
                                         .samples = 1,
                                         .prior = 4,
                                         .schedule = FM_LAMBDA_PACED,
                                         .lr = 0.02,
                                         .beta1 = 0.9,
                                         .beta2 = 0.99,
                                         .tau_first = 2,
                                         .tau_last = 0.5,
                                         .entropy_first = 0.02,
                                         .gain = 400,
                                         .lambda_last = 4,
                                         .walk_sequences = 32,
                                         .around_sequences = 16,
                                         .around_tokens = 6144,
                                         .refine_sequences = 64};
}

void fm_train_report_release(struct fm_train_report *report)
{
    fm_masks_release(&report->masks);
    *report = (struct fm_train_report){0};
}

static const char *schedule_name(enum fm_lambda_schedule schedule)
{
    return schedule == FM_LAMBDA_PACED ? "paced" : "linear";
}

static bool is_shuffle(enum fm_method method)
{
    return method == FM_METHOD_SHUFFLE_LAYER || method == FM_METHOD_SHUFFLE_GLOBAL;
}

static int check_options(const struct fm_train_options *o, struct fm_decimal *step,
                         struct fm_decimal *until, struct fm_err *err)
{
    int rc = fm_decimal_parse(step, o->budget_step, "--budget-step", err);
    if (!rc)
        rc = fm_decimal_parse(until, o->until, "--until", err);
    if (rc)
        return rc;
    if (step->num == 0)
        return fm_fail(err, FM_EUSAGE, "--budget-step 0: give a step above 0, such as 0.01");
    if (until->num == 0)
        return fm_fail(err, FM_EUSAGE, "--until 0: give a budget above 0, such as 0.80");
    if (fm_decimal_targets(step, until) >= FM_BUDGETS_MAX)
        return fm_fail(err, FM_EUSAGE, "--budget-step %s: more than %d budgets", o->budget_step,
                       FM_BUDGETS_MAX);
    if (o->steps < 1 || o->steps > FM_TRAIN_STEPS_MAX)
        return fm_fail(err, FM_EUSAGE, "--steps %d: give 1 to %d", o->steps, FM_TRAIN_STEPS_MAX);
    _Static_assert(FM_TRAIN_SAMPLES_MAX < FM_LANES_MAX, "a lane is the teacher's");
    if (o->samples < 1 || o->samples > FM_TRAIN_SAMPLES_MAX)
        return fm_fail(err, FM_EUSAGE, "--samples-per-batch %d: give 1 to %d", o->samples,
                       FM_TRAIN_SAMPLES_MAX);
    if (o->refine < 0 || o->refine > FM_TRAIN_REFINE_MAX)
        return fm_fail(err, FM_EUSAGE, "--refine %d: give 0 to %d", o->refine, FM_TRAIN_REFINE_MAX);
    if (!(o->lr >= FM_TRAIN_LR_MIN && o->lr <= FM_TRAIN_LR_MAX))
        return fm_fail(err, FM_EUSAGE, "--lr %g: give %g to %d", o->lr, FM_TRAIN_LR_MIN,
                       FM_TRAIN_LR_MAX);
    if (!(o->prior >= 0 && o->prior <= FM_TRAIN_PRIOR_MAX))
        return fm_fail(err, FM_EUSAGE, "--prior %g: give 0 to %d", o->prior, FM_TRAIN_PRIOR_MAX);
    if (o->width_multiple < 1 || o->width_multiple > FM_TRAIN_MULTIPLE_MAX)
        return fm_fail(err, FM_EUSAGE, "--width-multiple %u: give 1 to %d", o->width_multiple,
                       FM_TRAIN_MULTIPLE_MAX);
    return FM_OK;
}

/* The action set: of the stream for the shuffles, of the budget steps for uniform.  Unless the user
 * names them, exchange has finer actions than the others: its steps are measured one by one, and
 * what a logit has to learn grows with their number. */
static int choose_actions(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_train_options *o = t->options;
    int I = t->task.config->I, rc;
    if (o->method == FM_METHOD_UNIFORM && !o->actions)
        return fm_actions_steps(&t->actions, &t->step, &t->until, I, o->width_multiple, err);
    const char *usual = t->exchanges ? FM_ACTIONS_TWENTY : FM_ACTIONS_TEN;
    rc = fm_actions_parse(&t->actions, o->actions ? o->actions : usual, I, o->width_multiple, err);
    if (!rc && (o->actions || o->width_multiple > 1) && t->actions.merged)
        fm_run_warn(t->task.run,
                    "%d of %d actions give a width that another one has already, and are merged: "
                    "%d channels in multiples of %u leave %d widths",
                    t->actions.merged, t->actions.merged + t->actions.count, I, t->actions.multiple,
                    t->actions.count);
    if (!rc && t->actions.count < 2)
        rc = fm_fail(err, FM_EUSAGE,
                     "a family needs more than one width; give more --actions or a "
                     "smaller --width-multiple");
    return rc;
}

/* The parts of options that shape the result, for the state file. */
static int digest_params(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_train_options *o = t->options;
    char text[1024];
    bool exchanges = t->exchanges || o->refine > 0;
    int n = snprintf(
        text, sizeof text,
        "method %s granularity %s step %s until %s steps %d samples %d prior %.17g schedule %s "
        "adam %.17g %.17g %.17g tau %.17g %.17g entropy %.17g %.17g gain %.17g "
        "lambda %.17g walk %d batch %d nested %d refine %d %d %d%s widths",
        fm_method_name(o->method), fm_granularity_name(o->granularity), o->budget_step, o->until,
        o->steps, o->samples, o->prior, schedule_name(o->schedule), o->lr, o->beta1, o->beta2,
        o->tau_first, o->tau_last, o->entropy_first, o->entropy_last, o->gain, o->lambda_last,
        t->walk.sequences, fm_train_batch(t->task.run), o->nested, o->refine,
        exchanges ? fm_train_around(&t->task.calib, o) : o->around_sequences, o->refine_sequences,
        exchanges ? " " FM_WORTH_RULE : "");
    struct fm_digest widths =
        fm_digest_of(t->actions.width, (size_t)t->actions.count * sizeof *t->actions.width);
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &widths);
    assert(n > 0 && (size_t)n + sizeof hex < sizeof text);
    snprintf(text + n, sizeof text - (size_t)n, " %s", hex);
    return fm_task_params(&t->task, &t->params, text, err);
}

static int make_saliency(struct fm_trainer *t, struct fm_masks *f, struct fm_err *err)
{
    const struct fm_ranking *r = &t->task.ranking;
    return fm_masks_saliency(f, &t->actions, r->scores, r->order, &t->step, &t->until,
                             t->options->granularity, err);
}

/* The families that need no gradient: whole at once. */
static int make_at_once(struct fm_trainer *t, const struct fm_budgets *from, struct fm_err *err)
{
    struct fm_masks *f = &t->masks[FM_TRAIN_MADE];
    switch (t->options->method) {
    case FM_METHOD_SALIENCY:
        return make_saliency(t, f, err);
    case FM_METHOD_UNIFORM:
        return fm_masks_uniform(f, &t->actions, &t->until, err);
    default:
        assert(is_shuffle(t->options->method));
        return fm_masks_shuffle(f, &from->masks, t->options->method == FM_METHOD_SHUFFLE_GLOBAL,
                                t->task.run->seed, err);
    }
}

static int prepare_learn(struct fm_trainer *t, struct fm_err *err)
{
    t->learn = (struct fm_learn){.task = &t->task,
                                 .options = t->options,
                                 .actions = &t->actions,
                                 .step = t->step,
                                 .until = t->until,
                                 .batch = fm_train_batch(t->task.run)};
    int rc = fm_learn_init(&t->learn, err);
    return rc ? rc : fm_masks_full(&t->masks[FM_TRAIN_MADE], FM_METHOD_LEARNED, err);
}

static int prepare_worth(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_config *c = t->task.config;
    int size = fm_granularity_size(t->options->granularity, c->M, c->E);
    return fm_worth_init(&t->worth, &t->actions, c->M * c->E / size, err);
}

static int prepare(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_config *c = t->task.config;
    struct fm_budgets from = {0};
    int rc = FM_OK;
    for (int i = 0; i < FM_TRAIN_FAMILIES; i++)
        fm_masks_init(&t->masks[i], c->M, c->E, c->I);
    t->walk = (struct fm_walk){
        .task = &t->task,
        .actions = &t->actions,
        .step = &t->step,
        .until = &t->until,
        .granularity = t->options->granularity,
        .worth = t->exchanges ? &t->worth : NULL,
        .sequences = t->exchanges ? fm_train_around(&t->task.calib, t->options)
                                  : fm_train_sequences(&t->task.calib, t->options->walk_sequences)};
    if (is_shuffle(t->options->method)) {
        rc = fm_budgets_open(&from, &t->task.in, err);
        t->actions = from.actions;
    } else {
        rc = choose_actions(t, err);
    }
    if (!rc)
        rc = digest_params(t, err);
    if (!rc && t->learns)
        rc = prepare_learn(t, err);
    if (!rc && (t->exchanges || t->options->refine > 0))
        rc = prepare_worth(t, err);
    if (!rc && (t->walks || t->exchanges))
        rc = fm_masks_full(&t->masks[FM_TRAIN_MADE], t->options->method, err);
    if (!rc && !t->learns && !t->walks && !t->exchanges)
        rc = make_at_once(t, &from, err);
    fm_budgets_release(&from);
    return rc ? rc : fm_trainstate_resume(t, err);
}

static int run_learn(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_run_options *run = t->task.run;
    uint64_t steps = (uint64_t)t->options->steps;
    double after = t->work.refine + t->work.measure;
    bool done = false;
    int rc = FM_OK;
    fm_run_phase(run, t->work.make, after);
    while (!rc && !done) {
        uint64_t taken = (uint64_t)t->learn.taken;
        if (taken == steps)
            fm_run_phase(run, t->work.make, after);
        if (taken < steps)
            fm_run_report(run, "learn", taken, steps, "steps");
        else
            fm_run_report(run, "catch up", taken - steps, steps, "steps at most");
        rc = fm_task_stopped(&t->task, err);
        if (!rc)
            rc = fm_learn_step(&t->learn, &t->masks[FM_TRAIN_MADE], &done, err);
        if (!rc)
            rc = fm_trainstate_save_if_due(t, err);
    }
    return rc;
}

static int run_walk(struct fm_trainer *t, struct fm_err *err)
{
    struct fm_masks *f = &t->masks[FM_TRAIN_MADE];
    uint64_t channels = fm_masks_channels(f), until = fm_decimal_ceil(&t->until, channels);
    bool done = false;
    int rc = FM_OK;
    fm_run_phase(t->task.run, t->work.make, t->work.refine + t->work.measure);
    while (!rc && !done) {
        fm_run_report(t->task.run, "walk", f->mask[f->count - 1].removed, until, "channels");
        rc = fm_task_stopped(&t->task, err);
        if (!rc)
            rc = fm_walk_step(&t->walk, f, &done, err);
        if (!rc)
            rc = fm_trainstate_save_if_due(t, err);
    }
    return rc;
}

static int run_all(struct fm_trainer *t, struct fm_train_report *report, struct fm_err *err)
{
    t->clock.saved = fm_clock_now();
    double began = fm_clock_now();
    int rc = t->learns ? run_learn(t, err) : t->walks || t->exchanges ? run_walk(t, err) : FM_OK;
    int steps = fm_trainstate_steps(t) - t->resumed;
    report->seconds_step = steps > 0 ? (fm_clock_now() - began) / steps : 0;
    if (!rc)
        rc = fm_finish_family(t, err);
    if (rc != FM_ESAVED || !t->task.run->state)
        return rc;
    int saved = fm_trainstate_save(t, err);
    return saved ? saved : FM_ESAVED;
}

/* The result's arrays move to the report. */
static void fill_report(struct fm_train_report *report, struct fm_trainer *t)
{
    report->masks = t->masks[FM_TRAIN_RESULT];
    t->masks[FM_TRAIN_RESULT] = (struct fm_masks){0};
    report->actions = t->actions;
    report->steps = (int)t->learn.taken;
    report->resumed = t->resumed;
    report->reached = fm_finish_reached(t, &report->masks, &report->came_to);
}

static bool record_options(cJSON *to, const struct fm_trainer *t)
{
    const struct fm_train_options *o = t->options;
    bool ok = cJSON_AddStringToObject(to, "method", fm_method_name(o->method));
    if (is_shuffle(o->method))
        return ok;
    char step[FM_DECIMAL_TEXT], until[FM_DECIMAL_TEXT];
    bool uniform = o->method == FM_METHOD_UNIFORM;
    fm_decimal_print(step, &t->step);
    fm_decimal_print(until, &t->until);
    ok = ok &&
         cJSON_AddStringToObject(to, "granularity",
                                 fm_granularity_name(uniform ? FM_PER_MODEL : o->granularity)) &&
         fm_json_add_uint(to, "width_multiple", o->width_multiple) &&
         cJSON_AddStringToObject(to, "budget_step", step) &&
         cJSON_AddStringToObject(to, "until", until);
    if (o->refine > 0)
        ok = ok && fm_json_add_uint(to, "refine", (uint64_t)o->refine);
    if (o->nested)
        ok = ok && cJSON_AddBoolToObject(to, "nested", true);
    if (t->walks || t->exchanges)
        ok = ok && fm_json_add_uint(to, "walk_sequences", (uint64_t)t->walk.sequences);
    if (!t->learns)
        return ok;
    return ok && fm_json_add_uint(to, "steps", (uint64_t)o->steps) &&
           fm_json_add_uint(to, "samples_per_batch", (uint64_t)o->samples) &&
           fm_json_add_double(to, "prior", o->prior) &&
           cJSON_AddStringToObject(to, "lambda_schedule", schedule_name(o->schedule));
}

static int record(cJSON *manifest, const struct fm_trainer *t, const struct fm_train_report *report,
                  struct fm_err *err)
{
    cJSON *options = fm_task_options(&t->task, fm_train_batch(t->task.run));
    cJSON *result = cJSON_CreateObject();
    if (!options || !result) {
        cJSON_Delete(options);
        cJSON_Delete(result);
        return fm_fail(err, FM_ENOMEM, "no memory for the manifest");
    }
    bool whole = record_options(options, t) &&
                 fm_json_add_uint(result, "masks", (uint64_t)report->masks.count) &&
                 fm_json_add_uint(result, "steps", (uint64_t)report->steps);
    if (!report->reached)
        whole = whole && cJSON_AddBoolToObject(result, "reached", false) &&
                fm_json_add_double(result, "came_to", report->came_to);
    int rc = fm_task_history(manifest, TOOL, options, &t->task, result, whole, err);
    return rc ? rc : fm_current_record(manifest, &report->current, err);
}

static int write_stream(struct fm_trainer *t, const struct fm_train_report *report,
                        struct fm_err *err)
{
    struct fm_task *task = &t->task;
    char dropped[FM_STAGE_DROPPED_BYTES] = "";
    cJSON *manifest = NULL;
    void *frame = NULL;
    size_t size = 0;
    int rc = fm_stage_manifest(&manifest, FM_STAGE_TRAIN, &task->in, NULL, dropped, err);
    if (!rc && dropped[0])
        fm_run_warn(task->run, "%s", dropped);
    if (!rc)
        rc = record(manifest, t, report, err);
    if (!rc)
        rc = fm_budgets_pack(&report->masks, &report->actions, task->config,
                             fm_stage_tensor_bytes(&task->dir, task->config),
                             fm_model_dtype(task->model), manifest, &frame, &size, err);
    if (!rc) {
        struct fm_stage_member member = {FM_MEMBER_MASKS, frame, size};
        rc = fm_stage_write(task->run, FM_STAGE_TRAIN, manifest, &task->in, NULL, &member, 1, err);
        manifest = NULL;
    }
    cJSON_Delete(manifest);
    free(frame);
    return rc;
}

static int run_trainer(struct fm_trainer *t, struct fm_train_report *report, struct fm_err *err)
{
    struct fm_estimate estimate;
    fm_trainplan_estimate(&estimate, t->options, &t->task, &t->step, &t->until);
    int rc = fm_estimate_check(&estimate, t->task.run, t->task.in.file.size, err);
    fm_trainplan_work(t, &estimate);
    if (!rc)
        rc = prepare(t, err);
    if (!rc)
        rc = fm_current_check(
            &report->current, t->task.run,
            &(struct fm_current_inputs){TOOL, &t->params, NULL, &t->task.in, &t->task.dir, false},
            err);
    if (!rc && report->current.is)
        return FM_OK;
    if (!rc)
        rc = run_all(t, report, err);
    if (!rc)
        fill_report(report, t);
    rc = fm_comm_agree(t->task.run->comm, rc, err);
    if (!rc)
        rc = fm_comm_share_tallies(t->task.run->comm, err);
    report->seconds = fm_clock_now() - t->task.began;
    if (!rc && fm_comm_rank(t->task.run->comm) == 0)
        rc = write_stream(t, report, err);
    rc = fm_comm_agree(t->task.run->comm, rc, err);
    if (!rc)
        fm_task_forget(&t->task, TOOL);
    return rc;
}

static const char *needed(const struct fm_train_options *o)
{
    return is_shuffle(o->method) ? FM_MEMBER_MASKS : FM_MEMBER_RANKING;
}

/* What the ranking of the stream leaves of the options. */
static int settle(struct fm_train_options *own, const struct fm_task *task, struct fm_err *err)
{
    enum fm_method asked = own->method;
    enum fm_criterion criterion = FM_CRITERION_TAYLOR;
    int rc = fm_criterion_settle(own, &criterion, &task->in, err);
    if (!rc && own->method != asked)
        fm_run_note(task->run, "the channels were ranked by %s: --method uniform",
                    fm_criterion_name(criterion));
    return rc;
}

int fm_train(const struct fm_run_options *run, const struct fm_train_options *options,
             struct fm_train_report *report, struct fm_err *err)
{
    struct fm_train_options own = *options;
    struct fm_trainer t = {.options = &own};
    int rc = check_options(options, &t.step, &t.until, err);
    if (!rc)
        rc = fm_task_open(&t.task, run, needed(options), err);
    if (!rc)
        rc = settle(&own, &t.task, err);
    t.learns = own.method == FM_METHOD_LEARNED;
    t.walks = own.method == FM_METHOD_WALK;
    t.exchanges = own.method == FM_METHOD_EXCHANGE;
    if (!rc)
        rc = run_trainer(&t, report, err);
    fm_learn_release(&t.learn);
    fm_worth_release(&t.worth);
    for (int i = 0; i < FM_TRAIN_FAMILIES; i++)
        fm_masks_release(&t.masks[i]);
    fm_task_close(&t.task);
    return rc;
}

int fm_train_estimate(const struct fm_run_options *run, const struct fm_train_options *options,
                      struct fm_estimate *estimate, struct fm_err *err)
{
    struct fm_train_options own = *options;
    struct fm_task task = {0};
    struct fm_decimal step, until;
    int rc = check_options(options, &step, &until, err);
    if (!rc)
        rc = fm_task_open_inputs(&task, run, true, err);
    if (!rc)
        rc = fm_task_open_named(&task, needed(options), err);
    if (!rc && task.in.members)
        rc = settle(&own, &task, err);
    if (!rc) {
        fm_trainplan_estimate(estimate, &own, &task, &step, &until);
        fm_trainplan_offer(estimate, &own, &task, &step, &until);
        estimate->method = fm_method_name(own.method);
        rc = fm_task_estimate_end(&task, estimate, err);
    }
    fm_task_close(&task);
    return rc;
}
