/*
 * Decimal numbers from 0 to 1 as the user typed them, and their products with counts, computed in
 * integers.  0.55 * 6400 is 3520 here; in double it is 3520.0000000000005, whose ceiling is 3521.
 */
#ifndef FM_DECIMAL_H
#define FM_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

/* value = num / den, den a power of ten up to 10^9. */
struct fm_decimal {
    uint64_t num, den;
};

/* Parse "0.40", ".4", "1": digits with at most one point and nine decimals, in [0, 1]; FM_EUSAGE
 * names `what` ("--until"). */
int fm_decimal_parse(struct fm_decimal *d, const char *text, const char *what, struct fm_err *err);
/* A list of decimals, or the word "all". */
#define FM_DECIMALS_MAX 1024
struct fm_decimals {
    bool all;
    int count;
    struct fm_decimal at[FM_DECIMALS_MAX];
};

/* Parse "0.2,0.4" or "all"; false for anything else, and for more than FM_DECIMALS_MAX. */
bool fm_decimals_parse(struct fm_decimals *list, const char *text);

static inline double fm_decimal_value(const struct fm_decimal *d)
{
    return (double)d->num / (double)d->den;
}

/* If text is a percentage from 2 to 100, "40" or "40%", the fraction that it means; else 0. */
double fm_decimal_percent(const char *text, size_t len);

/* Reduce to the smallest denominator. */
void fm_decimal_reduce(struct fm_decimal *d);

/* ceil(d * n), floor(d * n), for n < 2^34. */
uint64_t fm_decimal_ceil(const struct fm_decimal *d, uint64_t n);
uint64_t fm_decimal_floor(const struct fm_decimal *d, uint64_t n);

/* Budgets at multiples of a step: the number of targets up to `until` (the last is `until`
 * itself), and target i, counted from 1, as a number out of n: ceil(min(i step, until) n). */
uint64_t fm_decimal_targets(const struct fm_decimal *step, const struct fm_decimal *until);
uint64_t fm_decimal_target(const struct fm_decimal *step, const struct fm_decimal *until,
                           uint64_t i, uint64_t n);

/* Write the shortest text that reads back the same: "0.4", "1", "0". */
#define FM_DECIMAL_TEXT 16
void fm_decimal_print(char text[FM_DECIMAL_TEXT], const struct fm_decimal *d);

#endif
