/*
 * An action set converts ratios to widths.  Each width is rounded up to a whole channel and then to
 * a multiple, and equal widths are merged, all in integers (lib/masks/decimal.h).  Training,
 * segment boundaries and exports must round widths in the same way, so only this file rounds.
 */
#include "lib/masks/actions.h"

#include <assert.h>
#include <string.h>

#include "lib/base/mem.h"

uint32_t fm_actions_round(uint64_t width, uint32_t multiple, int I)
{
    assert(multiple > 0);
    uint64_t up = (width + multiple - 1) / multiple * multiple;
    return (uint32_t)(up > (uint64_t)I ? (uint64_t)I : up);
}

uint32_t fm_actions_both(uint32_t a, uint32_t b)
{
    return (uint32_t)fm_lcm(a, b, UINT32_MAX);
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

/* True if a < b. */
static bool is_less(const struct fm_decimal *a, const struct fm_decimal *b)
{
    return a->num * b->den < b->num * a->den;
}

/* Add the next larger ratio, or merge it if its width is already in the set. */
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
    /* Ratios increase, and rounding keeps their order. */
    assert(!actions->count || width > actions->width[actions->count - 1]);
    actions->ratio[actions->count] = *ratio;
    actions->width[actions->count++] = width;
    return FM_OK;
}

int fm_actions_set(struct fm_actions *actions, const struct fm_decimals *ratios, int I,
                   uint32_t multiple, struct fm_err *err)
{
    const struct fm_decimal *ratio = ratios->at;
    int count = ratios->count, rc = check_multiple(multiple, I, err);
    *actions = (struct fm_actions){.multiple = multiple};
    for (int i = 0; !rc && i < count; i++)
        rc = i > 0 && !is_less(&ratio[i - 1], &ratio[i])
                 ? fm_fail(err, FM_EUSAGE, "--actions: ratios must increase")
                 : add_ratio(actions, &ratio[i], I, err);
    if (!rc && (count == 0 || ratio[count - 1].num != ratio[count - 1].den))
        rc = fm_fail(err, FM_EUSAGE, "--actions: the last ratio must be 1, the full model");
    return rc;
}

int fm_actions_parse(struct fm_actions *actions, const char *text, int I, uint32_t multiple,
                     struct fm_err *err)
{
    struct fm_decimals ratios;
    return fm_decimals_parse(&ratios, text)
               ? fm_actions_set(actions, &ratios, I, multiple, err)
               : fm_fail(err, FM_EUSAGE, "--actions '%.40s': not a list of decimals from 0 to 1",
                         text);
}

int fm_actions_steps(struct fm_actions *actions, const struct fm_decimal *step,
                     const struct fm_decimal *until, int I, uint32_t multiple, struct fm_err *err)
{
    assert(step->num > 0 && until->num <= until->den);
    *actions = (struct fm_actions){.multiple = multiple};
    int rc = check_multiple(multiple, I, err);
    uint64_t steps = until->num * step->den / (step->num * until->den);
    for (uint64_t i = steps + 1; !rc && i-- > 0;) {
        struct fm_decimal ratio = {step->den - i * step->num, step->den};
        /* Uniform pruning leaves channels in every expert. */
        if (ratio.num == 0)
            continue;
        fm_decimal_reduce(&ratio);
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
