/*
 * Two things that users ask of a family and that a method does not give by itself: a mask at every
 * budget, and nested masks (no expert is wider at a larger budget).
 *
 * Both go from one mask of the family to the next by single steps.  A step is the next narrower
 * action of one group of experts; the step that loses the least score per channel comes first.
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
 * f = the masks of `from`, plus a mask for each multiple of `step` up to `until` that has none
 * (none that removes at least as much, and less than a single step more).  An added mask is on the
 * descent to the next mask of `from`, or, after the last, to the narrowest.  Experts that are wider
 * in the next mask are widened first.  An added mask has the method and the step number of the mask
 * it leads to, and no quality.
 */
int fm_gaps_fill(struct fm_masks *f, const struct fm_masks *from, const struct fm_gaps *gaps,
                 struct fm_err *err);

/*
 * f = masks whose widths never grow with the budget, at the budgets of `from` or less than a
 * single step above: each narrows the one before towards the next of `from`; an expert that is
 * wider there keeps its width.  A mask that equals that of `from` keeps its quality.
 */
int fm_gaps_nest(struct fm_masks *f, const struct fm_masks *from, const struct fm_gaps *gaps,
                 struct fm_err *err);

#endif
