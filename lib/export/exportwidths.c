/* How many channels each expert has in the files of an export. */
#include "lib/export/exporter.h"

#include <string.h>

static size_t experts_of(const struct fm_exporter *x)
{
    return (size_t)x->config.M * (size_t)x->config.E;
}

int fm_exporter_check_pad(const struct fm_exporter *x, struct fm_err *err)
{
    uint32_t pad = x->options->pad_multiple;
    if (pad > (uint32_t)x->config.I)
        return fm_fail(err, FM_EUSAGE,
                       "--pad-multiple %u: experts here have %d channels; use 1 to %d", pad,
                       x->config.I, x->config.I);
    return FM_OK;
}

uint32_t fm_exporter_round(const struct fm_exporter *x, uint32_t width)
{
    if (x->options->pad_multiple <= 1)
        return width;
    return fm_actions_round(
        width, fm_actions_both(x->options->pad_multiple, x->budgets.actions.multiple), x->config.I);
}

uint64_t fm_exporter_channels(const struct fm_exporter *x, int l)
{
    uint64_t sum = 0;
    for (int e = 0; e < x->config.E; e++)
        sum += x->widths[(size_t)l * (size_t)x->config.E + (size_t)e];
    return sum;
}

uint64_t fm_exporter_channel_bytes(const struct fm_exporter *x)
{
    return fm_volumes_channel_bytes(&x->volumes, FM_PART_GATE_UP) +
           fm_volumes_channel_bytes(&x->volumes, FM_PART_DOWN_T);
}

static uint64_t sum_of(const struct fm_exporter *x)
{
    uint64_t sum = 0;
    for (int l = 0; l < x->config.M; l++)
        sum += fm_exporter_channels(x, l);
    return sum;
}

/* What the grouped products of stock runtimes need, beside the training's. */
static uint32_t stock_multiple(const struct fm_exporter *x)
{
    return fm_actions_both(x->budgets.actions.multiple, FM_UNIFORM_MULTIPLE);
}

/* Every expert of a layer as wide as the widest; for fused kernels, a multiple of what they need.
 */
static void level_layers(struct fm_exporter *x)
{
    for (int l = 0; l < x->config.M; l++) {
        uint32_t *k = x->widths + (size_t)l * (size_t)x->config.E, most = 0;
        for (int e = 0; e < x->config.E; e++)
            most = k[e] > most ? k[e] : most;
        if (x->options->vllm)
            most = fm_actions_round(most, stock_multiple(x), x->config.I);
        for (int e = 0; e < x->config.E; e++)
            k[e] = most;
    }
}

static void level_model(struct fm_exporter *x)
{
    const struct fm_config *c = &x->config;
    uint32_t k = fm_actions_uniform_export(x->budgets.family.mask[x->index].removed, c->M, c->E,
                                           c->I, x->budgets.actions.multiple);
    for (size_t i = 0; i < experts_of(x); i++)
        x->widths[i] = k;
}

/* A width for stock kernels keeps being a multiple of what they need. */
static uint32_t round_one(const struct fm_exporter *x, uint32_t width)
{
    uint32_t pad = x->options->pad_multiple;
    if ((x->options->layout != FM_LAYOUT_UNIFORM && !x->options->vllm) || pad <= 1)
        return fm_exporter_round(x, width);
    return fm_actions_round(width, fm_actions_both(pad, stock_multiple(x)), x->config.I);
}

uint64_t fm_exporter_freed(const struct fm_exporter *x)
{
    return fm_family_channels(&x->budgets.family) - sum_of(x);
}

/* Every expert as wide as in the widest of the budgets that are kept. */
static void cover_budgets(struct fm_exporter *x)
{
    size_t n = experts_of(x);
    memset(x->widths, 0, n * sizeof *x->widths);
    for (int b = x->first; b <= x->last; b++) {
        const uint32_t *mask = fm_family_widths(&x->budgets.family, b);
        for (size_t i = 0; i < n; i++)
            x->widths[i] = mask[i] > x->widths[i] ? mask[i] : x->widths[i];
    }
}

void fm_exporter_widths(struct fm_exporter *x)
{
    const uint32_t *mask = fm_family_widths(&x->budgets.family, x->index);
    enum fm_layout layout = x->options->layout;
    uint64_t before = 0;
    if (x->options->load_cap)
        cover_budgets(x);
    else
        memcpy(x->widths, mask, experts_of(x) * sizeof *mask);
    before = sum_of(x);
    if (layout == FM_LAYOUT_LAYER)
        level_layers(x);
    if (layout == FM_LAYOUT_UNIFORM)
        level_model(x);
    x->channels_layout = sum_of(x) - before;
    before = sum_of(x);
    for (size_t i = 0; i < experts_of(x); i++)
        x->widths[i] = round_one(x, x->widths[i]);
    x->channels_pad = sum_of(x) - before;
    x->rows = layout == FM_LAYOUT_UNIFORM ? (int)x->widths[0] : x->config.I;
    if (layout != FM_LAYOUT_ELASTIC || x->options->load_cap)
        return;
    /* The full model is a member of every family. */
    for (size_t i = 0; i < experts_of(x); i++)
        x->widths[i] = (uint32_t)x->config.I;
}
