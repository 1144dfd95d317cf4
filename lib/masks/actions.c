/*
 * Widths decide which bytes are exported, so no floating point comes near them: a ratio is the
 * fraction that its decimal says, and products are at most 2^64.  Rounding up to a multiple,
 * merging of equal widths and budget targets are here for the same reason, in one place.
 */
#include "lib/masks/actions.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define DECIMALS_MAX 9
#define CHANNELS_MAX ((uint64_t)1 << 34)

static void reduce(struct fm_decimal *d)
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
        /* Over one already: more digits could only overflow. */
        if (d->num > d->den)
            return false;
    }
    return digit;
}

static int parse_span(struct fm_decimal *d, const char *text, size_t len, const char *what,
                      struct fm_err *err)
{
    if (!read_digits(d, text, len))
        return fm_fail(err, FM_EUSAGE,
                       "%s: '%.*s' is not a decimal from 0 to 1 with at most %d places; write 0.40",
                       what, (int)(len > 40 ? 40 : len), text, DECIMALS_MAX);
    reduce(d);
    return FM_OK;
}

int fm_decimal_parse(struct fm_decimal *d, const char *text, const char *what, struct fm_err *err)
{
    return parse_span(d, text, strlen(text), what, err);
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
    if (i >= fm_decimal_targets(step, until))
        return fm_decimal_ceil(until, n);
    /* i step < until <= 1, so the numerator stays under 10^9. */
    struct fm_decimal d = {i * step->num, step->den};
    return fm_decimal_ceil(&d, n);
}

void fm_decimal_print(char text[FM_DECIMAL_TEXT], const struct fm_decimal *d)
{
    struct fm_decimal r = *d;
    reduce(&r);
    int places = 0;
    for (uint64_t den = r.den; den > 1; den /= 10)
        places++;
    unsigned whole = (unsigned)(r.num / r.den), rest = (unsigned)(r.num % r.den);
    if (places)
        snprintf(text, FM_DECIMAL_TEXT, "%u.%0*u", whole, places, rest);
    else
        snprintf(text, FM_DECIMAL_TEXT, "%u", whole);
}

uint32_t fm_actions_round(uint64_t width, uint32_t multiple, int I)
{
    uint64_t up = (width + multiple - 1) / multiple * multiple;
    return (uint32_t)(up > (uint64_t)I ? (uint64_t)I : up);
}

uint32_t fm_actions_both(uint32_t a, uint32_t b)
{
    uint32_t x = a, y = b;
    while (y) {
        uint32_t rest = x % y;
        x = y;
        y = rest;
    }
    uint64_t both = (uint64_t)a / x * b;
    return both > UINT32_MAX ? UINT32_MAX : (uint32_t)both;
}

static int check_multiple(uint32_t multiple, int I, struct fm_err *err)
{
    if (multiple == 0 || multiple > (uint32_t)I)
        return fm_fail(err, FM_EUSAGE,
                       "--width-multiple %u: experts here have %d channels; "
                       "use 1 to %d",
                       multiple, I, I);
    return FM_OK;
}

/* a < b? */
static bool is_less(const struct fm_decimal *a, const struct fm_decimal *b)
{
    return a->num * b->den < b->num * a->den;
}

/* The next larger ratio; one whose width is there already is merged into that. */
static int add_ratio(struct fm_actions *actions, const struct fm_decimal *ratio, int I,
                     struct fm_err *err)
{
    uint32_t width = fm_actions_round(fm_decimal_ceil(ratio, (uint64_t)I), actions->multiple, I);
    if (actions->count && actions->width[actions->count - 1] == width) {
        actions->merged++;
        return FM_OK;
    }
    if (actions->count == FM_ACTIONS_MAX)
        return fm_fail(err, FM_EUSAGE, "more than %d actions; use fewer, or a larger --budget-step",
                       FM_ACTIONS_MAX);
    actions->ratio[actions->count] = *ratio;
    actions->width[actions->count++] = width;
    return FM_OK;
}

int fm_actions_parse(struct fm_actions *actions, const char *text, int I, uint32_t multiple,
                     struct fm_err *err)
{
    *actions = (struct fm_actions){.multiple = multiple};
    int rc = check_multiple(multiple, I, err);
    struct fm_decimal last = {0, 1};
    for (const char *at = text; rc == FM_OK && *(at += strspn(at, ", "));) {
        size_t len = strcspn(at, ", ");
        struct fm_decimal ratio;
        rc = parse_span(&ratio, at, len, "--actions", err);
        if (rc == FM_OK && !is_less(&last, &ratio))
            rc =
                fm_fail(err, FM_EUSAGE, "--actions '%s': ratios must increase and be over 0", text);
        if (rc == FM_OK)
            rc = add_ratio(actions, &ratio, I, err);
        last = ratio;
        at += len;
    }
    if (rc == FM_OK && last.num != last.den)
        rc = fm_fail(err, FM_EUSAGE, "--actions '%s': the last ratio must be 1, the full model",
                     text);
    return rc;
}

int fm_actions_steps(struct fm_actions *actions, const struct fm_decimal *step,
                     const struct fm_decimal *until, int I, uint32_t multiple, struct fm_err *err)
{
    *actions = (struct fm_actions){.multiple = multiple};
    int rc = check_multiple(multiple, I, err);
    uint64_t steps = until->num * step->den / (step->num * until->den);
    for (uint64_t i = steps + 1; rc == FM_OK && i-- > 0;) {
        struct fm_decimal ratio = {step->den - i * step->num, step->den};
        /* A width of 0 is not allowed. */
        if (ratio.num == 0)
            continue;
        reduce(&ratio);
        rc = add_ratio(actions, &ratio, I, err);
    }
    return rc;
}

uint32_t fm_actions_uniform(uint64_t removed, int M, int E, int I, uint32_t multiple)
{
    uint64_t each = removed / ((uint64_t)M * (uint64_t)E);
    assert(each <= (uint64_t)I);
    return fm_actions_round((uint64_t)I - each, multiple, I);
}

uint32_t fm_actions_uniform_export(uint64_t removed, int M, int E, int I, uint32_t multiple)
{
    return fm_actions_round(fm_actions_uniform(removed, M, E, I, multiple),
                            fm_actions_both(multiple, FM_UNIFORM_MULTIPLE), I);
}

int fm_actions_find(const struct fm_actions *actions, uint32_t width)
{
    for (int a = 0; a < actions->count; a++) {
        if (actions->width[a] == width)
            return a;
    }
    return -1;
}
