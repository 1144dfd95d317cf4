/*
 * Method `exchange`: from budget to budget, narrow the experts whose channels cost least, by the
 * cost of steps from gradients at masks around the current one (fm-method(7)); an expert may also
 * be widened in exchange for another whose channels matter less.  Its state is the family and
 * struct fm_stepcost.  It does not make a mask for every budget: each step removes about a twelfth
 * of the remaining channels, and at least enough for the next budget.  The masks between these are
 * filled in afterwards (lib/masks/gaps.h).
 */
#ifndef FM_EXCHANGE_H
#define FM_EXCHANGE_H

#include "lib/learn/probe.h"
#include "lib/learn/task.h"
#include "lib/masks/actions.h"
#include "lib/masks/methods.h"
#include "lib/masks/stepcost.h"

struct fm_exchange {
    struct fm_task *task; /* borrowed, like all fields below */
    const struct fm_actions *actions;
    const struct fm_decimal *step, *until;
    int sequences; /* sequences per sweep */
    enum fm_granularity granularity;
    struct fm_stepcost *stepcost;
};

/* Number of sweeps from the full mask, of n channels, to `until`. */
uint64_t fm_exchange_sweeps(const struct fm_decimal *step, const struct fm_decimal *until,
                            uint64_t n);

/*
 * Extend the family, which has at least the full mask, by one mask.  *done is set instead if
 * `until` is met or every expert has its narrowest width.
 */
int fm_exchange_step(const struct fm_exchange *exchange, struct fm_masks *masks, bool *done,
                     struct fm_err *err);

#endif
