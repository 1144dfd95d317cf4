/*
 * The result is a family of its own beside that of the method, so that a state file between any
 * two masks says how far it came.  One width for all has a mask at every width it may have, and a
 * shuffle one for each it was made from: these two stay as they are.
 */
#include "lib/learn/finish.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/learn/quality.h"
#include "lib/learn/refine.h"
#include "lib/learn/trainplan.h"
#include "lib/masks/gaps.h"

/* Masks from b on that have no figures yet, up to `most`: their numbers, and copies of their widths
 * one after another. */
static int gather_unmeasured(const struct fm_masks *f, int *b, int most, int *number,
                             uint32_t *widths)
{
    size_t X = (size_t)f->M * (size_t)f->E;
    int n = 0;
    for (; *b < f->count && n < most; ++*b) {
        if (f->mask[*b].quality.positions > 0)
            continue;
        memcpy(widths + (size_t)n * X, fm_masks_widths(f, *b), X * sizeof *widths);
        number[n++] = *b;
    }
    return n;
}

/* Measure what is not measured yet, in pieces that can be saved. */
static int measure_family(struct fm_trainer *t, struct fm_masks *f, struct fm_err *err)
{
    struct fm_task *task = &t->task;
    int group = fm_quality_group(task->config, &task->held, task->memory);
    int rc = fm_comm_least(task->run->comm, &group, err);
    group = group < f->count ? group : f->count;
    size_t X = (size_t)f->M * (size_t)f->E;
    struct fm_quality_parts parts;
    struct fm_quality *quality = fm_alloc((size_t)group, sizeof *quality, "quality", err);
    int *number = fm_alloc((size_t)group, sizeof *number, "quality", err);
    uint32_t *widths = fm_alloc((size_t)group, X * sizeof *widths, "widths", err);
    if (!quality || !number || !widths)
        rc = FM_ENOMEM;
    int unmeasured = 0;
    for (int b = 0; b < f->count; b++)
        unmeasured += f->mask[b].quality.positions == 0;
    fm_quality_parts_begin(&parts, t->task.run, (unmeasured + group - 1) / group);
    fm_run_phase(t->task.run, t->work.measure, 0);
    for (int b = 0, n; !rc && b < f->count; parts.part++) {
        n = gather_unmeasured(f, &b, group, number, widths);
        if (n == 0)
            break;
        rc = fm_task_stopped(&t->task, err);
        if (!rc)
            rc = fm_quality_measure(quality, task->model, task->ops, &task->held, widths, n, NULL,
                                    &parts.run, err);
        for (int i = 0; !rc && i < n; i++)
            f->mask[number[i]].quality = quality[i];
        if (!rc)
            rc = fm_trainstate_save_if_due(t, err);
    }
    free(quality);
    free(number);
    free(widths);
    return rc;
}

static struct fm_gaps gaps_of(const struct fm_trainer *t, double *lost)
{
    const struct fm_ranking *r = &t->task.ranking;
    int size = fm_granularity_size(t->options->granularity, r->M, r->E);
    size_t X = (size_t)r->M * (size_t)r->E;
    fm_masks_lost(lost, &t->actions, r->scores, r->order, r->M, r->E, r->I);
    fm_granularity_sum(lost, lost, X, size, t->actions.count);
    return (struct fm_gaps){&t->actions, lost, size, &t->step, &t->until};
}

typedef int change_fn(struct fm_masks *f, const struct fm_masks *from, const struct fm_gaps *gaps,
                      struct fm_err *err);

/* *f becomes what `change` makes of it. */
static int change_family(struct fm_trainer *t, struct fm_masks *f, change_fn *change,
                         struct fm_err *err)
{
    struct fm_masks made;
    size_t lost_count = (size_t)f->M * (size_t)f->E * (size_t)t->actions.count;
    double *lost = fm_alloc(lost_count, sizeof *lost, "lost scores", err);
    if (!lost)
        return FM_ENOMEM;
    struct fm_gaps gaps = gaps_of(t, lost);
    fm_masks_init(&made, f->M, f->E, f->I);
    int rc = change(&made, f, &gaps, err);
    if (!rc) {
        fm_masks_release(f);
        *f = made;
        made = (struct fm_masks){0};
    }
    fm_masks_release(&made);
    free(lost);
    return rc;
}

