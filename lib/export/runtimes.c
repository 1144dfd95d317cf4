/*
 * What other programs make of an export: over how many devices servers split it, which card has
 * space for it, and whether llama.cpp computes the same function.  All follow from config.json and
 * the widths in the files; the programs' own rules are said in the header.
 */
#include "lib/export/runtimes.h"

#include <stdio.h>

#include "lib/block/deltanet.h"
#include "lib/block/gqa.h"
#include "lib/family/family.h"

/* ---- modelling files ---- */

bool fm_runtimes_modeling(const struct fm_config *c)
{
    return c->attention != &fm_deltanet;
}

bool fm_runtimes_sinks(const struct fm_config *c)
{
    return c->attention == &fm_gqa && c->gqa->sinks;
}

/* ---- tensor parallelism ---- */

/* Every width is a multiple. */
static bool splits_experts(const struct fm_config *c, const uint32_t *stored, int d)
{
    for (size_t i = 0; i < (size_t)c->M * (size_t)c->E; i++)
        if (stored[i] % (uint32_t)d != 0)
            return false;
    return true;
}

uint64_t fm_runtimes_tp_degrees(const struct fm_config *c, const struct fm_layout *layout,
                                const uint32_t *stored)
{
    bool stock = !layout->code;
    int shared = fm_layouts_shared(layout, c, stored[0]);
    int most = stock || (fm_runtimes_modeling(c) && !fm_runtimes_sinks(c)) ? FM_TP_DEGREES_MAX : 1;
    uint64_t tp_degrees = 0;
    if (layout->split == FM_SPLIT_NONE)
        return 0;
    for (int d = 1; d <= most; d++)
        if (c->attention->divides(c, d, stock) && c->dense % d == 0 && shared % d == 0 &&
            (layout->split == FM_SPLIT_HEADS || splits_experts(c, stored, d)))
            tp_degrees |= (uint64_t)1 << (d - 1);
    return tp_degrees;
}

void fm_runtimes_print(char text[FM_TP_DEGREES_TEXT], uint64_t tp_degrees, const char *separator)
{
    size_t at = 0;
    snprintf(text, FM_TP_DEGREES_TEXT, "none");
    for (int d = 1; d <= FM_TP_DEGREES_MAX; d++)
        if (tp_degrees >> (d - 1) & 1)
            at += (size_t)snprintf(text + at, FM_TP_DEGREES_TEXT - at, "%s%d", at ? separator : "",
                                   d);
}

/* ---- cards ---- */

const uint64_t fm_runtimes_cards[FM_CARDS] = {24000000000, 48000000000, 80000000000};

uint64_t fm_runtimes_card_space(uint64_t card)
{
    return card / 10 * 9;
}

int fm_runtimes_card(uint64_t weights, const struct fm_cost_cache *cache, uint64_t tokens)
{
    uint64_t need = weights + fm_cost_cache_bytes(cache, tokens);
    for (int i = 0; i < FM_CARDS; i++)
        if (need <= fm_runtimes_card_space(fm_runtimes_cards[i]))
            return i;
    return -1;
}

/* ---- llama.cpp ---- */

bool fm_runtimes_llama(const struct fm_config *c)
{
    const struct fm_gqa *g = c->gqa;
    if (c->attention != &fm_gqa || c->family->gguf_router != c->router || c->M < c->L ||
        g->clip > 0 || g->window > 0)
        return false;
    return g->qk_norm != FM_QK_NORM_FULL || (c->G == c->Q && c->eps == 1e-5F);
}
