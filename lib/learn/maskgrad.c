/*
 * For each expert, c is summed over rows and over the channels of each action.  At the end of a run
 * g->total holds the sums of all layers, averaged over the micro-batches.
 */
#include "lib/learn/maskgrad.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static size_t layer_size(const struct fm_maskgrad *g)
{
    return (size_t)g->E * (size_t)g->parts * (size_t)g->actions->count;
}

/* Number of values in one student's sums. */
static size_t total_size(const struct fm_maskgrad *g)
{
    return (size_t)g->M * layer_size(g);
}

int fm_maskgrad_init(struct fm_maskgrad *g, const struct fm_ops *ops,
                     const struct fm_actions *actions, const struct fm_config *config, int students,
                     const struct fm_sweep *sweep, bool squares, struct fm_err *err)
{
    *g = (struct fm_maskgrad){.ops = ops,
                              .actions = actions,
                              .M = config->M,
                              .E = config->E,
                              .parts = squares ? 2 : 1,
                              .students = students};
    size_t slot_bytes = (size_t)fm_sweep_slots(sweep) * layer_size(g) * sizeof *g->slot;
    g->total = fm_alloc((size_t)students, total_size(g) * sizeof *g->total, "mask gradients", err);
    g->slot = g->total ? fm_alloc_large(slot_bytes, "mask gradients", err) : NULL;
    if (!g->slot)
        return err->code;
    ops->zero(g->slot, slot_bytes);
    return fm_reduction_init(&g->reduction, sweep, ops, FM_F64, students, total_size(g), students,
                             err);
}

void fm_maskgrad_release(struct fm_maskgrad *g)
{
    free(g->total);
    free(g->slot);
    fm_reduction_release(&g->reduction);
    *g = (struct fm_maskgrad){0};
}

void fm_maskgrad_begin(struct fm_maskgrad *g, int batches)
{
    fm_reduction_begin(&g->reduction, 1.0 / batches);
    g->ops->zero(g->reduction.sum, (size_t)g->students * total_size(g) * sizeof *g->total);
}

static int begin_layer(void *self, int m, struct fm_err *err)
{
    (void)m, (void)err;
    struct fm_maskgrad *g = self;
    fm_reduction_layer(&g->reduction);
    return FM_OK;
}

static void sum_expert(void *self, const struct fm_expert_view *v)
{
    struct fm_maskgrad *g = self;
    int A = g->actions->count;
    assert(v->cap == (int)g->actions->width[A - 1]);
    struct fm_mark mark = fm_scratch_mark();
    double *c = fm_scratch((size_t)v->cap * sizeof *c);
    g->ops->zero(c, (size_t)v->cap * sizeof *c);
    g->ops->channel_sums(c, v->h, fm_f32(v->dh), v->n, v->cap);
    double *sums = g->slot + (size_t)v->slot * layer_size(g) + (size_t)(v->expert * g->parts * A);
    g->ops->width_sums(sums, c, g->actions->width, A, false);
    if (g->parts == 2)
        g->ops->width_sums(sums + A, c, g->actions->width, A, true);
    fm_scratch_release(mark);
}

static void add_batch(void *self, int m, int batch, int lane, int slot)
{
    (void)batch;
    struct fm_maskgrad *g = self;
    size_t n = layer_size(g);
    assert(lane >= 1 && lane <= g->students);
    fm_reduction_add(&g->reduction, g->slot + (size_t)slot * n, (size_t)m * n, n);
}

static int end(void *self, struct fm_err *err)
{
    struct fm_maskgrad *g = self;
    int rc = fm_reduction_end(&g->reduction, total_size(g), err);
    if (!rc)
        rc = fm_reduction_whole(&g->reduction, total_size(g), err);
    memcpy(g->total, g->reduction.sum, (size_t)g->students * total_size(g) * sizeof *g->total);
    return rc;
}

struct fm_visitor fm_maskgrad_visitor(struct fm_maskgrad *g)
{
    return (struct fm_visitor){.self = g,
                               .layer_begin = begin_layer,
                               .expert = sum_expert,
                               .commit = add_batch,
                               .end = end};
}
