/*
 * Which micro-batches go through a layer together, and on which rank.  Products of different shapes
 * differ in their last bits, so micro-batches that one process computes together stay together on a
 * rank.  Ranks get whole, consecutive blocks, so the order of ranks is the order of micro-batches.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/engine/sweeping.h"

int fm_sweep_together(int batches, int rows, int cut)
{
    int fit = rows < FM_SWEEP_BLOCK_TOKENS ? FM_SWEEP_BLOCK_TOKENS / rows : 1;
    int most = cut > 0 && cut < batches ? cut : batches;
    return fit < most ? fit : most;
}

int fm_sweep_leaves(int batches, int rows, int cut)
{
    int together = fm_sweep_together(batches, rows, cut);
    int part = cut > 0 && cut < batches ? cut : batches, rest = batches % part;
    return batches / part * ((part + together - 1) / together) + (rest + together - 1) / together;
}

/* Cut all micro-batches into blocks: at most `together`, of one shape, not across a cut. */
static void cut_blocks(struct fm_sweeping *r)
{
    struct fm_sweep *s = r->sweep;
    int cut = s->options.cut;
    for (int b = 0; b < r->batches; b++) {
        const struct fm_batch *batch = &r->batch[b];
        int rows = batch->S * batch->T, chunks = (rows + FM_HEAD_ROWS - 1) / FM_HEAD_ROWS;
        assert(batch->S > 0 && batch->T > 1 && batch->T <= s->T && rows <= s->rows);
        r->chunks = chunks > r->chunks ? chunks : r->chunks;
        const struct fm_block *last = r->blocks > 0 ? &s->block[r->blocks - 1] : NULL;
        if (r->blocks == 0 || last->count == s->together || (cut > 0 && b % cut == 0) ||
            r->batch[last->first].S != batch->S || r->batch[last->first].T != batch->T)
            s->block[r->blocks++] = (struct fm_block){b, 0};
        s->block[r->blocks - 1].count++;
    }
}

void fm_sweeping_share(struct fm_sweeping *r)
{
    struct fm_sweep *s = r->sweep;
    const struct fm_comm *comm = s->options.comm;
    int first, count, ranks = fm_comm_size(comm), rank = fm_comm_rank(comm);
    cut_blocks(r);
    for (int k = 0; k < ranks; k++) {
        fm_comm_share(comm, k, r->blocks, &first, &count);
        s->share[k] = first < r->blocks ? s->block[first].first : r->batches;
    }
    s->share[ranks] = r->batches;
    fm_comm_share(comm, rank, r->blocks, &first, &count);
    memmove(s->block, s->block + first, (size_t)count * sizeof *s->block);
    r->base = s->share[rank];
    r->batch += r->base;
    r->batches = s->share[rank + 1] - r->base;
    r->blocks = count;
    for (int k = 0; k < count; k++) {
        s->block[k].first -= r->base;
        for (int i = 0; i < s->block[k].count; i++)
            s->block_of[s->block[k].first + i] = k;
    }
}

struct fm_comm *fm_sweep_comm(const struct fm_sweep *s)
{
    return s->options.comm;
}

int fm_sweep_own(const struct fm_sweep *s, int rank)
{
    return s->share[rank + 1] - s->share[rank];
}

int fm_sweep_own_most(const struct fm_sweep *s)
{
    int leaves = fm_sweep_leaves(s->batches, s->rows, s->options.cut);
    int first, most;
    fm_comm_share(s->options.comm, 0, leaves, &first, &most); /* no rank has more than rank 0 */
    return most * s->together < s->batches ? most * s->together : s->batches;
}

static int collect_measures(const struct fm_sweeping *r, struct fm_measure *measure,
                            struct fm_err *err)
{
    const struct fm_sweep *s = r->sweep;
    struct fm_comm *comm = s->options.comm;
    size_t ranks = (size_t)fm_comm_size(comm), lanes = (size_t)r->lanes;
    struct fm_wire_part *part = fm_alloc(2 * ranks, sizeof *part, "messages", err);
    if (!part)
        return FM_ENOMEM;
    for (size_t k = 0; k < ranks; k++) {
        bool self = (int)k == fm_comm_rank(comm);
        size_t own = (size_t)r->batches * lanes, from = (size_t)s->share[k] * lanes;
        size_t other = (size_t)fm_sweep_own(s, (int)k) * lanes;
        part[k] = (struct fm_wire_part){measure + (size_t)r->base * lanes,
                                        self ? 0 : own * sizeof *measure};
        part[ranks + k] = (struct fm_wire_part){measure + from, self ? 0 : other * sizeof *measure};
    }
    int rc = fm_comm_exchange(comm, part, part + ranks, err);
    free(part);
    return rc;
}

/* Counts are integers: their sum does not depend on the order. */
static int add_counts(const struct fm_sweeping *r, int64_t *counts, struct fm_err *err)
{
    struct fm_comm *comm = r->sweep->options.comm;
    const struct fm_config *c = r->sweep->config;
    size_t n = (size_t)r->lanes * (size_t)c->M * (size_t)c->E, ranks = (size_t)fm_comm_size(comm);
    int64_t *all = fm_alloc(ranks * n, sizeof *all, "token counts of ranks", err);
    if (!all)
        return FM_ENOMEM;
    int rc = fm_comm_collect(comm, all, counts, n * sizeof *counts, err);
    memset(counts, 0, n * sizeof *counts);
    for (size_t i = 0; !rc && i < ranks * n; i++)
        counts[i % n] += all[i];
    free(all);
    return rc;
}

int fm_sweeping_collect(struct fm_sweeping *r, struct fm_measure *measure, int64_t *counts,
                        struct fm_err *err)
{
    if (!r->sweep->options.comm)
        return FM_OK;
    int rc = collect_measures(r, measure, err);
    return rc || !counts ? rc : add_counts(r, counts, err);
}
