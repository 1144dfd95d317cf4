/*
 * Method `exchange`: from budget to budget, narrow the experts whose channels cost least, by the
 * cost of steps from gradients at masks around the current one (fm-method(7)); an expert may also
 * be widened in exchange for another whose channels matter less.  Its state is the family and
 * struct fm_stepcost.  It does not make a mask for every budget: each step removes about a twelfth
 * of the remaining channels, and at least enough for the next budget.  The masks between these are
 * filled in afterwards (lib/masks/gaps.h).
 *
 * The loss is only the divergence from the full model, because the cross-entropy depends on single
 * next tokens, which are noisy, and would fit the mask to the calibration text.
 *
 * At each budget experts are narrowed by the costs that are already known, then two rounds of
 * measuring and exchanging correct the mask.  In an exchange, the gain of the step up exceeds the
 * cost of the step down.
 */
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/learn/maskgrad.h"
#include "lib/learn/trainer.h"
#include "lib/masks/stepcost.h"

/* A round makes at most X / PART + 1 exchanges between X experts or groups, because the cost of
 * steps is valid only near the current mask. */
#define PART 4
#define ROUNDS 2 /* rounds of exchanges per mask */
#define PART_LEFT 12

/* Set grad->total to the mean over sequences of their sums, for the masks in widths
 * (FM_STEPCOST_LANES, M, E), on the sequences of the sweep with that number.  Each sequence is a
 * micro-batch, because sums are squared for each of them. */
static int sum_gradients(struct fm_maskgrad *grad, struct fm_trainer *t, const uint32_t *widths,
                         uint64_t number, struct fm_err *err)
{
    struct fm_task *task = &t->task;
    int n = fm_trainer_around(&task->calib, t->options), T = task->calib.T;
    size_t X = (size_t)task->config->M * (size_t)task->config->E;
    struct fm_sweep *sweep = NULL;
    struct fm_lane lane[1 + FM_STEPCOST_LANES] = {{.teacher = -1, .ce = 1}};
    for (size_t i = 0; i < FM_STEPCOST_LANES; i++)
        lane[i + 1] =
            (struct fm_lane){.widths = widths + i * X, .backward = true, .teacher = 0, .kl = 1};
    int32_t *ids = fm_alloc((size_t)n * (size_t)T, sizeof *ids, "sequences", err);
    int rc = ids ? fm_task_draw(task, ids, number * (uint64_t)n, n, err) : FM_ENOMEM;
    if (!rc)
        rc = fm_task_sweep(&sweep, task, n, T, 1 + FM_STEPCOST_LANES, task->memory, err);
    if (!rc)
        rc = fm_maskgrad_init(grad, task->ops, &t->actions, task->config, FM_STEPCOST_LANES, sweep,
                              true, err);
    if (!rc) {
        fm_maskgrad_begin(grad, n);
        struct fm_visitor visitor = fm_maskgrad_visitor(grad);
        rc = fm_task_run(task, sweep, ids, n, 1, lane, 1 + FM_STEPCOST_LANES, &visitor, NULL, err);
    }
    fm_sweep_free(sweep);
    free(ids);
    return rc;
}

/* Measure masks around widths (M, E), drawn with the number `sweep`, in one sweep, and add the
 * results to the costs, whose X items are groups of `size` experts. */
static int measure_around(struct fm_trainer *t, const uint32_t *widths, int size, uint64_t sweep,
                          struct fm_err *err)
{
    struct fm_stepcost *stepcost = t->own;
    const struct fm_config *c = t->task.config;
    size_t X = (size_t)c->M * (size_t)c->E, A = (size_t)stepcost->actions->count;
    struct fm_maskgrad grad = {0};
    uint32_t *groups = fm_alloc((1 + 2 * FM_STEPCOST_LANES) * X, sizeof *groups, "widths", err);
    if (!groups)
        return FM_ENOMEM;
    uint32_t *around = groups + X, *spread = around + FM_STEPCOST_LANES * X;
    memcpy(groups, widths, X * sizeof *groups);
    fm_granularity_gather(groups, X, size);
    fm_stepcost_draw(stepcost, groups, around, t->task.run->inputs.seed, sweep);
    for (size_t s = 0; s < FM_STEPCOST_LANES; s++) {
        memcpy(spread + s * X, around + s * (size_t)stepcost->X,
               (size_t)stepcost->X * sizeof *groups);
        fm_granularity_spread(spread + s * X, X, size);
    }
    int rc = sum_gradients(&grad, t, spread, sweep, err);
    if (!rc) {
        fm_granularity_sum(grad.total, grad.total, FM_STEPCOST_LANES * X, size, (int)(2 * A));
        rc = fm_stepcost_add(stepcost, groups, around, grad.total, err);
    }
    fm_maskgrad_release(&grad);
    free(groups);
    return rc;
}

