/*
 * What every family goes through once its method has made it: gaps between budgets are filled,
 * masks are made to nest where that is asked for, and each mask is measured on the held-out
 * sequences.
 */
#ifndef FM_FINISH_H
#define FM_FINISH_H

#include "lib/learn/trainstate.h"

/*
 * From t->masks[FM_TRAIN_MADE] make t->masks[FM_TRAIN_RESULT], measured; goes on
 * where a state file had part of it.  FM_ESAVED when stopped, and then t can be saved.
 */
int fm_finish_family(struct fm_trainer *t, struct fm_err *err);

/* Whether the method came to less than a step from `until` by itself, *came_to the budget that it
 * came to; where not, a warning says why and what to raise.  f is the result. */
bool fm_finish_reached(struct fm_trainer *t, const struct fm_masks *f, double *came_to);

#endif
