/*
 * Weights of experts or routers with an adapter merged into them.  All lanes that name the same
 * adapter and the same rounding share one merged copy of the resident layer's weights, made when
 * the sweep enters the layer.
 */
#include "lib/engine/sweeping.h"

#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"

/* Largest number of expert channels in a layer. */
static size_t channels_max(const struct fm_sweep *s)
{
    const uint32_t *caps = fm_model_caps(s->model);
    size_t most = 0, E = (size_t)s->config->E;
    for (size_t m = 0; m < (size_t)s->config->M; m++) {
        size_t sum = 0;
        for (size_t e = 0; e < E; e++)
            sum += caps[m * E + e];
        most = sum > most ? sum : most;
    }
    return most;
}

/* Allocate the copy of a layer's weights, unless the copy from the previous run can be reused. */
static int take_copy(const struct fm_sweep *s, struct fm_merged *copy, struct fm_err *err)
{
    size_t E = (size_t)s->config->E, H = (size_t)s->config->H;
    size_t down = channels_max(s) * H * sizeof(float);
    if (copy->adapter->router) {
        if (!copy->router)
            copy->router = fm_alloc(E * (H + 1), sizeof *copy->router, "a router", err);
        return copy->router ? FM_OK : err->code;
    }
    if (copy->gate_up)
        return FM_OK;
    copy->gate_up = fm_alloc_large((size_t)s->config->expert->rows * down, "merged weights", err);
    copy->down = fm_alloc_large(down, "merged weights", err);
    return copy->gate_up && copy->down ? FM_OK : err->code;
}

int fm_merge_prepare(struct fm_sweeping *r, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    s->merges = 0;
    for (int i = 0; i < r->lanes; i++) {
        const struct fm_lane *own = &r->lane[i];
        int m = 0;
        while (m < s->merges &&
               (s->merged[m].adapter != own->adapter || s->merged[m].round != own->round))
            m++;
        if (!own->adapter || m < s->merges)
            continue;
        struct fm_merged *copy = &s->merged[s->merges++];
        copy->adapter = own->adapter;
        copy->round = own->round;
        if (take_copy(s, copy, err))
            return err->code;
    }
    return FM_OK;
}

static void merge_task(void *arg, int i)
{
    struct fm_sweeping *r = arg;
    struct fm_sweep *s = r->sweep;
    const struct fm_config *c = s->config;
    struct fm_merged *m = &s->merged[i / c->E];
    int e = i % c->E;
    if (m->adapter->router)
        return;
    size_t H = (size_t)c->H, first = (size_t)r->layer->row0[e] * H, up = (size_t)c->expert->rows;
    size_t down_count = (size_t)r->layer->cap[e] * H;
    float *gate_up = m->gate_up + up * first, *down = m->down + first;
    s->ops->convert(fm_to_f32(gate_up), (int64_t)(up * down_count),
                    fm_element(r->layer->gate_up, up * first), NULL, 1, (int64_t)(up * down_count));
    s->ops->convert(fm_to_f32(down), (int64_t)down_count, fm_element(r->layer->down, first), NULL,
                    1, (int64_t)down_count);
    /* In float32, whatever type the operands of other products have. */
    fm_adapter_merge(m->adapter, s->ops->f32, gate_up, down, r->m, e);
    if (m->round) {
        /* Channels without an adapter are already rounded, unless weights are codes. */
        size_t k = c->scheme.storage ? (size_t)r->layer->cap[e]
                                     : m->adapter->widths[(size_t)r->m * (size_t)c->E + (size_t)e];
        s->ops->round_to(gate_up, fm_model_dtype(s->model), (int64_t)(up * k * H));
        s->ops->round_to(down, fm_model_dtype(s->model), (int64_t)(k * H));
    }
}

/* at (n) = *to + change in float32, rounded to the tensor's stored dtype if `round`; then *to is
 * set to at. */
static void add_difference(const struct fm_sweeping *r, float **to, float *at, const float *change,
                           int64_t n, size_t field, bool round)
{
    const struct fm_sweep *s = r->sweep;
    s->ops->copy(at, *to, (size_t)n * sizeof *at);
    s->ops->add(at, change, n);
    if (round)
        s->ops->round_to(at, fm_model_stored(s->model, r->l, field), n);
    *to = at;
}

static void merge_router(const struct fm_sweeping *r, struct fm_merged *m)
{
    int64_t E = r->sweep->config->E, n = E * r->sweep->config->H;
    struct fm_router_weights *own = &m->layer.router;
    const float *change = fm_adapter_router(m->adapter, r->m);
    add_difference(r, &own->w, m->router, change, n, FM_LAYER_FIELD(router.w), m->round);
    if (m->adapter->biased)
        add_difference(r, &own->bias, m->router + n, change + n, E, FM_LAYER_FIELD(router.bias),
                       m->round);
}

void fm_merge_layer(struct fm_sweeping *r)
{
    struct fm_sweep *s = r->sweep;
    for (int m = 0; m < s->merges; m++) {
        s->merged[m].layer = *r->layer;
        if (r->m < 0)
            continue;
        if (s->merged[m].adapter->router) {
            merge_router(r, &s->merged[m]);
            continue;
        }
        s->merged[m].layer.gate_up = fm_f32(s->merged[m].gate_up);
        s->merged[m].layer.down = fm_f32(s->merged[m].down);
    }
    if (r->m >= 0)
        fm_pool_for(s->merges * s->config->E, merge_task, r);
}

const struct fm_layer *fm_merge_find(const struct fm_sweeping *r, int lane)
{
    const struct fm_sweep *s = r->sweep;
    const struct fm_lane *own = &r->lane[lane];
    for (int m = 0; own->adapter && m < s->merges; m++)
        if (s->merged[m].adapter == own->adapter && s->merged[m].round == own->round)
            return &s->merged[m].layer;
    return r->layer;
}

void fm_merge_release(struct fm_sweep *s)
{
    for (int i = 0; s->merged && i < s->lanes; i++) {
        free(s->merged[i].gate_up);
        free(s->merged[i].down);
        free(s->merged[i].router);
    }
    free(s->merged);
}