/* Make one sweep around widths, then exchange the pairs of steps that it proposes. */
static int exchange_round(struct fm_trainer *t, uint32_t *widths, size_t X, int size,
                          uint64_t sweep, uint64_t target, struct fm_err *err)
{
    struct fm_stepcost *stepcost = t->own;
    int rc = measure_around(t, widths, size, sweep, err);
    if (rc)
        return rc;
    struct fm_stepcost_pair *pair = fm_alloc(X, sizeof *pair, "moves", err);
    if (!pair)
        return FM_ENOMEM;
    fm_granularity_gather(widths, X, size);
    fm_stepcost_lower(stepcost, widths, target);
    int pairs = fm_stepcost_pairs(stepcost, widths, pair, err);
    int most = (int)X / size / PART + 1;
    for (int i = 0; i < pairs && i < most; i++)
        fm_stepcost_exchange(stepcost, widths, &pair[i]);
    /* Steps have different sizes, so the target may have been missed. */
    fm_stepcost_lower(stepcost, widths, target);
    fm_granularity_spread(widths, X, size);
    free(pair);
    return pairs < 0 ? FM_ENOMEM : FM_OK;
}

/* The number of the first budget that removes more than `removed` of n channels; after the last
 * budget, the number of budgets plus 1.  The cost of steps is valid near the mask where it was
 * measured, so a step advances by up to 1 / PART_LEFT of the remaining channels, and at least to
 * the next budget. */
static uint64_t next_budget(const struct fm_decimal *step, const struct fm_decimal *until,
                            uint64_t removed, uint64_t n)
{
    uint64_t targets = fm_decimal_targets(step, until), i = 1;
    while (i <= targets && removed >= fm_decimal_target(step, until, i, n))
        i++;
    while (i < targets &&
           fm_decimal_target(step, until, i + 1, n) - removed <= (n - removed) / PART_LEFT)
        i++;
    return i;
}

/* Number of sweeps from the full mask, of n channels, to `until`. */
static uint64_t count_sweeps(const struct fm_decimal *step, const struct fm_decimal *until,
                             uint64_t n)
{
    uint64_t targets = fm_decimal_targets(step, until), sweeps = 1;
    for (uint64_t i = 0, removed = 0;; sweeps += ROUNDS) {
        i = next_budget(step, until, removed, n);
        if (i > targets)
            return sweeps;
        removed = fm_decimal_target(step, until, i, n);
    }
}

/* Exchange's progress, in sweeps, because masks differ in the channels that they remove. */
static void report_sweep(const struct fm_trainer *t, uint64_t sweep)
{
    uint64_t sweeps =
        count_sweeps(&t->options->budget_step, &t->options->until, fm_masks_channels(&t->masks));
    fm_run_report(t->task.run, "exchange", sweep, sweeps, "sweeps");
}

/* Narrow widths to the target: first by the costs that are already known, then measure and
 * exchange. */
static int lower(struct fm_trainer *t, uint32_t *widths, uint64_t target, struct fm_err *err)
{
    const struct fm_masks *masks = &t->masks;
    int size = fm_granularity_size(t->options->granularity, masks->M, masks->E), rc = FM_OK;
    size_t X = (size_t)masks->M * (size_t)masks->E;
    uint64_t sweep = (uint64_t)(masks->count - 1) * ROUNDS + 1;
    target = (target + (uint64_t)size - 1) / (uint64_t)size;
    if (masks->count == 1) {
        report_sweep(t, 0);
        rc = measure_around(t, widths, size, 0, err);
        if (rc)
            return rc;
    }
    fm_granularity_gather(widths, X, size);
    fm_stepcost_lower(t->own, widths, target);
    fm_granularity_spread(widths, X, size);
    for (uint64_t r = 0; !rc && r < ROUNDS; r++) {
        report_sweep(t, sweep + r);
        rc = exchange_round(t, widths, X, size, sweep + r, target, err);
    }
    return rc;
}

