/*
 * The cost in loss of one step of an expert's width, from gradients at masks around one mask.
 *
 * Range a of an expert is the channels between its actions a - 1 and a.  The cost of a range is the
 * increase of the loss when it is removed: the mean of -dL/dm while the masks m of its channels go
 * from 1 to 0.  Gradients with the range and without it give both ends of that mean (the trapezoid
 * rule).  In each of two masks every expert is a step away from its width, at random down in one
 * mask and up in the other, so that two masks give the values of every expert's next step down and
 * up.  The gradient at a single mask is useless: at small budgets it is noise around 0.
 *
 * Signed sums are noisy where they are small.  Sums of squares are not, but carry less
 * information.  A cost is therefore shrunk towards `ratio` times the sum of squares,
 * by the share of noise that its scatter between sweeps indicates (an estimate after James and
 * Stein).
 *
 * Text of a different kind is routed to different experts.  So the cost of an expert is weighted as
 * if a fifth of the tokens were distributed evenly over the experts (fm_stepcost_temper).
 *
 * x is the index of an expert, or of a group of tied ones, X in all; (X, A) arrays have range a at
 * index a; index 0 is unused.
 */
#ifndef FM_STEPCOST_H
#define FM_STEPCOST_H

#include <stdint.h>

#include "lib/masks/actions.h"

#define FM_STEPCOST_LANES 2 /* masks drawn around the current one */

/* The version of these rules and constants.  A change that affects masks needs a new version, so
 * that states and outputs of the old version are not reused. */
#define FM_STEPCOST_RULE "worth 4"

struct fm_stepcost {
    const struct fm_actions *actions; /* borrowed */
    int X;
    double *weight; /* (X) weights of costs, all 1 at first */
    /* State. */
    double *value;   /* (X, A) running means; NaN: not measured yet */
    double *square;  /* (X, A) running means of the squares; NaN: not measured yet */
    double scale[2]; /* ratio of values to squares; weight of the values, 0 to 1 */
    /* The state saved by fm_stepcost_keep. */
    double *kept; /* (2, X, A) */
    double kept_scale[2];
};

enum { FM_STEPCOST_RATIO, FM_STEPCOST_TRUST };

int fm_stepcost_init(struct fm_stepcost *w, const struct fm_actions *actions, int X,
                     struct fm_err *err);
void fm_stepcost_release(struct fm_stepcost *w); /* zeroed struct is fine */

/* Save the current state; restore it.  If a run is interrupted in the middle of a step, a resumed
 * run repeats all sweeps of that step. */
void fm_stepcost_keep(struct fm_stepcost *w);
void fm_stepcost_restore(struct fm_stepcost *w);

/* Weight experts by the tokens (X) that calibration routed to them; layers have E experts.  An
 * expert with a share q of its layer's tokens, relative to an even share and counted as at least
 * 0.05, has the weight (4 + 1 / q) / 5. */
void fm_stepcost_temper(struct fm_stepcost *w, const int64_t *tokens, int E);

/* Draw around (LANES, X) for `sweep`: each expert is a step narrower in one mask and a step
 * wider in the other, if such a step exists. */
void fm_stepcost_draw(const struct fm_stepcost *w, const uint32_t *widths, uint32_t *around,
                      uint64_t seed, uint64_t sweep);

/* Add the sums (LANES, X, 2, A) measured at those masks: dz_a, and squares, as in
 * lib/learn/maskgrad.h.  widths (X) are those given to fm_stepcost_draw. */
int fm_stepcost_add(struct fm_stepcost *w, const uint32_t *widths, const uint32_t *around,
                    const double *sums, struct fm_err *err);

/* The weighted cost of range a of expert x, per channel. */
double fm_stepcost_of(const struct fm_stepcost *w, int x, int a);

/* Lower widths (X), steps of least cost first, until they remove `target` channels or no step
 * is left. */
void fm_stepcost_lower(const struct fm_stepcost *w, uint32_t *widths, uint64_t target);

/* A step down of one expert and a step up of another. */
struct fm_stepcost_pair {
    int down, up;
};

/*
 * Set pair (X / 2) to the exchanges in which the step up gains more than `margin` times the cost of
 * the step down, best first, with each expert in at most one.  Returns their number, or -1 if there
 * is no memory.
 */
int fm_stepcost_pairs(const struct fm_stepcost *w, const uint32_t *widths,
                      struct fm_stepcost_pair *pair, struct fm_err *err);

/* Apply a pair to widths (X). */
void fm_stepcost_exchange(const struct fm_stepcost *w, uint32_t *widths,
                          const struct fm_stepcost_pair *pair);

#endif
