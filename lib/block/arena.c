/*
 * Memory for inner values.  Each block lists its inner values once, as allocations from an arena;
 * the same list serves to count them, to keep them and to compute them again.
 */
#include "lib/base/mem.h"
#include "lib/block/pass.h"

void *fm_arena_alloc(struct fm_arena *r, size_t n)
{
    size_t bytes = (n * sizeof(float) + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
    char *p = r->counting ? NULL : r->at ? r->at + r->bytes : fm_scratch(bytes);
    r->bytes += bytes;
    return p;
}

void *fm_arena_alloc_if(bool wanted, struct fm_arena *r, size_t n)
{
    return wanted ? fm_arena_alloc(r, n) : NULL;
}

const struct fm_attention *fm_attention_of(const struct fm_config *c, int l)
{
    const struct fm_attention *a = c->attention;
    return a->full && !a->is_own(c, l) ? a->full : a;
}

size_t fm_attention_floats(const struct fm_config *c, int l, int N)
{
    struct fm_arena count = {.counting = true};
    fm_attention_of(c, l)->inner(c, l, N, &count);
    return count.bytes / sizeof(float);
}
