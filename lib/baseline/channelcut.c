/* Sorts the channels that are compared with each other, and counts how many of each expert are
 * kept. */
#include "lib/baseline/channelcut.h"

#include <stdlib.h>

#include "lib/base/mem.h"

struct channel {
    double score;
    uint64_t at; /* index among all channels */
};

static int compare(const void *a, const void *b)
{
    const struct channel *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Of the `count` channels from `first` on, add the best `kept` to the widths of their experts. */
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

/* The expert that gets the next multiple: the one with the largest remainder, among kept experts
 * that have room. */
static int next_due(const uint32_t *width, const int64_t *due, const bool *stays, int E, uint32_t I,
                    uint32_t multiple)
{
    int best = -1;
    for (int e = 0; e < E; e++)
        if (stays[e] && width[e] + multiple <= I && (best < 0 || due[e] > due[best]))
            best = e;
    return best;
}

/* Round the widths (E) of one layer, which are the shares of its experts. */
static void round_layer(uint32_t *width, int64_t *due, bool *stays, int E, uint32_t I,
                        uint32_t multiple, int least)
{
    uint64_t units = 0;
    int alive = 0;
    for (int e = 0; e < E; e++) {
        units += width[e];
        due[e] = width[e];
        stays[e] = width[e] >= multiple;
        alive += stays[e];
        width[e] = 0;
    }
    for (; alive < least; alive++) {
        int best = -1;
        for (int e = 0; e < E; e++)
            if (!stays[e] && (best < 0 || due[e] > due[best]))
                best = e;
        stays[best] = true;
    }
    units /= multiple;
    for (int e = 0; e < E; e++) { /* whole multiples of each share, at least one */
        uint32_t whole = stays[e] ? (uint32_t)due[e] / multiple : 0;
        width[e] = multiple * (stays[e] && whole == 0 ? 1 : whole);
        due[e] -= (int64_t)width[e];
        units -= width[e] / multiple < units ? width[e] / multiple : units;
    }
    for (int e; units > 0 && (e = next_due(width, due, stays, E, I, multiple)) >= 0; units--) {
        width[e] += multiple;
        due[e] -= (int64_t)multiple;
    }
}

int fm_channelcut_multiple(uint32_t *widths, const struct fm_ranking *r, uint64_t count,
                           uint32_t multiple, int least, struct fm_err *err)
{
    int64_t *due = fm_alloc((size_t)r->E, sizeof *due, "shares of experts", err);
    bool *stays = fm_alloc((size_t)r->E, sizeof *stays, "shares of experts", err);
    int rc = due && stays ? fm_channelcut_widths(widths, r, FM_CUT_LAYER, count, err) : FM_ENOMEM;
    for (int m = 0; !rc && m < r->M; m++)
        round_layer(widths + (size_t)m * (size_t)r->E, due, stays, r->E, (uint32_t)r->I, multiple,
                    least);
    free(due);
    free(stays);
    return rc;
}
