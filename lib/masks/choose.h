/*
 * The choice of a family's member by budget: one rule for every tool that has --budget.
 */
#ifndef FM_CHOOSE_H
#define FM_CHOOSE_H

#include "lib/masks/masks.h"

struct fm_masks_wish {
    double budget; /* share of the channels removed, 0 to 1 */
    double step;   /* requested distance between neighbours: the last budget may be this much
                      lower than requested */
};

/*
 * Set *index to the member of [first, last] with the nearest budget, or the lower of two at the
 * same distance.  FM_EUSAGE if the budget exceeds the last member's by more than `step` and by more
 * than the distance between the last two members; the error names the last budget.
 */
int fm_masks_choose(int *index, const struct fm_masks *f, int first, int last,
                    const struct fm_masks_wish *wish, struct fm_err *err);

/* True if the member has that budget, to the printed precision. */
bool fm_masks_is_near(const struct fm_masks *f, int index, double budget);

#endif
