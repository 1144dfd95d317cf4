/*
 * A slot is one block of memory that holds the arrays of a layer one after another, so that the
 * weights of a layer take one allocation, whose size follows from shapes and types.
 */
#include <assert.h>
#include <stddef.h>

#include "formats/quant/quant.h"
#include "lib/model/loading.h"

/* Type of the matrices of experts and MLPs in memory: bfloat16 if it represents their stored values
 * exactly and products would round them to it, else float32. */
static enum fm_dtype held_as(const struct fm_model *m)
{
    bool same = m->dtype == FM_BF16 && fm_storage_exact(&m->config.scheme, m->config.schemes) &&
                fm_storage_exact(&m->as, NULL);
    return same && m->ops->operand == FM_BF16 ? FM_BF16 : FM_F32;
}

enum fm_dtype fm_slots_field(const struct fm_model *m, const struct fm_weight *w)
{
    bool projection = w->part == FM_PART_PROJECTION || w->part == FM_PART_HEADS;
    return projection ? m->ops->operand : FM_F32;
}

enum fm_dtype fm_slots_nonlayer(const struct fm_model *m, const struct fm_model_tensor *p)
{
    bool exact = !p->at.scale && p->at.tensor->dtype == FM_BF16;
    if (p->weight->field == offsetof(struct fm_nonlayer, embed))
        return exact ? m->ops->operand : FM_F32;
    return p->weight->field == offsetof(struct fm_nonlayer, lm_head) ? m->ops->operand : FM_F32;
}

static bool is_mlp(const struct fm_weight *w)
{
    return w->part >= FM_PART_MLP_GATE && w->part <= FM_PART_MLP_GATE_UP;
}

size_t fm_slots_bytes(const struct fm_model *m, int l)
{
    const struct fm_config *c = &m->config;
    enum fm_dtype held = held_as(m);
    uint64_t H = (uint64_t)c->H, channels = fm_loading_channels(m, l);
    size_t sum = fm_slots_size((uint64_t)c->expert->rows * channels * H, held) +
                 fm_slots_size(channels * H, held);
    if (c->expert->bias)
        sum += fm_slots_size((uint64_t)c->expert->rows * channels, FM_F32);
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++)
        if (fm_weights_exists(c, w, l) && (is_mlp(w) || fm_weights_is_field(w)))
            sum += fm_slots_size(fm_weights_count(c, w, l, 0),
                                 is_mlp(w) ? held : fm_slots_field(m, w));
    return sum;
}

static struct fm_out carve(char **at, uint64_t n, enum fm_dtype dtype)
{
    struct fm_out y = {*at, dtype};
    *at += fm_slots_size(n, dtype);
    return y;
}

/* Allocate the memory of a slot; the shared slot is large enough for the largest layer. */
static int take_slot(const struct fm_model *m, struct fm_layer_slot *s, int l, struct fm_err *err)
{
    size_t E = (size_t)m->config.E;
    size_t bytes = l < m->pinned ? fm_slots_bytes(m, l) : (size_t)fm_model_layer_bytes(m);
    s->block = fm_alloc_large(bytes, "a layer", err);
    s->row0 = fm_alloc(E, sizeof *s->row0, "a layer", err);
    s->cap = fm_alloc(E, sizeof *s->cap, "a layer", err);
    return s->block && s->row0 && s->cap ? FM_OK : err->code;
}

/* Place the arrays of layer l one after another in the slot's block. */
static void place_arrays(const struct fm_model *m, struct fm_layer_slot *s, int l)
{
    const struct fm_config *c = &m->config;
    enum fm_dtype held = held_as(m);
    uint64_t H = (uint64_t)c->H, channels = fm_loading_channels(m, l);
    uint64_t mlp = (uint64_t)fm_config_mlp(c, l);
    char *at = s->block;
    struct fm_layer *y = &s->layer;
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++)
        if (fm_weights_is_field(w) && fm_weights_exists(c, w, l))
            *(float **)((char *)y + w->field) =
                carve(&at, fm_weights_count(c, w, l, 0), fm_slots_field(m, w)).data;
    y->narrow = m->ops->operand == FM_BF16;
    s->mlp_gate_up = s->mlp_down = (struct fm_out){0};
    if (mlp > 0) {
        s->mlp_gate_up = carve(&at, 2 * mlp * H, held);
        s->mlp_down = carve(&at, mlp * H, held);
    }
    s->gate_up = carve(&at, (uint64_t)c->expert->rows * channels * H, held);
    s->down = carve(&at, channels * H, held);
    if (c->expert->bias)
        y->gate_up_bias = carve(&at, (uint64_t)c->expert->rows * channels, FM_F32).data;
    assert(at <= s->block + fm_slots_bytes(m, l));
    y->mlp_gate_up = fm_written(s->mlp_gate_up);
    y->mlp_down = fm_written(s->mlp_down);
    y->gate_up = fm_written(s->gate_up);
    y->down = fm_written(s->down);
}

int fm_slots_shape(struct fm_model *m, struct fm_layer_slot *s, int l, struct fm_err *err)
{
    size_t E = (size_t)m->config.E;
    int rc = s->block ? FM_OK : take_slot(m, s, l, err), moe = fm_config_moe(&m->config, l);
    if (rc)
        return rc;
    s->layer = (struct fm_layer){.row0 = s->row0, .cap = s->cap};
    place_arrays(m, s, l);
    int64_t row = 0;
    for (size_t e = 0; e < E; e++) {
        s->row0[e] = row;
        s->cap[e] = moe < 0 ? 0 : (int)m->caps[(size_t)moe * E + e];
        row += s->cap[e];
    }
    return FM_OK;
}
