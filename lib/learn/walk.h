/*
 * walk: at every budget step, measure the effect of each expert's channels at the current mask,
 * and narrow the experts whose channels cost least, until the budget is met (fm-method(7)).  Its
 * only state is the family.  exchange: the same, by the cost of steps around the current mask; an
 * expert may also be narrowed in order to widen another whose channels matter more.  Its state is
 * struct fm_stepcost.  It does not make a mask for every budget: each step removes about a twelfth
 * of the remaining channels, and at least enough for the next budget.  The masks between these are
 * filled in afterwards (lib/masks/gaps.h).
 */
#ifndef FM_WALK_H
#define FM_WALK_H

#include "lib/learn/probe.h"
#include "lib/learn/task.h"
#include "lib/masks/actions.h"
#include "lib/masks/masks.h"
#include "lib/masks/stepcost.h"

struct fm_walk {
    struct fm_task *task; /* borrowed, like all fields below */
    const struct fm_actions *actions;
    const struct fm_decimal *step, *until;
    int sequences; /* sequences per sweep */
    enum fm_granularity granularity;
    struct fm_stepcost *stepcost; /* for exchange; NULL for walk */
};

/* Number of sweeps that exchange makes from the full mask, of n channels, to `until`. */
uint64_t fm_walk_sweeps(const struct fm_decimal *step, const struct fm_decimal *until, uint64_t n);

/*
 * Extend the family, which has at least the full mask, by one mask.  *done is set instead if
 * `until` is met or every expert has its narrowest width.
 */
int fm_walk_step(const struct fm_walk *walk, struct fm_masks *masks, bool *done,
                 struct fm_err *err);

/*
 * The choice of fm_walk_step without the measuring: narrow widths (X) until they remove `target`
 * channels; if that is not possible, every expert gets the narrowest width.  squares (X, A): mean
 * c^2 summed over the channels between action a - 1 and action a.
 */
int fm_walk_lower(uint32_t *widths, const double *squares, const struct fm_actions *actions, int X,
                  uint64_t target, struct fm_err *err);

/* Measure masks around widths (M, E), drawn with the number `sweep`, in one sweep, and add the
 * results to `stepcost`, whose X items are groups of `size` experts. */
int fm_walk_around(struct fm_stepcost *stepcost, const struct fm_probe *probe,
                   const uint32_t *widths, int size, uint64_t sweep, struct fm_err *err);

#endif