static bool is_fixed(const struct fm_trainer *t)
{
    enum fm_method m = t->options->method;
    return m == FM_METHOD_UNIFORM || m == FM_METHOD_SHUFFLE_LAYER || m == FM_METHOD_SHUFFLE_GLOBAL;
}

static bool is_short(const struct fm_trainer *t, const struct fm_masks *f, uint64_t removed)
{
    uint64_t channels = fm_masks_channels(f);
    return removed + fm_decimal_ceil(&t->step, channels) <= fm_decimal_floor(&t->until, channels);
}

/* Only learning ends where its steps do; the others go on while an expert can be narrowed. */
static void warn_learned(struct fm_trainer *t, double budget)
{
    const struct fm_train_options *o = t->options;
    if (t->warned)
        return;
    t->warned = true;
    fm_run_warn(t->task.run,
                "learned came to a budget of %.4f in %d steps, --steps %d and as many to catch up; "
                "beyond it, to --until %s, experts are narrowed by their scores alone; give more "
                "--steps, a larger --lr or a smaller --prior",
                budget, 2 * o->steps, o->steps, o->until);
}

/* A family that is filled stays as it is, so this may be done again after a resume. */
static int fill_family(struct fm_trainer *t, struct fm_masks *f, struct fm_err *err)
{
    if (f->count == 0 || is_fixed(t))
        return FM_OK;
    struct fm_mask last = f->mask[f->count - 1];
    double budget = fm_masks_budget(f, f->count - 1);
    int rc = change_family(t, f, fm_gaps_fill, err);
    if (!rc && last.method == FM_METHOD_LEARNED && is_short(t, f, last.removed) &&
        f->mask[f->count - 1].removed > last.removed)
        warn_learned(t, budget);
    return rc;
}

/* What the method made, filled. */
static int take_family(struct fm_trainer *t, struct fm_masks *result, struct fm_err *err)
{
    struct fm_masks *made = &t->masks[FM_TRAIN_MADE];
    int rc = fill_family(t, made, err);
    for (int b = 0; !rc && b < made->count; b++)
        rc = fm_masks_copy(result, made, b, err);
    return rc;
}

/* Of the filled family, the masks that are refined; the others come between them again. */
static int begin_refining(struct fm_trainer *t, struct fm_masks *f, struct fm_err *err)
{
    struct fm_masks chosen;
    fm_masks_init(&chosen, f->M, f->E, f->I);
    int rc = fm_refine_choose(&chosen, f, &t->step, &t->until, err);
    if (!rc) {
        fm_masks_release(f);
        *f = chosen;
        fm_worth_clear(&t->worth);
        return FM_OK;
    }
    fm_masks_release(&chosen);
    return rc;
}

/* Channels that mask b of those that are refined must remove at the least: its budget's. */
static uint64_t least_of(const struct fm_trainer *t, const struct fm_masks *f, int b)
{
    uint64_t n = fm_masks_channels(f), targets = fm_decimal_targets(&t->step, &t->until), least = 0;
    for (uint64_t i = 1; i <= targets; i++) {
        uint64_t target = fm_decimal_target(&t->step, &t->until, i, n);
        if (target > f->mask[b].removed)
            break;
        least = target;
    }
    return least;
}

/* Rounds that are left out count as done: draws of the next mask do not hang on this one. */
static void count_round(struct fm_trainer *t, int64_t rounds, bool found)
{
    int64_t next = (t->refined / rounds + 1) * rounds;
    t->refined++;
    t->idle = found ? 0 : t->idle + 1;
    if (t->idle >= FM_REFINE_IDLE)
        t->refined = next;
    if (t->refined == next)
        t->idle = 0;
}

