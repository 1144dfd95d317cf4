/*
 * This room, lib/masks: the mathematics of expert widths: sets of widths, families of masks, the
 * logits of learned masks, and experts that share a width.  It includes only lib/base and
 * does not use tensors, files or models, so that all of it can be tested with plain numbers.  In
 * reading order: decimal, actions, granularity, masks, methods (their list), spread (how tokens
 * differ), gaps, stepcost, logits.
 *
 * struct fm_masks is a family of masks: budgets in increasing order, with a width per expert and
 * the origin of each mask.  (For model families such as Mixtral or OLMoE see lib/family/family.h.)
 * The methods that need no gradient are here: saliency (the concave hull of the scores) and
 * uniform; and the two shuffles, which are controls for measurements.
 *
 * The budget of a mask is channels removed / (M E I); the mask records the number of channels,
 * which is exact.  A family begins with the full mask.
 */
#ifndef FM_MASKS_H
#define FM_MASKS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/masks/actions.h"
#include "lib/masks/granularity.h"

struct fm_method; /* lib/masks/methods.h */

/* Kinds of held-out text, by name; empty if there is only one text. */
#define FM_KINDS_MAX 16 /* equal to FM_INPUTS_MAX */
#define FM_KIND_CHARACTERS "-._0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
struct fm_kinds {
    int count;
    char name[FM_KINDS_MAX][24];
};

/* The quality of a mask on held-out sequences (lib/learn/quality.h measures it). */
struct fm_quality {
    double ce, kl;             /* means over positions, natural logarithm */
    double agree;              /* share of positions at which the most probable token is the full
                                  model's */
    int64_t positions;         /* 0: not measured */
    bool recovered;            /* measured with the merged, rounded adapter */
    double kind[FM_KINDS_MAX]; /* ce of each kind of held-out text, if there are kinds */
};

struct fm_mask {
    uint64_t removed; /* number of channels */
    const struct fm_method *method;
    int step; /* number of training steps so far, or of the budget, from 1, according to the
                 method; 0: the full mask, or a uniform one */
    struct fm_quality quality;
};

struct fm_masks {
    int M, E, I;
    int count;
    size_t mask_room, widths_room; /* capacity of mask and widths, in masks */
    struct fm_mask *mask;          /* (count), removed strictly increasing */
    uint32_t *widths;              /* (count, M, E) */
    struct fm_kinds kinds;         /* the kinds of text that qualities have figures for */
};

/* The kind whose loss increases most from `full`, the full model's; *lost is the increase.  -1: no
 * kinds. */
int fm_masks_worst(double *lost, const struct fm_kinds *kinds, const double *kind,
                   const double *full);

void fm_masks_init(struct fm_masks *f, int M, int E, int I);
/* Allocate memory for that many masks. */
int fm_masks_reserve(struct fm_masks *f, size_t masks, struct fm_err *err);
void fm_masks_release(struct fm_masks *f); /* zeroed struct is fine */

/* Widths of mask b, (M, E). */
const uint32_t *fm_masks_widths(const struct fm_masks *f, int b);

/* Copy the widths of n masks, by index, one after another: (n, M, E). */
void fm_masks_gather(uint32_t *widths, const struct fm_masks *f, const int *number, int n);

/* A sanity check for asserts: widths are at most I, every mask removes the number of channels
 * that it records and more than the previous one, and qualities are finite. */
bool fm_masks_sane(const struct fm_masks *f);

/* M E I; and the budget of mask b. */
uint64_t fm_masks_channels(const struct fm_masks *f);
double fm_masks_budget(const struct fm_masks *f, int b);

/* The number of channels that widths (M, E) remove. */
uint64_t fm_masks_removed(const struct fm_masks *f, const uint32_t *widths);

/* Append a copy of widths (M, E), which must remove more than the last mask does. */
int fm_masks_append(struct fm_masks *f, const uint32_t *widths, const struct fm_method *method,
                    int step, struct fm_err *err);

/* Append mask b of another family, with its origin and quality; it must remove more than the last
 * mask does. */
int fm_masks_copy(struct fm_masks *f, const struct fm_masks *from, int b, struct fm_err *err);

/* Append the full mask to an empty family. */
int fm_masks_full(struct fm_masks *f, const struct fm_method *method, struct fm_err *err);

/* Append widths if they remove at least `grown` more than the last mask or,
 * with `last`, if they remove more at all. f has at least the full mask. */
int fm_masks_append_grown(struct fm_masks *f, const uint32_t *widths,
                          const struct fm_method *method, int step, uint64_t grown, bool last,
                          struct fm_err *err);

/* The mask with the nearest budget (ties: the lower); -1 for an empty family. */
int fm_masks_nearest(const struct fm_masks *f, const struct fm_decimal *budget);

/*
 * measured (count) = the masks to measure with --measure-step: the first, the last, and those
 * nearest to a multiple of `every`; all masks if `every` is at most `step`, the distance between
 * budgets.
 */
void fm_masks_measured(bool *measured, const struct fm_masks *f, const struct fm_decimal *every,
                       const struct fm_decimal *step);

/*
 * The quality of mask b: *q as measured or, with positions 0, interpolated linearly in the number
 * of removed channels between the nearest measured masks.  False if neither is possible.
 */
bool fm_masks_quality(struct fm_quality *q, const struct fm_masks *f, int b);

/*
 * These two extend the full mask, and their masks have its method.
 *
 * Saliency: each expert has the concave hull of summed score against width over the action set; the
 * segments of all hulls are taken in order of score lost per channel.  scores (M, E, I) in original
 * channel order, order (M, E, I) as in ranking.safetensors.  Experts that share a width have one
 * hull, of their summed scores.
 */
int fm_masks_saliency(struct fm_masks *f, const struct fm_actions *actions, const double *scores,
                      const int32_t *order, const struct fm_decimal *step,
                      const struct fm_decimal *until, enum fm_granularity granularity,
                      struct fm_err *err);

/* Uniform: one mask for each action that does not remove more than `until`, with that width for
 * every expert. */
int fm_masks_uniform(struct fm_masks *f, const struct fm_actions *actions,
                     const struct fm_decimal *until, struct fm_err *err);

/* Every mask of `from`, with its widths permuted within layers or over the whole model, and without
 * quality. */
int fm_masks_shuffle(struct fm_masks *f, const struct fm_masks *from, bool global, uint64_t seed,
                     struct fm_err *err);

/* lost (M, E, A): the sum of the scores of the channels that each action drops. */
void fm_masks_lost(double *lost, const struct fm_actions *actions, const double *scores,
                   const int32_t *order, int M, int E, int I);

/* The choice of a member by budget: one rule for every tool that has --budget. */
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
