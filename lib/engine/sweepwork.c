/*
 * What all tasks of a sweep use: the first error, the records of boundaries, and progress.  Layers,
 * directions and the LM head take different times, so tasks are weighed by their floating-point
 * operations.  These are estimates: of an expert's width, the mean counts, whatever the routing.
 */
#include <assert.h>
#include <limits.h>

#include "lib/block/cost.h"
#include "lib/engine/sweeping.h"

void fm_sweeping_fail(struct fm_sweeping *r, int task, const struct fm_err *err)
{
    pthread_mutex_lock(&r->lock);
    if (task < r->failed) {
        r->failed = task;
        r->err = *err;
    }
    pthread_mutex_unlock(&r->lock);
}

int fm_sweeping_settle(const struct fm_sweeping *r, struct fm_err *err)
{
    if (r->failed == INT_MAX)
        return FM_OK;
    *err = r->err;
    return err->code;
}

/* The records that are used most often have the lowest numbers and stay in memory. */
size_t fm_sweeping_record(const struct fm_sweeping *r, int block, int lane, int l)
{
    int end = r->sweep->end, nth = r->nth[lane];
    if (nth < 0 || l == end)
        return (size_t)block * (size_t)r->lanes + (size_t)lane;
    assert(l < end && block < r->blocks); /* sweep.c, invariant 6 */
    size_t above = (size_t)(end - 1 - l) * (size_t)r->blocks + (size_t)block;
    return (size_t)r->blocks * (size_t)r->lanes + above * (size_t)r->backs + (size_t)nth;
}

/* With keep_last, as if it were the boundary below the first. */
size_t fm_sweeping_gradient(const struct fm_sweeping *r, int block, int lane)
{
    const struct fm_sweep *s = r->sweep;
    return fm_sweeping_record(r, block, lane, s->options.keep_last ? s->first - 1 : s->end);
}

/* Operations of a token in layer l of a lane. */
static double layer_work(const struct fm_sweeping *r, int l, int lane, bool backward)
{
    const struct fm_config *c = r->sweep->config;
    struct fm_flops f = fm_cost_layer(c, l, r->sweep->T);
    int m = fm_config_moe(c, l);
    double fixed = f.products + f.others, experts = m < 0 ? 0 : c->K * fm_cost_expert(c), kept = 0;
    const uint32_t *widths = r->lane[lane].widths;
    for (int e = 0; m >= 0 && widths && e < c->E; e++)
        kept += widths[(size_t)m * (size_t)c->E + (size_t)e];
    if (widths)
        experts *= kept / ((double)c->E * c->I);
    if (!backward)
        return fixed + experts;
    size_t record = (size_t)(r->sweep->end - 1 - l) * (size_t)r->blocks * (size_t)r->backs;
    bool cached = record < r->sweep->cache.count;
    bool scored = r->visitor && r->visitor->expert && !widths;
    double gate_up =
        experts * 2 / 3; /* computed again, like the fixed parts, unless it is cached */
    return fixed + experts + (scored ? experts : 0) + (cached ? 0 : fixed) +
           (cached && !widths ? 0 : gate_up);
}

/* Operations of a token in the LM head of all lanes. */
static double head_work(const struct fm_sweeping *r)
{
    return (r->lanes + r->backs) * fm_cost_lm_head(r->sweep->config);
}

static int block_tokens(const struct fm_sweeping *r, int block)
{
    const struct fm_block *k = &r->sweep->block[block];
    return k->count * r->batch[k->first].S * r->batch[k->first].T;
}

void fm_sweeping_plan(struct fm_sweeping *r)
{
    double token = head_work(r);
    for (int l = r->sweep->first; l < r->sweep->end; l++) {
        for (int lane = 0; lane < r->lanes; lane++)
            token += layer_work(r, l, lane, false);
        for (int i = 0; i < r->backs && l >= r->lowest; i++)
            token += layer_work(r, l, r->back[i], true);
    }
    r->work = r->worked = 0;
    for (int b = 0; b < r->blocks; b++)
        r->work += token * block_tokens(r, b);
}

static void count(struct fm_sweeping *r, double work)
{
    const struct fm_sweep_options *o = &r->sweep->options;
    pthread_mutex_lock(&r->watching);
    r->worked += work;
    o->progress(o->progress_self, r->worked < r->work ? r->worked / r->work : 1);
    pthread_mutex_unlock(&r->watching);
}

void fm_sweeping_did_layer(struct fm_sweeping *r, int block, int lane, bool backward)
{
    if (r->sweep->options.progress)
        count(r, layer_work(r, r->l, lane, backward) * block_tokens(r, block));
}

void fm_sweeping_did_head(struct fm_sweeping *r, int rows)
{
    if (r->sweep->options.progress)
        count(r, head_work(r) * rows);
}
