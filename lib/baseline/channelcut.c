/* One sort of the channels that are compared, and a count of those that stay. */
#include "lib/baseline/channelcut.h"

#include <stdlib.h>

#include "lib/base/mem.h"

struct channel {
    double score;
    uint64_t at; /* place among all */
};

static int compare(const void *a, const void *b)
{
    const struct channel *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* The best `kept` of `count` channels from `first` on, counted for their experts. */
static void keep_best(uint32_t *widths, const struct fm_ranking *r, struct channel *channel,
                      uint64_t first, uint64_t count, uint64_t kept)
{
    for (uint64_t i = 0; i < count; i++)
        channel[i] = (struct channel){r->scores[first + i], first + i};
    qsort(channel, count, sizeof *channel, compare);
    for (uint64_t i = 0; i < kept; i++)
        widths[channel[i].at / (uint64_t)r->I]++;
}

int fm_channelcut_widths(uint32_t *widths, const struct fm_ranking *r, enum fm_channelcut scope,
                         uint64_t count, struct fm_err *err)
{
    uint64_t X = (uint64_t)r->M * (uint64_t)r->E, layer = (uint64_t)r->E * (uint64_t)r->I;
    uint64_t together = scope == FM_CUT_GLOBAL ? layer * (uint64_t)r->M : layer;
    for (uint64_t x = 0; x < X; x++)
        widths[x] = scope == FM_CUT_EXPERT ? (uint32_t)((layer - count) / (uint64_t)r->E) : 0;
    if (scope == FM_CUT_EXPERT)
        return FM_OK;
    struct channel *channel = fm_alloc(together, sizeof *channel, "channels to compare", err);
    if (!channel)
        return FM_ENOMEM;
    for (uint64_t at = 0; at < layer * (uint64_t)r->M; at += together)
        keep_best(widths, r, channel, at, together, together / layer * (layer - count));
    free(channel);
    return FM_OK;
}
