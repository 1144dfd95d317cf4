/*
 * A mask at every budget, which a method need not provide: masks between two of the family are
 * obtained by single steps from one to the next.  A step gives one group of experts its next
 * narrower action; the step that loses the least score per channel comes first.
 */
#ifndef FM_GAPS_H
#define FM_GAPS_H

#include "lib/masks/masks.h"

struct fm_gaps {
    const struct fm_actions *actions; /* of all widths in the family; all pointers here are
                                         borrowed */
    const double *lost;               /* (groups, A): fm_masks_lost, summed over each group */
    int size;                         /* experts in a group (lib/masks/granularity.h) */
    const struct fm_decimal *step, *until;
};

/*
 * f = the masks of `from`, plus a mask at each multiple of `step` up to `until` that lacks one.  A
 * multiple has a mask if one removes at least that much, and exceeds it by less than the largest
 * single step.  An added mask is on the descent to the next mask of `from` or, after the last one,
 * to the narrowest; the descent begins by widening the experts that are wider in the next mask.  An
 * added mask has no quality; its method and step number are those of the next mask of `from` or,
 * after the last one, of the last.
 */
int fm_gaps_fill(struct fm_masks *f, const struct fm_masks *from, const struct fm_gaps *gaps,
                 struct fm_err *err);

#endif
