/*
 * Gradients predict the effect of most steps correctly and of some wrongly, and exchanges that help
 * separately may not help together.  So a round measures the best pairs singly and in growing sets,
 * in one forward sweep, and takes the set with the lowest loss if that is below the mask's own.
 * All rounds use the same sequences, on which the loss therefore never rises.
 */
#include "lib/learn/refine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

/* Below 1, because the measured loss decides: a pair may be proposed although its estimated gain is
 * smaller than its estimated cost. */
#define MARGIN 0.7

/* The sets of pairs that are tried: the best 1, 2, 3, ... together, then the next best singly. */
static const struct {
    int from, count;
} sets[FM_REFINE_SETS] = {{0, 1},  {0, 2},  {0, 3}, {0, 4}, {0, 6}, {0, 8},
                          {0, 12}, {0, 16}, {1, 1}, {2, 1}, {3, 1}};

/* Fill widths (1 + sets, M, E) with the mask and the result of each set; return their number. */
static int make_sets(const struct fm_refine *r, uint32_t *widths, const struct fm_masks *f, int b,
                     uint64_t least, const struct fm_stepcost_pair *pair, int pairs)
{
    size_t X = (size_t)f->M * (size_t)f->E;
    uint64_t most = b + 1 < f->count ? f->mask[b + 1].removed : fm_masks_channels(f);
    int n = 1;
    memcpy(widths, fm_masks_widths(f, b), X * sizeof *widths);
    for (int s = 0; s < FM_REFINE_SETS; s++) {
        uint32_t *to = widths + (size_t)n * X;
        if (sets[s].from + sets[s].count > pairs)
            continue;
        memcpy(to, widths, X * sizeof *to);
        fm_granularity_gather(to, X, r->size);
        for (int i = 0; i < sets[s].count; i++)
            fm_stepcost_exchange(r->stepcost, to, &pair[sets[s].from + i]);
        fm_granularity_spread(to, X, r->size);
        uint64_t removed = fm_masks_removed(f, to);
        if (removed >= least && removed > f->mask[b - 1].removed && removed < most)
            n++;
    }
    return n;
}

static int try_sets(const struct fm_refine *r, struct fm_masks *f, int b, uint64_t least,
                    const struct fm_stepcost_pair *pair, int pairs, bool *found, struct fm_err *err)
{
    size_t X = (size_t)f->M * (size_t)f->E;
    double loss[FM_REFINE_SETS + 1];
    uint32_t *widths = fm_alloc((FM_REFINE_SETS + 1) * X, sizeof *widths, "widths", err);
    if (!widths)
        return FM_ENOMEM;
    int n = make_sets(r, widths, f, b, least, pair, pairs), best = 0;
    struct fm_probe fixed = {r->task, r->sequences, 0, 0};
    int rc = n > 1 ? fm_probe_losses(&fixed, widths, n, loss, err) : FM_OK;
    for (int i = 1; !rc && i < n; i++)
        best = loss[i] < loss[best] ? i : best;
    if (!rc)
        fm_masks_replace(f, b, widths + (size_t)best * X);
    *found = best > 0;
    free(widths);
    return rc;
}

int fm_refine_round(const struct fm_refine *r, struct fm_masks *f, int b, uint64_t least,
                    uint64_t round, bool *found, struct fm_err *err)
{
    assert(b > 0 && b < f->count);
    size_t X = (size_t)f->M * (size_t)f->E;
    struct fm_probe probe = {r->task, r->around, round * (uint64_t)r->around, 0};
    struct fm_stepcost_pair *pair = fm_alloc(X, sizeof *pair, "moves", err);
    uint32_t *groups = fm_alloc(X, sizeof *groups, "widths", err);
    int pairs = 0;
    *found = false;
    int rc = pair && groups ? FM_OK : FM_ENOMEM;
    fm_stepcost_keep(r->stepcost);
    if (!rc)
        rc = fm_walk_around(r->stepcost, &probe, fm_masks_widths(f, b), r->size, round, err);
    if (!rc) {
        memcpy(groups, fm_masks_widths(f, b), X * sizeof *groups);
        fm_granularity_gather(groups, X, r->size);
        pairs = fm_stepcost_pairs(r->stepcost, groups, MARGIN, pair, err);
        rc = pairs < 0 ? FM_ENOMEM : FM_OK;
    }
    if (!rc && pairs > 0)
        rc = try_sets(r, f, b, least, pair, pairs, found, err);
    if (rc)
        fm_stepcost_restore(r->stepcost);
    free(pair);
    free(groups);
    return rc;
}

uint64_t fm_refine_masks(const struct fm_decimal *step, const struct fm_decimal *until)
{
    return (fm_decimal_targets(step, until) + FM_REFINE_EVERY - 1) / FM_REFINE_EVERY;
}

int fm_refine_choose(struct fm_masks *to, const struct fm_masks *f, const struct fm_decimal *step,
                     const struct fm_decimal *until, struct fm_err *err)
{
    uint64_t n = fm_masks_channels(f), targets = fm_decimal_targets(step, until);
    int rc = fm_masks_copy(to, f, 0, err);
    for (uint64_t i = 1; !rc && i <= targets; i++) {
        if (i % FM_REFINE_EVERY != 0 && i != targets)
            continue;
        uint64_t target = fm_decimal_target(step, until, i, n);
        int b = 1;
        while (b < f->count - 1 && f->mask[b].removed < target)
            b++;
        if (b < f->count && f->mask[b].removed > to->mask[to->count - 1].removed)
            rc = fm_masks_copy(to, f, b, err);
    }
    return rc;
}
