/*
 * Memory for inner values of a layer (struct fm_actcache).  It is what the boundaries do not use,
 * divided into records.  Without a record the backward computes the values again and gets the same
 * bytes.
 */
#include "lib/engine/sweeping.h"

#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/engine/layer.h"

void fm_actcache_release(struct fm_actcache *cache)
{
    free(cache->block);
    free(cache->first);
    *cache = (struct fm_actcache){0};
}

/* Whether gate and up of this lane's experts are kept: only if the backward reads no channels that
 * the forward did not compute.  In bfloat16 the backward computes them again in spans of fewer rows
 * than the forward, and at a width below full the last bits of such products can depend on the
 * number of rows; so they are not kept, however much memory there is. */
static bool keeps_gu(const struct fm_sweeping *r, int lane)
{
    bool narrow = r->visitor && r->visitor->narrow && r->sweep->ops->operand == FM_F32;
    return !r->lane[lane].widths || !r->visitor || !r->visitor->expert || narrow;
}

/* Bytes of one record, for any lane. */
static size_t record_bytes(const struct fm_sweeping *r)
{
    const struct fm_sweep *s = r->sweep;
    bool gu = false;
    for (int i = 0; i < r->backs; i++)
        gu = gu || keeps_gu(r, r->back[i]);
    size_t bytes = fm_layer_cache_bytes(s->config, s->together * s->rows, gu);
    return (bytes + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
}

/* Allocate `count` records; if this fails, inner values are computed again. */
static void take_block(struct fm_actcache *k, size_t count)
{
    struct fm_err unused = {0};
    k->block = fm_alloc_large(count * k->record, "inner values", &unused);
    k->first = fm_alloc(count * k->firsts, sizeof *k->first, "inner values", &unused);
    if (k->block && k->first)
        k->held = count;
}

void fm_actcache_prepare(struct fm_sweeping *r)
{
    struct fm_actcache *k = &r->sweep->cache;
    const struct fm_store *store = &r->sweep->store;
    uint64_t memory = r->sweep->options.memory, taken = (uint64_t)store->record * store->count;
    size_t want = (size_t)r->blocks * (size_t)r->backs;
    want *= (size_t)(r->sweep->end - r->lowest);
    size_t record = record_bytes(r);
    uint64_t fit = memory > taken ? (memory - taken) / record : 0;
    size_t count = fit < want ? (size_t)fit : want;
    if (k->record != record || k->held < count || k->held > fit) {
        fm_actcache_release(k);
        const struct fm_sweep *s = r->sweep;
        *k = (struct fm_actcache){.record = record,
                                  .firsts = (size_t)s->config->E * (size_t)s->together + 1};
        if (count > 0)
            take_block(k, count);
    }
    k->count = count < k->held ? count : k->held;
}

void fm_actcache_find(const struct fm_sweeping *r, int block, int lane, struct fm_pass *pass)
{
    const struct fm_actcache *k = &r->sweep->cache;
    if (r->nth[lane] < 0)
        return;
    size_t above = (size_t)(r->sweep->end - 1 - r->l) * (size_t)r->blocks + (size_t)block;
    size_t i = above * (size_t)r->backs + (size_t)r->nth[lane];
    if (i >= k->count)
        return;
    pass->cached = k->block + i * k->record;
    pass->cached_first = k->first + i * k->firsts;
    pass->cached_gu = keeps_gu(r, lane);
}
