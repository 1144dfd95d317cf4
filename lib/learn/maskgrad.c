#include "lib/learn/maskgrad.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"

int fm_maskgrad_init(struct fm_maskgrad *g, const struct fm_ops *ops,
                     const struct fm_actions *actions, const struct fm_config *config, int students,
                     int slots, struct fm_err *err)
{
    *g = (struct fm_maskgrad){
        .ops = ops, .actions = actions, .M = config->M, .E = config->E, .students = students};
    size_t layer = (size_t)g->E * (size_t)actions->count;
    g->slot = fm_alloc((size_t)slots, layer * sizeof *g->slot, "mask gradients", err);
    g->total =
        fm_alloc((size_t)students * (size_t)g->M, layer * sizeof *g->total, "mask gradients", err);
    return g->slot && g->total ? FM_OK : FM_ENOMEM;
}

void fm_maskgrad_release(struct fm_maskgrad *g)
{
    free(g->slot);
    free(g->total);
    *g = (struct fm_maskgrad){0};
}

static size_t layer_size(const struct fm_maskgrad *g)
{
    return (size_t)g->E * (size_t)g->actions->count;
}

void fm_maskgrad_begin(struct fm_maskgrad *g, int batches)
{
    g->share = 1.0 / batches;
    memset(g->total, 0, (size_t)g->students * (size_t)g->M * layer_size(g) * sizeof *g->total);
}

static void sum_expert(void *self, const struct fm_expert_view *v)
{
    struct fm_maskgrad *g = self;
    const uint32_t *width = g->actions->width;
    int A = g->actions->count;
    assert(v->cap == (int)width[A - 1]);
    struct fm_mark mark = fm_scratch_mark();
    double *c = fm_scratch((size_t)v->cap * sizeof *c), sum = 0;
    memset(c, 0, (size_t)v->cap * sizeof *c);
    g->ops->channel_sums(c, v->h, v->dh, v->n, v->cap);
    double *out = g->slot + (size_t)v->slot * layer_size(g) + (size_t)v->expert * (size_t)A;
    for (int a = 0, j = 0; a < A; a++) {
        sum = g->squares ? 0 : sum;
        for (; j < (int)width[a]; j++)
            sum += g->squares ? c[j] * c[j] : c[j];
        out[a] = sum;
    }
    fm_scratch_release(mark);
}

static void add_batch(void *self, int l, int batch, int lane, int slot)
{
    (void)batch;
    struct fm_maskgrad *g = self;
    size_t n = layer_size(g);
    assert(lane >= 1 && lane <= g->students);
    double *part = g->slot + (size_t)slot * n;
    double *total = g->total + ((size_t)(lane - 1) * (size_t)g->M + (size_t)l) * n;
    for (size_t i = 0; i < n; i++)
        total[i] += g->share * part[i];
    memset(part, 0, n * sizeof *part);
}

struct fm_visitor fm_maskgrad_visitor(struct fm_maskgrad *g)
{
    return (struct fm_visitor){.self = g, .expert = sum_expert, .commit = add_batch};
}
