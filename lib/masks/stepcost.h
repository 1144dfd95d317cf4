/*
 * What a step of one expert's width is worth to the loss, from gradients at masks around one mask.
 *
 * A range a is the channels between action a - 1 and action a of an expert.  Its worth is how much
 * the loss grows when it goes: the mean, over its channels' masks from 1 to 0, of -dL/dm. Gradients
 * with the range and without it give both ends of that mean (the trapezoid rule).  All experts move
 * at random at once, each a step down in one of two masks and a step up in the other, so two masks
 * say it of every expert's next step down and up.  A gradient at one mask is useless: at mild
 * budgets it is noise around 0.
 *
 * Signed sums are noisy where they are small.  Their squares (the walk's measure) are not, but tell
 * less; `ratio` times them is what a worth is drawn to, as far as its scatter from one sweep to
 * the next says that it is noise (an estimate after James and Stein).
 *
 * Tokens of another text choose other experts.  So the worth of an expert is what it would be if
 * half of the tokens came as an even share (fm_stepcost_temper).
 *
 * x counts experts, or groups of tied ones, X of them; (X, A) arrays have range a at a, and
 * nothing at 0.
 */
#ifndef FM_STEPCOST_H
#define FM_STEPCOST_H

#include <stdint.h>

#include "lib/masks/actions.h"

#define FM_STEPCOST_LANES 2 /* masks around one */

/* Of what is measured, chosen and exchanged, with all constants: another one where a change of them
 * changes masks, so that no state and no output of the former rule is taken for one of this. */
#define FM_STEPCOST_RULE "worth 3"

struct fm_stepcost {
    const struct fm_actions *actions; /* borrowed */
    int X;
    double *weight; /* (X) of worth, all 1 at first */
    /* State. */
    double *value;   /* (X, A) running means; NaN: not measured yet */
    double *square;  /* (X, A) of the squares; NaN */
    double scale[2]; /* ratio of values to squares; trust in values, 0 to 1 */
};

enum { FM_STEPCOST_RATIO, FM_STEPCOST_TRUST };

int fm_stepcost_init(struct fm_stepcost *w, const struct fm_actions *actions, int X,
                     struct fm_err *err);
void fm_stepcost_release(struct fm_stepcost *w); /* zeroed struct is fine */
void fm_stepcost_clear(struct fm_stepcost *w);   /* nothing is measured yet */

/* Weigh experts by the tokens (X) that calibration routed to them; layers of E experts.  An expert
 * with a share q of its layer's tokens, 1 being an even one, weighs (1 + 1 / q) / 2. */
void fm_stepcost_temper(struct fm_stepcost *w, const int64_t *tokens, int E);

/* around (LANES, X): each expert a step narrower in one of them and a step wider in the other, as
 * far as it can, drawn for `sweep`. */
void fm_stepcost_draw(const struct fm_stepcost *w, const uint32_t *widths, uint32_t *around,
                      uint64_t seed, uint64_t sweep);

/* Take in sums (LANES, X, 2, A) at those masks: dz_a, and squares, as lib/learn/maskgrad.h has
 * them.  widths (X) are those that fm_stepcost_draw was given. */
int fm_stepcost_add(struct fm_stepcost *w, const uint32_t *widths, const uint32_t *around,
                    const double *sums, struct fm_err *err);

/* Worth of range a of expert x, per channel, weighed. */
double fm_stepcost_of(const struct fm_stepcost *w, int x, int a);

/* Lower widths (X), the least worth first, until they remove `target` channels or cannot. */
void fm_stepcost_lower(const struct fm_stepcost *w, uint32_t *widths, uint64_t target);

/* One expert a step down and another a step up. */
struct fm_stepcost_pair {
    int down, up;
    double gain; /* of the loss, per channel */
};

/*
 * The best exchanges, each expert in one at the most, best first: pair (X / 2) and the number of
 * those where what is gained is more than `margin` times what is lost.
 */
int fm_stepcost_pairs(const struct fm_stepcost *w, const uint32_t *widths, double margin,
                      struct fm_stepcost_pair *pair, struct fm_err *err);

/* Apply a pair to widths (X). */
void fm_stepcost_exchange(const struct fm_stepcost *w, uint32_t *widths,
                          const struct fm_stepcost_pair *pair);

#endif
