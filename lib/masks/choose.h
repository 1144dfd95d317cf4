/*
 * Which member of a family a budget means: one rule for every tool that takes --budget.
 */
#ifndef FM_CHOOSE_H
#define FM_CHOOSE_H

#include "lib/masks/masks.h"

struct fm_masks_wish {
    double budget; /* share of the channels removed, 0 to 1 */
    double step;   /* requested distance between neighbours: the family may end that much short */
    bool exact;    /* accept only a member whose budget prints the same, to four decimals */
};

/*
 * *index: the member of [first, last] whose budget is nearest, the lower of two equally near.
 * FM_EUSAGE if the budget exceeds the last member's by more than `step` and by more than the
 * distance between the last two members, or if `exact` asks for a member that does not exist; the
 * sentence names the family's end, or the neighbours.
 */
int fm_masks_choose(int *index, const struct fm_masks *f, int first, int last,
                    const struct fm_masks_wish *wish, struct fm_err *err);

/* The member's budget is that one, as far as it is printed. */
bool fm_masks_is_near(const struct fm_masks *f, int index, double budget);

#endif