/* Rounds are counted over all masks, so that a run that goes on does so in the middle of one. */
static int run_refine(struct fm_trainer *t, struct fm_masks *f, struct fm_err *err)
{
    const struct fm_train_options *o = t->options;
    int64_t rounds = o->refine, all = rounds * (f->count - 1);
    int count = t->task.calib.count, rc = FM_OK;
    struct fm_refine refine = {.task = &t->task,
                               .worth = &t->worth,
                               .size = fm_granularity_size(o->granularity, f->M, f->E),
                               .around = fm_train_around(&t->task.calib, o),
                               .sequences =
                                   o->refine_sequences < count ? o->refine_sequences : count};
    fm_run_phase(t->task.run, t->work.refine, t->work.measure);
    while (!rc && t->refined < all) {
        int b = 1 + (int)(t->refined / rounds);
        bool found = false;
        fm_run_report(t->task.run, "refine", (uint64_t)t->refined, (uint64_t)all, "rounds");
        rc = fm_task_stopped(&t->task, err);
        if (!rc)
            rc = fm_refine_round(&refine, f, b, least_of(t, f, b), (uint64_t)t->refined, &found,
                                 err);
        if (!rc)
            count_round(t, rounds, found);
        if (!rc)
            rc = fm_trainstate_save_if_due(t, err);
    }
    return rc;
}

/* Gaps filled again, and nested: once. */
static int shape_family(struct fm_trainer *t, struct fm_masks *f, struct fm_err *err)
{
    int rc = t->options->refine > 0 ? fill_family(t, f, err) : FM_OK;
    if (!rc && t->options->nested)
        rc = change_family(t, f, fm_gaps_nest, err);
    return rc;
}

int fm_finish_family(struct fm_trainer *t, struct fm_err *err)
{
    struct fm_masks *result = &t->masks[FM_TRAIN_RESULT];
    bool fresh = result->count == 0, refines = t->options->refine > 0 && !is_fixed(t);
    int rc = fresh ? take_family(t, result, err) : FM_OK;
    if (!rc && fresh && refines)
        rc = begin_refining(t, result, err);
    if (!rc && refines && t->refined >= 0)
        rc = run_refine(t, result, err);
    if (!rc && !is_fixed(t) && (refines ? t->refined >= 0 : fresh)) {
        rc = shape_family(t, result, err);
        t->refined = -1;
    }
    return rc ? rc : measure_family(t, result, err);
}

bool fm_finish_reached(struct fm_trainer *t, const struct fm_masks *f, double *came_to)
{
    const struct fm_train_options *o = t->options;
    uint64_t end = f->mask[f->count - 1].removed, came = end;
    enum fm_method m = o->method;
    if (m == FM_METHOD_LEARNED)
        came = fm_learn_removed(&t->learn, f);
    came = came < end ? came : end;
    *came_to = (double)came / (double)fm_masks_channels(f);
    if (m == FM_METHOD_SHUFFLE_LAYER || m == FM_METHOD_SHUFFLE_GLOBAL || !is_short(t, f, came))
        return true;
    if (came < end)
        warn_learned(t, *came_to);
    if (!is_short(t, f, end))
        return false;
    uint32_t narrow = fm_masks_widths(f, f->count - 1)[0];
    if (m == FM_METHOD_UNIFORM && narrow > o->width_multiple &&
        (!o->actions || narrow > t->actions.width[0])) {
        fm_run_warn(
            t->task.run,
            "the last mask removes %.4f of the channels, not --until %s: every expert has %u "
            "of %d there, and with the next fewer more would go; give a higher --until",
            fm_masks_budget(f, f->count - 1), o->until, narrow, f->I);
        return false;
    }
    bool rounded = o->width_multiple > 1 && t->actions.width[0] <= o->width_multiple;
    fm_run_warn(t->task.run,
                "the last mask removes %.4f of the channels, not --until %s: experts are at their "
                "narrowest there, %u of %d channels; give %s",
                fm_masks_budget(f, f->count - 1), o->until, t->actions.width[0], f->I,
                rounded ? "a smaller --width-multiple"
                        : "--actions that begin with a smaller share");
    return false;
}
