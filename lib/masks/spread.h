/*
 * The distribution of losses over tokens, and the uncertainty of their mean: percentiles of the
 * divergence per token and of the change in the probability of the true token, the agreement of the
 * five most probable tokens, and 95 % intervals of the mean losses.
 *
 * Percentiles are interpolated linearly, as by numpy's default.  Intervals are over sequences,
 * because tokens of one sequence share their context; an interval over tokens assumes that they are
 * independent and is too narrow.  For a mean of n tokens in g groups with sums s_i of n_i tokens
 * each, the half width is
 *
 *     t(0.975, g - 1) sqrt(g / (g - 1) sum_i (s_i - n_i mean)^2) / n
 *
 * the ratio estimator of cluster sampling (Cochran, Sampling Techniques, 3rd ed., 6.3 and 9A), with
 * Student's t because the number of sequences is usually small.
 */
#ifndef FM_SPREAD_H
#define FM_SPREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

/* Values kept for one token while it is measured. */
struct fm_token {
    float ce, kl; /* nats */
    float change; /* probability of the true token minus that in the original */
    uint8_t near; /* how many of the original's five most probable tokens are among this model's */
};

#define FM_SPREAD_NEAR 5

/* The percentiles, as fractions; 0 and 1 are minimum and maximum. */
#define FM_SPREAD_AT 13
extern const double fm_spread_at[FM_SPREAD_AT];
#define FM_SPREAD_MEDIAN 6 /* index of the median */

struct fm_spread {
    bool compared;     /* there is an original; otherwise only ce_half is set */
    double ce_half;    /* half of the 95 % interval of the mean cross-entropy; NaN for one group */
    double kl_half;    /* half of the 95 % interval of the mean divergence */
    double top5;       /* mean of fm_token.near, as a share of its maximum */
    double change;     /* mean */
    double change_rms; /* root of the mean square */
    double kl_at[FM_SPREAD_AT], change_at[FM_SPREAD_AT];
};

/*
 * Fill *spread from `groups` groups of tokens; group i has tokens [first[i], first[i + 1]).  `near`
 * is the maximum of fm_token.near: five, or the size of the vocabulary if that is smaller. `sorted`
 * (first[groups]) is scratch.  Sums are in order of tokens.
 */
void fm_spread_of(struct fm_spread *spread, const struct fm_token *token, const size_t *first,
                  int groups, int near, bool compared, float *sorted);

/*
 * The cross-entropies of several models on the same tokens, summed over each group.  The difference
 * of two models varies much less between groups than their losses do, because a group that is hard
 * for one is hard for the other, so differences are taken by group.
 */
struct fm_spread_sums {
    int groups;
    size_t *first; /* (groups + 1): the first token of each group, and their number */
    double *ce;    /* (models, groups), in nats */
};

int fm_spread_sums_init(struct fm_spread_sums *sums, int models, const size_t *first, int groups,
                        struct fm_err *err);
void fm_spread_sums_release(struct fm_spread_sums *sums);

/* Set the sums of a model from its tokens. */
void fm_spread_sums_set(struct fm_spread_sums *sums, int model, const struct fm_token *token);

/* The mean cross-entropy of one model minus that of another, and its standard error; NaN for one
 * group.  Both are zeroed if they are not known. */
struct fm_spread_paired {
    double mean, error;
    bool known;
};

/* Model i of a minus model k of b, which are of the same tokens. */
struct fm_spread_paired fm_spread_pair(const struct fm_spread_sums *a, int i,
                                       const struct fm_spread_sums *b, int k);

/* The percentile `at` of sorted (n > 0), in ascending order. */
double fm_spread_percentile(const float *sorted, size_t n, double at);

/* The 0.975 quantile of Student's t with that many degrees of freedom, to 5 digits; NaN for 0. */
double fm_spread_student(int freedom);

#endif
