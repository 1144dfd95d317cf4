/*
 * --refine: exchange at a fixed budget, for the masks of any method.  Exchanges are proposed by the
 * estimated cost of steps around a mask; sets of them are then measured, and the lowest loss wins.
 */
#ifndef FM_REFINE_H
#define FM_REFINE_H

#include "lib/learn/walk.h"
#include "lib/masks/masks.h"
#include "lib/masks/stepcost.h"

/* Sets of exchanges that a round tries, in addition to the unchanged mask. */
#define FM_REFINE_SETS 11

/* The refined masks are this many budget steps apart; the masks between them are filled in
 * afterwards. */
#define FM_REFINE_EVERY 5

/* Consecutive rounds without improvement after which a mask is final. */
#define FM_REFINE_IDLE 2

struct fm_refine {
    struct fm_task *task; /* borrowed, like all fields below */
    struct fm_stepcost *stepcost;
    int size;      /* experts in a group */
    int around;    /* sequences for proposals */
    int sequences; /* fixed sequences for the decision */
};

/*
 * Make one round on mask b of f: one sweep proposes exchanges, a second one tries them.  The mask
 * stays between its neighbours' budgets, and removes at least `least` channels.  `round` is the
 * number of the round in the run, and seeds the draws.  *found is set to whether the mask changed.
 */
int fm_refine_round(const struct fm_refine *r, struct fm_masks *f, int b, uint64_t least,
                    uint64_t round, bool *found, struct fm_err *err);

/* Copy to *to the masks of f to refine: the full mask, the first mask that reaches each
 * FM_REFINE_EVERY-th budget, and the first that reaches the last budget.  The last mask of f takes
 * the place of a mask for a budget that f does not reach; no mask is copied twice. */
int fm_refine_choose(struct fm_masks *to, const struct fm_masks *f, const struct fm_decimal *step,
                     const struct fm_decimal *until, struct fm_err *err);

/* Largest number of masks that fm_refine_choose copies in addition to the full one, from a family
 * up to `until`; for estimates. */
uint64_t fm_refine_masks(const struct fm_decimal *step, const struct fm_decimal *until);

#endif
