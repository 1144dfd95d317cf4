#include "lib/export/runtimes.h"

#include <stdio.h>

#include "lib/model/family.h"

static bool splits_heads(const struct fm_config *c, int d, bool stock)
{
    bool whole = c->family->qk_norm == FM_QK_NORM_FULL;
    bool repeats = stock && !whole && d > c->G && d % c->G == 0;
    return c->Q % d == 0 && (c->G % d == 0 || repeats);
}

/* Every width is a multiple; experts of a padded export are I wide. */
static bool splits_experts(const struct fm_config *c, enum fm_layout layout, const uint32_t *widths,
                           int d)
{
    if (layout == FM_LAYOUT_PADDED)
        return c->I % d == 0;
    for (size_t i = 0; i < (size_t)c->M * (size_t)c->E; i++)
        if (widths[i] % (uint32_t)d != 0)
            return false;
    return true;
}

uint64_t fm_degrees_of(const struct fm_config *c, enum fm_layout layout, bool vllm,
                       const uint32_t *widths)
{
    bool stock = layout == FM_LAYOUT_UNIFORM || layout == FM_LAYOUT_PADDED;
    uint64_t degrees = 0;
    if (layout == FM_LAYOUT_NATIVE)
        return 0;
    for (int d = 1; d <= FM_DEGREES_MAX; d++)
        if (splits_heads(c, d, stock) && c->dense % d == 0 && c->shared % d == 0 &&
            ((!stock && !vllm) || splits_experts(c, layout, widths, d)))
            degrees |= (uint64_t)1 << (d - 1);
    return degrees;
}

void fm_degrees_print(char text[FM_DEGREES_TEXT], uint64_t degrees, const char *separator)
{
    size_t at = 0;
    snprintf(text, FM_DEGREES_TEXT, "none");
    for (int d = 1; d <= FM_DEGREES_MAX; d++)
        if (degrees >> (d - 1) & 1)
            at += (size_t)snprintf(text + at, FM_DEGREES_TEXT - at, "%s%d", at ? separator : "", d);
}