/*
 * Extend the family, which has at least the full mask, by one mask.  *done is set instead if
 * `until` is met or every expert has its narrowest width.
 */
static int step(struct fm_trainer *t, bool *done, struct fm_err *err)
{
    struct fm_masks *f = &t->masks;
    const struct fm_decimal *step = &t->options->budget_step, *until = &t->options->until;
    uint64_t n = fm_masks_channels(f), removed = f->mask[f->count - 1].removed;
    uint64_t i = next_budget(step, until, removed, n);
    int X = f->M * f->E, rc = FM_OK;
    *done = i > fm_decimal_targets(step, until) ||
            removed == (uint64_t)X * (t->actions.width[t->actions.count - 1] - t->actions.width[0]);
    if (*done)
        return FM_OK;
    uint32_t *widths = fm_alloc((size_t)X, sizeof *widths, "widths", err);
    if (!widths)
        return FM_ENOMEM;
    memcpy(widths, fm_masks_widths(f, f->count - 1), (size_t)X * sizeof *widths);
    fm_stepcost_keep(t->own);
    rc = lower(t, widths, fm_decimal_target(step, until, i, n), err);
    if (!rc)
        rc = fm_masks_append(f, widths, t->method, (int)i, err);
    if (rc)
        fm_stepcost_restore(t->own);
    t->runner.taken = f->count - 1;
    free(widths);
    return rc;
}

static int begin(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_config *c = t->task.config;
    int size = fm_granularity_size(t->options->granularity, c->M, c->E);
    struct fm_stepcost *stepcost = t->own = fm_alloc(1, sizeof *stepcost, "the method", err);
    if (!stepcost || fm_stepcost_init(stepcost, &t->actions, c->M * c->E / size, err))
        return err->code;
    if (size == 1)
        fm_stepcost_temper(stepcost, t->task.ranking.tokens, c->E);
    return FM_OK;
}

static void resumed(struct fm_trainer *t)
{
    t->runner.taken = t->masks.count - 1;
}

static void cost(struct fm_estimate_sweep *sweep, const struct fm_train_options *o,
                 const struct fm_task *task)
{
    const struct fm_config *c = task->config;
    sweep->count =
        count_sweeps(&o->budget_step, &o->until, (uint64_t)c->M * (uint64_t)c->E * (uint64_t)c->I);
    sweep->rows = (uint64_t)fm_trainer_around(&task->calib, o) * (uint64_t)task->calib.T;
    sweep->lanes = 1 + FM_STEPCOST_LANES;
    sweep->backward = FM_STEPCOST_LANES;
}

static void record(cJSON *to, const struct fm_trainer *t)
{
    int sequences = fm_trainer_around(&t->task.calib, t->options);
    fm_json_add_uint(to, "walk_sequences", (uint64_t)sequences);
}

static void save(struct fm_journal_item *item, size_t *items, struct fm_trainer *t)
{
    struct fm_stepcost *stepcost = t->own;
    uint64_t values = 2 * (uint64_t)stepcost->X * (uint64_t)t->actions.count;
    fm_runner_item(item, items, "worth", FM_F64, values, stepcost->value);
    fm_runner_item(item, items, "worth.scale", FM_F64, 2, stepcost->scale);
}

static void release(struct fm_trainer *t)
{
    fm_stepcost_release(t->own);
}

/* Its usual action set is finer than that of other methods: exchange measures the cost of each
 * action step, whereas more actions would give `learned` more logits to train. */
const struct fm_method fm_method_exchange = {
    .name = "exchange",
    .shapes = true,
    .actions = {5, 100},
    .cost = cost,
    .begin = begin,
    .step = step,
    .save = save,
    .resumed = resumed,
    .record = record,
    .release = release,
};
