/*
 * A family rarely has a member of exactly the requested budget, so the nearest one is taken.  A
 * budget beyond the end of the family is an error: a request for 0.90 must not silently give 0.30.
 */
#include "lib/masks/choose.h"

#include <math.h>

/* Budgets are printed with four decimals, and users copy what was printed. */
#define PRINTED 0.00005

int fm_masks_choose(int *index, const struct fm_masks *f, int first, int last,
                    const struct fm_masks_wish *wish, struct fm_err *err)
{
    int best = first;
    for (int b = first + 1; b <= last; b++)
        if (fabs(fm_masks_budget(f, b) - wish->budget) <
            fabs(fm_masks_budget(f, best) - wish->budget))
            best = b;
    double end = fm_masks_budget(f, last), beyond = wish->budget - end;
    double gap = last > first ? end - fm_masks_budget(f, last - 1) : 0;
    *index = best;
    if (beyond > fmax(wish->step, gap) + PRINTED)
        return fm_fail(err, FM_EUSAGE,
                       "--budget %g is beyond the family's end, %.4f (%d members); give at most "
                       "that, or train a family with a higher --until",
                       wish->budget, end, last - first + 1);
    return FM_OK;
}

bool fm_masks_is_near(const struct fm_masks *f, int index, double budget)
{
    return fabs(fm_masks_budget(f, index) - budget) <= PRINTED;
}
