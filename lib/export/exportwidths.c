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
    uint32_t pad = x->options->pad_multiple;
    uint32_t needed = fm_actions_both(x->budgets.actions.multiple, x->options->layout->multiple);
    return pad <= 1 ? width : fm_actions_round(width, fm_actions_both(pad, needed), x->config.I);
}

static uint64_t sum_of(const uint32_t *widths, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += widths[i];
    return sum;
}

uint64_t fm_exporter_channels(const struct fm_exporter *x, int l)
{
    size_t E = (size_t)x->config.E;
    return sum_of(x->stored + (size_t)l * E, E);
}

uint64_t fm_exporter_channels_all(const struct fm_exporter *x)
{
    return sum_of(x->stored, experts_of(x));
}

uint64_t fm_exporter_channel_bytes(const struct fm_exporter *x)
{
    return fm_volumes_channel_bytes(&x->volumes, FM_PART_GATE_UP) +
           fm_volumes_channel_bytes(&x->volumes, FM_PART_DOWN_T);
}

uint64_t fm_exporter_freed(const struct fm_exporter *x)
{
    return fm_family_channels(&x->budgets.family) - sum_of(x->widths, experts_of(x));
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

/* The full model is a member of every family. */
static bool holds_full_model(const struct fm_exporter *x)
{
    return x->options->layout->family && !x->options->load_cap;
}

bool fm_exporter_full(const struct fm_exporter *x)
{
    return x->options->layout->full || holds_full_model(x);
}

void fm_exporter_widths(struct fm_exporter *x)
{
    size_t n = experts_of(x);
    uint32_t I = (uint32_t)x->config.I;
    if (x->options->load_cap)
        cover_budgets(x);
    else
        memcpy(x->widths, fm_family_widths(&x->budgets.family, x->index), n * sizeof *x->widths);
    uint64_t before = sum_of(x->widths, n);
    if (x->options->layout->level)
        x->options->layout->level(x);
    x->channels_layout = sum_of(x->widths, n) - before;
    before = sum_of(x->widths, n);
    for (size_t i = 0; i < n; i++)
        x->widths[i] = fm_exporter_round(x, x->widths[i]);
    x->channels_pad = sum_of(x->widths, n) - before;
    for (size_t i = 0; i < n; i++) {
        x->widths[i] = holds_full_model(x) ? I : x->widths[i];
        x->stored[i] = fm_exporter_full(x) ? I : x->widths[i];
    }
}
