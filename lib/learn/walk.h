/*
 * walk: at every budget step, measure at the current masks what each expert's channels
 * carry, and lower the experts whose channels cost least, until the budget is met
 * (fm-method(7)).  The family is all the state it has.
 * exchange: the same, by what steps are worth around the current masks, and experts whose steps
 * are worth less than another's are narrowed to widen that one; its state is struct fm_stepcost.
 * It visits every seventh budget of a percent at first and every one at the end; the budgets
 * between two masks are filled afterwards (lib/masks/gaps.h).
 */
#ifndef FM_WALK_H
#define FM_WALK_H

#include "lib/learn/probe.h"
#include "lib/learn/task.h"
#include "lib/masks/actions.h"
#include "lib/masks/masks.h"
#include "lib/masks/stepcost.h"

struct fm_walk {
    struct fm_task *task; /* borrowed, as all that follows */
    const struct fm_actions *actions;
    const struct fm_decimal *step, *until;
    int sequences; /* of a sweep */
    enum fm_granularity granularity;
    struct fm_stepcost *worth; /* exchange; NULL: walk */
};

/* Sweeps of exchange from the full mask, of n channels, to `until`. */
uint64_t fm_walk_sweeps(const struct fm_decimal *step, const struct fm_decimal *until, uint64_t n);

/*
 * Take the family, which has at least the full mask, one mask further.  *done is set instead where
 * `until` is met or every expert is as narrow as it can be.
 */
int fm_walk_step(const struct fm_walk *walk, struct fm_masks *masks, bool *done,
                 struct fm_err *err);

/*
 * The choice alone: lower widths (X) until they remove `target` channels.  squares (X, A): mean
 * c^2 summed over the channels between action a - 1 and action a.  Where they cannot, every expert
 * ends at its narrowest.
 */
int fm_walk_lower(uint32_t *widths, const double *squares, const struct fm_actions *actions, int X,
                  uint64_t target, struct fm_err *err);

/* One sweep at masks around widths (M, E), drawn for `sweep`, taken into `worth`, whose x are
 * groups of `size` experts. */
int fm_walk_around(struct fm_stepcost *worth, const struct fm_probe *probe, const uint32_t *widths,
                   int size, uint64_t sweep, struct fm_err *err);

#endif
