/*
 * walk: at every budget step, measure at the current masks what each expert's channels
 * carry, and lower the experts whose channels cost least, until the budget is met
 * (METHOD.md 3a).  The family is all the state it has.
 */
#ifndef FM_WALK_H
#define FM_WALK_H

#include "lib/learn/task.h"
#include "lib/masks/actions.h"
#include "lib/masks/masks.h"

struct fm_walk {
    struct fm_task *task; /* borrowed, as all that follows */
    const struct fm_actions *actions;
    const struct fm_decimal *step, *until;
    int sequences; /* looked at for a budget */
    enum fm_granularity granularity;
};

/*
 * Take the family, which has at least the full mask, one budget further: one sweep, one mask.
 * *done is set instead where `until` is met or every expert is as narrow as it can be.
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

#endif
