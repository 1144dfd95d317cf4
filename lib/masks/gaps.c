/*
 * A descent goes from a mask to another in which no expert is wider.  One step lowers the group
 * whose next action loses the least score per channel.  To fill a gap, the descent starts with the
 * larger of each expert's widths in the two neighbouring masks.  Scores only order the steps inside
 * a gap; its two ends were chosen by the method.
 */
#include "lib/masks/gaps.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

struct way {
    const struct fm_gaps *gaps;
    size_t X;          /* experts */
    uint64_t removed;  /* channels that `widths` remove */
    uint32_t *widths;  /* (X) current widths */
    uint32_t *towards; /* (X) end of the descent, where no expert is wider than in `widths` */
};

static int open_way(struct way *w, const struct fm_gaps *gaps, const struct fm_masks *from,
                    struct fm_err *err)
{
    size_t X = (size_t)from->M * (size_t)from->E;
    *w = (struct way){.gaps = gaps, .X = X};
    w->widths = fm_alloc(2 * X, sizeof *w->widths, "widths", err);
    w->towards = w->widths ? w->widths + X : NULL;
    return w->widths ? FM_OK : FM_ENOMEM;
}

/* Start with the larger of each expert's widths in a and b, and descend to b or, if b is NULL, to
 * the narrowest mask. */
static void begin_wide(struct way *w, const struct fm_masks *f, const uint32_t *a,
                       const uint32_t *b)
{
    for (size_t x = 0; x < w->X; x++) {
        w->towards[x] = b ? b[x] : w->gaps->actions->width[0];
        w->widths[x] = a[x] > w->towards[x] ? a[x] : w->towards[x];
    }
    w->removed = fm_masks_removed(f, w->widths);
}

/* Lower one group by one action; false at the end of the descent. */
static bool step_down(struct way *w)
{
    const struct fm_actions *actions = w->gaps->actions;
    size_t size = (size_t)w->gaps->size, best = SIZE_MAX;
    double least = 0;
    for (size_t g = 0; g < w->X / size; g++) {
        if (w->widths[g * size] <= w->towards[g * size])
            continue;
        int a = fm_actions_find(actions, w->widths[g * size]);
        assert(a > 0);
        const double *lost = w->gaps->lost + g * (size_t)actions->count + (size_t)a;
        double cost = (lost[-1] - lost[0]) / (double)(actions->width[a] - actions->width[a - 1]);
        if (best == SIZE_MAX || cost < least) {
            best = g;
            least = cost;
        }
    }
    if (best == SIZE_MAX)
        return false;
    uint32_t *group = w->widths + best * size;
    uint32_t to = actions->width[fm_actions_find(actions, *group) - 1];
    assert(to >= w->towards[best * size]); /* its end is the width of an action too */
    w->removed += size * (*group - to);
    for (size_t e = 0; e < size; e++)
        group[e] = to;
    return true;
}

static bool go_down(struct way *w, uint64_t target)
{
    while (w->removed < target)
        if (!step_down(w))
            return false;
    return true;
}

/* The number of channels that the largest single step removes. */
static uint64_t largest_step(const struct fm_gaps *g)
{
    uint32_t most = 0;
    for (int a = 1; a < g->actions->count; a++) {
        uint32_t step = g->actions->width[a] - g->actions->width[a - 1];
        most = step > most ? step : most;
    }
    return (uint64_t)most * (uint64_t)g->size;
}

/* Add masks for the targets between the last mask and mask b of `from`, except those that mask b
 * exceeds by less than the largest step; if b is from->count, for all remaining targets. */
static int fill_gap(struct fm_masks *f, struct way *w, const struct fm_masks *from, int b,
                    struct fm_err *err)
{
    const struct fm_gaps *g = w->gaps;
    assert(b >= 1 && b <= from->count && f->count > 0);
    bool open = b == from->count;
    const struct fm_mask *like = &from->mask[open ? b - 1 : b];
    uint64_t n = fm_masks_channels(f), targets = fm_decimal_targets(g->step, g->until);
    begin_wide(w, from, fm_masks_widths(from, b - 1), open ? NULL : fm_masks_widths(from, b));
    int rc = FM_OK;
    for (uint64_t i = 1; !rc && i <= targets; i++) {
        uint64_t target = fm_decimal_target(g->step, g->until, i, n);
        if (target <= f->mask[f->count - 1].removed)
            continue;
        if (!open && target + largest_step(g) > from->mask[b].removed)
            break;
        bool arrived = go_down(w, target);
        if (w->removed > f->mask[f->count - 1].removed)
            rc = fm_masks_append(f, w->widths, like->method, like->step, err);
        if (!arrived)
            break;
    }
    return rc;
}

int fm_gaps_fill(struct fm_masks *f, const struct fm_masks *from, const struct fm_gaps *gaps,
                 struct fm_err *err)
{
    struct way way;
    assert(f->count == 0 && from->count > 0);
    int rc = open_way(&way, gaps, from, err);
    if (!rc)
        rc = fm_masks_copy(f, from, 0, err);
    for (int b = 1; !rc && b <= from->count; b++) {
        rc = fill_gap(f, &way, from, b, err);
        if (!rc && b < from->count)
            rc = fm_masks_copy(f, from, b, err);
    }
    free(way.widths);
    return rc;
}
