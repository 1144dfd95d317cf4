/*
 * Widths decide which bytes are exported, so they are computed without floating point: a ratio or
 * budget is exactly the fraction that its decimal digits denote.  Denominators are powers of ten up
 * to 10^9 and counts are below 2^34, so every product here fits in 64 bits.
 */
#include "lib/masks/decimal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECIMALS_MAX 9
#define CHANNELS_MAX ((uint64_t)1 << 34)

void fm_decimal_reduce(struct fm_decimal *d)
{
    while (d->den > 1 && d->num % 10 == 0) {
        d->num /= 10;
        d->den /= 10;
    }
}

static bool read_digits(struct fm_decimal *d, const char *text, size_t len)
{
    bool point = false, digit = false;
    int decimals = 0;
    *d = (struct fm_decimal){0, 1};
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '.' && !point) {
            point = true;
            continue;
        }
        if (c < '0' || c > '9' || (point && ++decimals > DECIMALS_MAX))
            return false;
        digit = true;
        d->num = d->num * 10 + (uint64_t)(c - '0');
        if (point)
            d->den *= 10;
        /* The value exceeds 1, and more digits could overflow. */
        if (d->num > d->den)
            return false;
    }
    return digit;
}

double fm_decimal_percent(const char *text, size_t len)
{
    char copy[16] = "", *end;
    if (len == 0 || len >= sizeof copy || text[0] < '0' || text[0] > '9')
        return 0;
    memcpy(copy, text, len);
    double percent = strtod(copy, &end);
    bool whole = *end == '\0' || strcmp(end, "%") == 0;
    return whole && percent >= 2 && percent <= 100 ? percent / 100 : 0;
}

int fm_decimal_parse(struct fm_decimal *d, const char *text, const char *what, struct fm_err *err)
{
    if (!read_digits(d, text, strlen(text)))
        return fm_fail(err, FM_EUSAGE,
                       "%s: '%.40s' is not a decimal from 0 to 1 with at most %d places", what,
                       text, DECIMALS_MAX);
    fm_decimal_reduce(d);
    return FM_OK;
}

bool fm_decimals_parse(struct fm_decimals *list, const char *text)
{
    *list = (struct fm_decimals){.all = strcmp(text, "all") == 0};
    for (const char *at = text; !list->all; at++) {
        size_t len = strcspn(at, ",");
        if (list->count == FM_DECIMALS_MAX || !read_digits(&list->at[list->count], at, len))
            return false;
        fm_decimal_reduce(&list->at[list->count++]);
        at += len;
        if (!*at)
            break;
    }
    return true;
}

uint64_t fm_decimal_floor(const struct fm_decimal *d, uint64_t n)
{
    assert(n < CHANNELS_MAX);
    return d->num * n / d->den;
}

uint64_t fm_decimal_ceil(const struct fm_decimal *d, uint64_t n)
{
    assert(n < CHANNELS_MAX);
    return (d->num * n + d->den - 1) / d->den;
}

uint64_t fm_decimal_targets(const struct fm_decimal *step, const struct fm_decimal *until)
{
    assert(step->num > 0);
    uint64_t a = until->num * step->den, b = step->num * until->den;
    return a / b + (a % b != 0);
}

uint64_t fm_decimal_target(const struct fm_decimal *step, const struct fm_decimal *until,
                           uint64_t i, uint64_t n)
{
    assert(i >= 1);
    if (i >= fm_decimal_targets(step, until))
        return fm_decimal_ceil(until, n);
    /* i step < until <= 1, so the numerator stays under 10^9. */
    struct fm_decimal d = {i * step->num, step->den};
    return fm_decimal_ceil(&d, n);
}

void fm_decimal_print(char text[FM_DECIMAL_TEXT], const struct fm_decimal *d)
{
    assert(d->num <= d->den); /* FM_DECIMAL_TEXT has room for no other */
    struct fm_decimal r = *d;
    fm_decimal_reduce(&r);
    int places = 0;
    for (uint64_t den = r.den; den > 1; den /= 10)
        places++;
    unsigned whole = (unsigned)(r.num / r.den), rest = (unsigned)(r.num % r.den);
    if (places)
        snprintf(text, FM_DECIMAL_TEXT, "%u.%0*u", whole, places, rest);
    else
        snprintf(text, FM_DECIMAL_TEXT, "%u", whole);
}
