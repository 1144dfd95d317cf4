/*
 * The loss is only the divergence from the full model, because the cross-entropy depends on single
 * next tokens, which are noisy, and would fit the mask to the calibration text.
 *
 * At each budget experts are narrowed by the costs that are already known, then two rounds of
 * measuring and exchanging correct the mask.  In an exchange, the gain of the step up exceeds the
 * cost of the step down.
 */
#include "lib/learn/exchange.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/learn/maskgrad.h"

/* A round makes at most X / PART + 1 exchanges between X experts or groups, because the cost of
 * steps is valid only near the current mask. */
#define PART 4
#define ROUNDS 2 /* rounds of exchanges per mask */
#define PART_LEFT 12

/* Measure masks around widths (M, E), drawn with the number `sweep`, in one sweep, and add the
 * results to x->stepcost, whose X items are groups of `size` experts. */
static int measure_around(const struct fm_exchange *x, const uint32_t *widths, int size,
                          uint64_t sweep, struct fm_err *err)
{
    struct fm_stepcost *stepcost = x->stepcost;
    const struct fm_probe probe = {x->task, x->sequences, sweep * (uint64_t)x->sequences};
    const struct fm_config *c = x->task->config;
    size_t X = (size_t)c->M * (size_t)c->E, A = (size_t)stepcost->actions->count;
    struct fm_maskgrad grad = {0};
    uint32_t *groups = fm_alloc((1 + 2 * FM_STEPCOST_LANES) * X, sizeof *groups, "widths", err);
    if (!groups)
        return FM_ENOMEM;
    uint32_t *around = groups + X, *spread = around + FM_STEPCOST_LANES * X;
    memcpy(groups, widths, X * sizeof *groups);
    fm_granularity_gather(groups, X, size);
    fm_stepcost_draw(stepcost, groups, around, x->task->run->inputs.seed, sweep);
    for (size_t s = 0; s < FM_STEPCOST_LANES; s++) {
        memcpy(spread + s * X, around + s * (size_t)stepcost->X,
               (size_t)stepcost->X * sizeof *groups);
        fm_granularity_spread(spread + s * X, X, size);
    }
    int rc = fm_probe_gradients(&probe, stepcost->actions, spread, FM_STEPCOST_LANES, &grad, err);
    if (!rc) {
        fm_granularity_sum(grad.total, grad.total, FM_STEPCOST_LANES * X, size, (int)(2 * A));
        rc = fm_stepcost_add(stepcost, groups, around, grad.total, err);
    }
    fm_maskgrad_release(&grad);
    free(groups);
    return rc;
}

/* Make one sweep around widths, then exchange the pairs of steps that it proposes. */
static int exchange_round(const struct fm_exchange *x, uint32_t *widths, size_t X, int size,
                          uint64_t sweep, uint64_t target, struct fm_err *err)
{
    int rc = measure_around(x, widths, size, sweep, err);
    if (rc)
        return rc;
    struct fm_stepcost_pair *pair = fm_alloc(X, sizeof *pair, "moves", err);
    if (!pair)
        return FM_ENOMEM;
    fm_granularity_gather(widths, X, size);
    fm_stepcost_lower(x->stepcost, widths, target);
    int pairs = fm_stepcost_pairs(x->stepcost, widths, pair, err);
    int most = (int)X / size / PART + 1;
    for (int i = 0; i < pairs && i < most; i++)
        fm_stepcost_exchange(x->stepcost, widths, &pair[i]);
    /* Steps have different sizes, so the target may have been missed. */
    fm_stepcost_lower(x->stepcost, widths, target);
    fm_granularity_spread(widths, X, size);
    free(pair);
    return pairs < 0 ? FM_ENOMEM : FM_OK;
}

/* Exchange's progress, in sweeps, because masks differ in the channels that they remove. */
static void report_sweep(const struct fm_exchange *x, const struct fm_masks *masks, uint64_t sweep)
{
    uint64_t sweeps = fm_exchange_sweeps(x->step, x->until, fm_masks_channels(masks));
    fm_run_report(x->task->run, "exchange", sweep, sweeps, "sweeps");
}

/* Narrow widths to the target: first by the costs that are already known, then measure and
 * exchange. */
static int lower(const struct fm_exchange *x, uint32_t *widths, const struct fm_masks *masks,
                 uint64_t target, struct fm_err *err)
{
    int size = fm_granularity_size(x->granularity, masks->M, masks->E), rc = FM_OK;
    size_t X = (size_t)masks->M * (size_t)masks->E;
    uint64_t sweep = (uint64_t)(masks->count - 1) * ROUNDS + 1;
    target = (target + (uint64_t)size - 1) / (uint64_t)size;
    if (masks->count == 1) {
        report_sweep(x, masks, 0);
        rc = measure_around(x, widths, size, 0, err);
        if (rc)
            return rc;
    }
    fm_granularity_gather(widths, X, size);
    fm_stepcost_lower(x->stepcost, widths, target);
    fm_granularity_spread(widths, X, size);
    for (uint64_t r = 0; !rc && r < ROUNDS; r++) {
        report_sweep(x, masks, sweep + r);
        rc = exchange_round(x, widths, X, size, sweep + r, target, err);
    }
    return rc;
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

uint64_t fm_exchange_sweeps(const struct fm_decimal *step, const struct fm_decimal *until,
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

int fm_exchange_step(const struct fm_exchange *x, struct fm_masks *masks, bool *done,
                     struct fm_err *err)
{
    uint64_t n = fm_masks_channels(masks), removed = masks->mask[masks->count - 1].removed;
    uint64_t i = next_budget(x->step, x->until, removed, n);
    int X = masks->M * masks->E, rc = FM_OK;
    *done =
        i > fm_decimal_targets(x->step, x->until) ||
        removed == (uint64_t)X * (x->actions->width[x->actions->count - 1] - x->actions->width[0]);
    if (*done)
        return FM_OK;
    uint32_t *widths = fm_alloc((size_t)X, sizeof *widths, "widths", err);
    if (!widths)
        return FM_ENOMEM;
    memcpy(widths, fm_masks_widths(masks, masks->count - 1), (size_t)X * sizeof *widths);
    fm_stepcost_keep(x->stepcost);
    rc = lower(x, widths, masks, fm_decimal_target(x->step, x->until, i, n), err);
    if (!rc)
        rc = fm_masks_append(masks, widths, &fm_method_exchange, (int)i, err);
    if (rc)
        fm_stepcost_restore(x->stepcost);
    free(widths);
    return rc;
}
