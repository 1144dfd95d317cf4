#include "lib/engine/sweeping.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"

/* Largest number of expert channels in a layer. */
static size_t channels_max(const struct fm_sweep *s)
{
    const uint32_t *caps = fm_model_caps(s->model);
    size_t most = 0, E = (size_t)s->config->E;
    for (size_t l = 0; l < (size_t)s->config->M; l++) {
        size_t sum = 0;
        for (size_t e = 0; e < E; e++)
            sum += caps[l * E + e];
        most = sum > most ? sum : most;
    }
    return most;
}

int fm_merge_prepare(struct fm_sweeping *r, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    size_t H = (size_t)s->config->H;
    s->merges = 0;
    for (int i = 0; i < r->lanes; i++) {
        const struct fm_lane *who = &r->lane[i];
        int m = 0;
        while (m < s->merges &&
               (s->merged[m].adapter != who->adapter || s->merged[m].round != who->round))
            m++;
        if (!who->adapter || m < s->merges)
            continue;
        struct fm_merged *new = &s->merged[s->merges++];
        new->adapter = who->adapter;
        new->round = who->round;
        if (new->gate_up)
            continue;
        new->gate_up = fm_alloc(2 * channels_max(s), H * sizeof(float), "merged weights", err);
        new->down = fm_alloc(channels_max(s), H * sizeof(float), "merged weights", err);
        if (!new->gate_up || !new->down)
            return err->code;
    }
    return FM_OK;
}

/* count floats to the stored dtype and back, in place. */
static void round_weights(float *w, size_t count, enum fm_dtype dtype)
{
    float stored[1024]; /* room for as many values of any weight dtype */
    for (size_t i = 0; i < count; i += 1024) {
        size_t n = count - i < 1024 ? count - i : 1024;
        fm_dtype_from_f32(stored, w + i, dtype, n);
        fm_dtype_to_f32(w + i, stored, dtype, n);
    }
}

static void merge_task(void *arg, int i)
{
    struct fm_sweeping *r = arg;
    struct fm_sweep *s = r->sweep;
    const struct fm_config *c = s->config;
    struct fm_merged *m = &s->merged[i / c->E];
    int e = i % c->E;
    size_t H = (size_t)c->H, row0 = (size_t)r->layer->row0[e], rows = (size_t)r->layer->cap[e];
    float *gate_up = m->gate_up + 2 * row0 * H, *down = m->down + row0 * H;
    memcpy(gate_up, r->layer->gate_up + 2 * row0 * H, 2 * rows * H * sizeof *gate_up);
    memcpy(down, r->layer->down + row0 * H, rows * H * sizeof *down);
    fm_adapter_merge(m->adapter, s->f32, gate_up, down, r->m, e);
    if (m->round) {
        size_t k = m->adapter->widths[(size_t)r->m * (size_t)c->E + (size_t)e];
        round_weights(gate_up, 2 * k * H, fm_model_dtype(s->model));
        round_weights(down, k * H, fm_model_dtype(s->model));
    }
}

void fm_merge_layer(struct fm_sweeping *r)
{
    struct fm_sweep *s = r->sweep;
    for (int m = 0; m < s->merges; m++) {
        s->merged[m].layer = *r->layer;
        if (r->m < 0)
            continue;
        s->merged[m].layer.gate_up = s->merged[m].gate_up;
        s->merged[m].layer.down = s->merged[m].down;
    }
    if (r->m >= 0)
        fm_pool_for(s->merges * s->config->E, merge_task, r);
}

const struct fm_layer *fm_merge_find(const struct fm_sweeping *r, int lane)
{
    const struct fm_sweep *s = r->sweep;
    const struct fm_lane *who = &r->lane[lane];
    for (int m = 0; who->adapter && m < s->merges; m++)
        if (s->merged[m].adapter == who->adapter && s->merged[m].round == who->round)
            return &s->merged[m].layer;
    return r->layer;
}

void fm_merge_release(struct fm_sweep *s)
{
    for (int i = 0; s->merged && i < s->lanes; i++) {
        free(s->merged[i].gate_up);
        free(s->merged[i].down);
    }
    free(s->merged);
}
