/*
 * What a user asks of a family that its method does not give by itself: a mask at every budget,
 * and masks that lie in each other.
 *
 * Both go from one mask of the family to the next by single steps, each the next narrower action
 * of one group of experts, those first that lose the least score per channel.
 */
#ifndef FM_GAPS_H
#define FM_GAPS_H

#include "lib/masks/masks.h"

struct fm_gaps {
    const struct fm_actions *actions; /* of all widths in the family; borrowed, as all here */
    const double *lost;               /* (groups, A): fm_masks_lost, summed over each group */
    int size;                         /* experts in a group (lib/masks/granularity.h) */
    const struct fm_decimal *step, *until;
};

/*
 * f = the masks of `from` and, where a multiple of `step` up to `until` has none that removes as
 * much and less than a single step more, one on the way to the next mask; behind the last, on the
 * way to the narrowest.  What the next mask has wider is widened first.  A mask that is added has
 * the method and the step of the one that it leads to, and no quality.
 */
int fm_gaps_fill(struct fm_masks *f, const struct fm_masks *from, const struct fm_gaps *gaps,
                 struct fm_err *err);

/*
 * f = masks whose widths never grow with the budget, at the budgets of `from` or less than a
 * single step above: each narrows the one before towards from's next, and where that is wider it
 * stays.  A mask that is still from's keeps its quality.
 */
int fm_gaps_nest(struct fm_masks *f, const struct fm_masks *from, const struct fm_gaps *gaps,
                 struct fm_err *err);

#endif
