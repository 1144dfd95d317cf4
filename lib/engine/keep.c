#include "lib/engine/keep.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "lib/base/mem.h"
#include "lib/engine/layer.h"
#include "lib/engine/sweeping.h"

void fm_keep_release(struct fm_keep *keep)
{
    free(keep->block);
    *keep = (struct fm_keep){0};
}

bool fm_keep_gu(const struct fm_sweeping *r, int lane)
{
    return !r->lane[lane].widths || !r->visitor || !r->visitor->expert;
}

/* Bytes of one record, whichever lane it is for. */
static size_t record_bytes(const struct fm_sweeping *r)
{
    const struct fm_sweep *s = r->sweep;
    bool gu = false;
    for (int i = 0; i < r->backs; i++)
        gu = gu || fm_keep_gu(r, r->back[i]);
    size_t bytes = fm_layer_kept_bytes(s->config, s->together * s->rows, gu);
    return (bytes + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
}

/* Not touched before it is used; on large pages, because it is large and written once a run. */
static char *take_block(size_t bytes)
{
    const size_t page = (size_t)2 << 20;
    char *block = aligned_alloc(page, (bytes + page - 1) / page * page);
    if (block)
        madvise(block, bytes, MADV_HUGEPAGE);
    return block;
}

void fm_keep_prepare(struct fm_sweeping *r)
{
    struct fm_keep *k = &r->sweep->keep;
    const struct fm_store *store = &r->sweep->store;
    uint64_t memory = r->sweep->options.memory, taken = (uint64_t)store->record * store->count;
    /* With an adapter that memory has its merged copies, gradients and moments. */
    size_t want = r->sweep->merges > 0 ? 0 : (size_t)r->blocks * (size_t)r->backs;
    want *= (size_t)(r->sweep->config->L - r->lowest);
    size_t record = record_bytes(r);
    uint64_t fit = memory > taken ? (memory - taken) / record : 0;
    size_t count = fit < want ? (size_t)fit : want;
    if (k->record != record || k->held < count || k->held > fit) {
        fm_keep_release(k);
        *k = (struct fm_keep){.record = record};
        if (count > 0 && (k->block = take_block(count * record)) != NULL)
            k->held = count;
    }
    k->count = count < k->held ? count : k->held; /* no memory: computed again */
}

void *fm_keep_find(const struct fm_sweeping *r, int block, int lane)
{
    const struct fm_keep *k = &r->sweep->keep;
    if (r->nth[lane] < 0)
        return NULL;
    size_t above = (size_t)(r->sweep->config->L - 1 - r->l) * (size_t)r->blocks + (size_t)block;
    size_t i = above * (size_t)r->backs + (size_t)r->nth[lane];
    return i < k->count ? k->block + i * k->record : NULL;
}
