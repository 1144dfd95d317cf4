/*
 * --refine: exchange at a fixed budget, on the masks of any method.  What steps are worth around a
 * mask proposes exchanges; sets of them are tried, and the measured loss decides.
 */
#ifndef FM_REFINE_H
#define FM_REFINE_H

#include "lib/learn/walk.h"
#include "lib/masks/masks.h"
#include "lib/masks/stepcost.h"

/* Sets of exchanges that a round tries, beside the mask as it is. */
#define FM_REFINE_SETS 11

/* Masks are refined this many budget steps apart; those between them are on the way from one to the
 * next. */
#define FM_REFINE_EVERY 5

/* Rounds in a row that find nothing, after which a mask is left as it is. */
#define FM_REFINE_IDLE 2

struct fm_refine {
    struct fm_task *task; /* borrowed, as all that follows */
    struct fm_stepcost *worth;
    int size;      /* experts in a group */
    int around;    /* sequences that propose */
    int sequences; /* fixed ones that decide */
};

/*
 * One round on mask b of f: a sweep that proposes, a sweep that tries.  The mask keeps its place
 * among its neighbours' budgets, and removes at least `least` channels.  `round` counts all rounds
 * of a run: it draws.  *found says whether the mask is another now.
 */
int fm_refine_round(const struct fm_refine *r, struct fm_masks *f, int b, uint64_t least,
                    uint64_t round, bool *found, struct fm_err *err);

/* The masks of f to refine: the full one, and of every FM_REFINE_EVERY budget steps the nearest. */
int fm_refine_choose(struct fm_masks *to, const struct fm_masks *f, const struct fm_decimal *step,
                     const struct fm_decimal *until, struct fm_err *err);

/* Masks that fm_refine_choose leaves of a family up to `until`, at the most; the plan's count. */
uint64_t fm_refine_masks(const struct fm_decimal *step, const struct fm_decimal *until);

#endif
