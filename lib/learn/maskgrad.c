/*
 * Expert by expert the device sums c over rows and c over the channels of each action; what comes
 * to the host are the sums of a layer, once all micro-batches are in them.
 */
#include "lib/learn/maskgrad.h"

#include <assert.h>
#include <stdlib.h>

#include "lib/base/mem.h"

static size_t layer_size(const struct fm_maskgrad *g)
{
    return (size_t)g->E * (size_t)g->actions->count;
}

/* Bytes of the sums of all students in one layer. */
static size_t sum_bytes(const struct fm_maskgrad *g)
{
    return (size_t)g->students * layer_size(g) * sizeof *g->sum;
}

int fm_maskgrad_init(struct fm_maskgrad *g, const struct fm_ops *ops,
                     const struct fm_actions *actions, const struct fm_config *config, int students,
                     int slots, struct fm_err *err)
{
    *g = (struct fm_maskgrad){
        .ops = ops, .actions = actions, .M = config->M, .E = config->E, .students = students};
    const struct fm_device *device = ops->device;
    size_t slot_bytes = (size_t)slots * layer_size(g) * sizeof *g->slot;
    size_t width_bytes = (size_t)actions->count * sizeof *g->width;
    g->total = fm_alloc((size_t)students * (size_t)g->M, layer_size(g) * sizeof *g->total,
                        "mask gradients", err);
    g->width = g->total ? device->alloc(width_bytes, "widths", err) : NULL;
    g->slot = g->width ? device->alloc(slot_bytes, "mask gradients", err) : NULL;
    g->sum = g->slot ? device->alloc(sum_bytes(g), "mask gradients", err) : NULL;
    if (!g->sum)
        return err->code;
    device->copy_in(g->width, actions->width, width_bytes);
    ops->zero(g->slot, slot_bytes);
    return FM_OK;
}

void fm_maskgrad_release(struct fm_maskgrad *g)
{
    free(g->total);
    if (g->ops) {
        g->ops->device->free(g->width);
        g->ops->device->free(g->slot);
        g->ops->device->free(g->sum);
    }
    *g = (struct fm_maskgrad){0};
}

void fm_maskgrad_begin(struct fm_maskgrad *g, int batches)
{
    g->share = 1.0 / batches;
}

static int begin_layer(void *self, int m, struct fm_err *err)
{
    (void)m, (void)err;
    struct fm_maskgrad *g = self;
    g->ops->zero(g->sum, sum_bytes(g));
    return FM_OK;
}

static void sum_expert(void *self, const struct fm_expert_view *v)
{
    struct fm_maskgrad *g = self;
    const struct fm_device *device = g->ops->device;
    int A = g->actions->count;
    assert(v->cap == (int)g->actions->width[A - 1]);
    struct fm_mark mark = device->mark();
    double *c = device->scratch((size_t)v->cap * sizeof *c);
    g->ops->zero(c, (size_t)v->cap * sizeof *c);
    g->ops->channel_sums(c, v->h, fm_f32(v->dh), v->n, v->cap);
    g->ops->width_sums(g->slot + (size_t)v->slot * layer_size(g) + (size_t)v->expert * (size_t)A, c,
                       g->width, A, g->squares);
    device->release(mark);
}

static void add_batch(void *self, int m, int batch, int lane, int slot)
{
    (void)batch, (void)m;
    struct fm_maskgrad *g = self;
    size_t n = layer_size(g);
    assert(lane >= 1 && lane <= g->students);
    g->ops->fold((struct fm_out){g->sum + (size_t)(lane - 1) * n, FM_F64},
                 (struct fm_out){g->slot + (size_t)slot * n, FM_F64}, g->share, (int64_t)n);
}

static int end_layer(void *self, int m, struct fm_err *err)
{
    (void)err;
    struct fm_maskgrad *g = self;
    size_t n = layer_size(g);
    for (size_t s = 0; s < (size_t)g->students; s++)
        g->ops->device->copy_out(g->total + (s * (size_t)g->M + (size_t)m) * n, g->sum + s * n,
                                 n * sizeof *g->sum);
    return FM_OK;
}

struct fm_visitor fm_maskgrad_visitor(struct fm_maskgrad *g)
{
    return (struct fm_visitor){.self = g,
                               .layer_begin = begin_layer,
                               .expert = sum_expert,
                               .commit = add_batch,
                               .layer_end = end_layer};
}
