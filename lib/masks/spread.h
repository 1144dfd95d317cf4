/*
 * How tokens differ: what a mean over held-out tokens hides, and how far the mean can be trusted.
 * Percentiles of the divergence per token, of the change in the probability of the true token, the
 * agreement of the five most probable tokens, and 95 % intervals of the mean losses.
 *
 * Percentiles are between two values in proportion, as numpy's default has them and, in float32,
 * llama.cpp's llama-perplexity.  Intervals are over sequences (of a text that is cut by documents,
 * over documents), because tokens of one sequence share their context: an interval over tokens,
 * as llama.cpp prints, takes them for independent and is too narrow.  For a mean of n tokens in
 * g groups with sums s_i of n_i tokens each, the half width is
 *
 *     t(0.975, g - 1) sqrt(g / (g - 1) sum_i (s_i - n_i mean)^2) / n
 *
 * the ratio estimator of cluster sampling (Cochran, Sampling Techniques, 3rd ed., 6.3 and 9A), with
 * Student's t for the few sequences that people measure on.
 */
#ifndef FM_SPREAD_H
#define FM_SPREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is kept of one token while it is measured. */
struct fm_token {
    float ce, kl; /* nats */
    float change; /* probability of the true token less that in the original */
    uint8_t near; /* of the original's five most probable tokens, those among our five */
};

/* Counts of a text by whose words and bytes losses are given, too; zeroed: by tokens only. */
struct fm_words {
    uint64_t documents, words, bytes;
};

/* exp of the loss per word: ce nats per token of so many tokens.  Also that per byte (bytes for
 * words); bits per byte are its logarithm to 2. */
double fm_words_perplexity(double ce, uint64_t tokens, uint64_t words);

#define FM_SPREAD_NEAR 5

/* Where percentiles are taken, as shares; 0 and 1 are minimum and maximum. */
#define FM_SPREAD_AT 13
extern const double fm_spread_at[FM_SPREAD_AT];
#define FM_SPREAD_MEDIAN 6 /* its index */

struct fm_spread {
    bool compared;     /* there is an original; if not, only tokens, groups and ce_half */
    int64_t tokens;    /* 0: nothing was measured */
    int groups;        /* sequences or documents */
    double ce_half;    /* half of the 95 % interval of the mean cross-entropy; NaN of one group */
    double kl_half;    /* and of the mean divergence */
    double top5;       /* mean share of the original's five most probable tokens among our five */
    double change;     /* mean */
    double change_rms; /* root of the mean square */
    double kl_at[FM_SPREAD_AT], change_at[FM_SPREAD_AT];
};

/*
 * Of `groups` groups of tokens, group i's at token[first[i]] to token[first[i + 1]]; `near` is the
 * most that one has, five or the size of the vocabulary.  sorted (first[groups]) is scratch.  Sums
 * are in order of tokens.
 */
void fm_spread_of(struct fm_spread *spread, const struct fm_token *token, const size_t *first,
                  int groups, int near, bool compared, float *sorted);

/* The value below which the share `at` of sorted (n > 0), rising, is. */
double fm_spread_percentile(const float *sorted, size_t n, double at);

/* The 0.975 quantile of Student's t with so many degrees of freedom, to 5 digits; NaN for 0. */
double fm_spread_student(int freedom);

#endif
