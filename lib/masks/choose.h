/*
 * Which member of a family a budget means: one rule for every tool that takes --budget.
 */
#ifndef FM_CHOOSE_H
#define FM_CHOOSE_H

#include "lib/masks/masks.h"

struct fm_masks_wish {
    double budget; /* share of the channels removed, 0 to 1 */
    double step;   /* between neighbours as the family was asked for: it may end that much short */
    bool exact;    /* no other member than one that prints the same budget, to four decimals */
};

/*
 * *index: the member of [first, last] whose budget is nearest, the lower of two equally near.
 * FM_EUSAGE where the budget lies further beyond the last member than `step`, or than that member
 * lies from the one before it, and where `exact` asks for a member that is not there; the sentence
 * names the family's end, or the neighbours.
 */
int fm_masks_choose(int *index, const struct fm_masks *f, int first, int last,
                    const struct fm_masks_wish *wish, struct fm_err *err);

/* The member's budget is that one, as far as it is printed. */
bool fm_masks_is_near(const struct fm_masks *f, int index, double budget);

#endif
