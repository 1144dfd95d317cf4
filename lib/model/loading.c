/*
 * Tasks of the pool read a layer piece by piece (a tensor, or an expert's share of one) and convert
 * each piece, while it is in the cache, to the type that products take.  While a layer is computed,
 * the bytes of the next one are prefetched (look_ahead).  Layers that fit into memory have a
 * slot each, and the others share one; callers of fm_model_layer need not distinguish the two.
 *
 * From piece to target.  A piece is what one task reads: a tensor, or expert e of a tensor that
 * holds all of them.  A piece of an expert consists of cuts, one for each part of memory that it
 * fills: a checkpoint's gate_up is a cut of gate and a cut of up.
 *
 *     file     | expert 0   | expert 1   | expert 2        |   a tensor with all experts
 *                           ^ first      ^ first + n            find_piece
 *                           |            |
 *                           v            v                      read_piece, to scratch
 *     piece                 | cut 0 | cut 1 |
 *                               |       \                        convert_piece: values, channels in
 *                               v        v                      ranked order, columns as rows
 *     channel               | gate     | up     |               one of cap[e] of expert e
 *                           ^ cut.first
 *
 * The experts of a bundle that is read as an export (fm_model_narrow) begin at e I channels, of
 * which the first cap[e] are read; they go through codes of a format between piece and channel
 * (convert_expert).
 *
 *     target   | expert 0   | expert 1    | expert 2     |      gate_up of the slot
 *              row0[0]      row0[1]       row0[2]
 *
 * Invariants while a layer is loaded:
 *   1. A piece is inside its tensor (read_piece).
 *   2. A cut's rows are inside a channel of its part (fm_packed_forms).
 *   3. Experts follow each other in the slot without a gap, so no two tasks write the same values
 *      (convert_channels).
 *   4. The cuts of a piece cover all of its values, each once (convert_channels).
 *   5. A slot names no layer while tasks write to it; it names one only after every piece has been
 *      converted and no file has changed (convert_task; the end of load_layer).
 *   6. A pinned layer is in its own slot, every other layer in the shared slot (fm_model_layer).
 *   7. No thread asks for the next layer's bytes while a layer is loaded (load_layer).
 *   8. Codes are read in whole channel groups (find_piece), and an expert that goes through codes
 *      keeps its size (convert_expert).
 */
#include "lib/model/loading.h"

#include <assert.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/base/signals.h"
#include "lib/base/trace.h"
#include "lib/block/experts.h"
#include "lib/model/reading.h"

size_t fm_loading_channels(const struct fm_model *m, int l)
{
    size_t sum = 0, E = (size_t)m->config.E;
    int moe = fm_config_moe(&m->config, l);
    for (size_t e = 0; moe >= 0 && e < E; e++)
        sum += m->caps[(size_t)moe * E + e];
    return sum;
}

/* ---- slots ---- */

/*
 * A slot is one block of memory that holds the arrays of a layer one after another, so that the
 * weights of a layer take one allocation, whose size follows from shapes and types.
 */

/* Type of the matrices of experts and MLPs in memory: bfloat16 if it represents their stored values
 * exactly and products would round them to it, else float32. */
static enum fm_dtype held_as(const struct fm_model *m)
{
    bool same = m->dtype == FM_BF16 && fm_storage_exact(&m->config.scheme, m->config.schemes) &&
                fm_storage_exact(&m->rounded.scheme, NULL);
    return same && m->ops->operand == FM_BF16 ? FM_BF16 : FM_F32;
}

/* Type in memory of a field of a layer: projections have the operand type of products, whatever
 * their type on disk. */
static enum fm_dtype field_as(const struct fm_model *m, const struct fm_weight *w)
{
    bool projection = w->part == FM_PART_PROJECTION || w->part == FM_PART_HEADS;
    return projection ? m->ops->operand : FM_F32;
}

enum fm_dtype fm_loading_nonlayer(const struct fm_model *m, const struct fm_model_tensor *p)
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

/* Bytes of the block of layer l. */
static size_t block_bytes(const struct fm_model *m, int l)
{
    const struct fm_config *c = &m->config;
    enum fm_dtype held = held_as(m);
    uint64_t H = (uint64_t)c->H, channels = fm_loading_channels(m, l);
    size_t sum = fm_loading_size((uint64_t)c->expert->rows * channels * H, held) +
                 fm_loading_size(channels * H, held);
    if (c->expert->bias)
        sum += fm_loading_size((uint64_t)c->expert->rows * channels, FM_F32);
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++)
        if (fm_weights_exists(c, w, l) && (is_mlp(w) || fm_weights_is_field(w)))
            sum += fm_loading_size(fm_weights_count(c, w, l), is_mlp(w) ? held : field_as(m, w));
    return sum;
}

uint64_t fm_model_layer_bytes(const struct fm_model *m)
{
    size_t most = 0;
    for (int l = 0; l < m->config.L; l++) {
        size_t bytes = block_bytes(m, l);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static struct fm_out carve(char **at, uint64_t n, enum fm_dtype dtype)
{
    struct fm_out y = {*at, dtype};
    *at += fm_loading_size(n, dtype);
    return y;
}

/* Allocate the memory of a slot; the shared slot is large enough for the largest layer. */
static int take_slot(const struct fm_model *m, struct fm_layer_slot *s, int l, struct fm_err *err)
{
    size_t E = (size_t)m->config.E;
    size_t bytes = l < m->pinned ? block_bytes(m, l) : (size_t)fm_model_layer_bytes(m);
    assert(!s->block); /* a slot is allocated once */
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
                carve(&at, fm_weights_count(c, w, l), field_as(m, w)).data;
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
    assert(at <= s->block + block_bytes(m, l));
    y->mlp_gate_up = fm_written(s->mlp_gate_up);
    y->mlp_down = fm_written(s->mlp_down);
    y->gate_up = fm_written(s->gate_up);
    y->down = fm_written(s->down);
}

/* Place the arrays of layer l in a slot, and set the offsets of its experts.  The slot allocates
 * its memory at the first call. */
static int shape_slot(struct fm_model *m, struct fm_layer_slot *s, int l, struct fm_err *err)
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

/* ---- tensors outside the layers ---- */

/* State shared by the tasks that convert; the error of the lowest failed task is returned. */
struct conversion {
    struct fm_model *m;
    struct fm_layer_tensors *layer;
    struct fm_layer_slot *slot;
    int l, pieces; /* tasks per tensor: E if any tensor holds all experts of the layer */
    pthread_mutex_t lock;
    int failed; /* lowest task that failed, INT_MAX: none */
    struct fm_err err;
    bool unread; /* a task could not read its bytes */
    bool summing;
    struct fm_digest *shares; /* (places, FM_READING_SUMS) sums of the shares of tensors that hold
                                 all experts */
    const struct fm_model_tensor *whole; /* outside the layers: the tensor that is read in pieces */
    struct fm_out dst;
    struct fm_scales scales; /* scale is NULL if the tensor holds values */
    struct fm_digest sum;    /* sum of a tensor's pieces, or of the layer */
};

static void fail_piece(struct conversion *v, int i, const struct fm_err *err, bool unread)
{
    pthread_mutex_lock(&v->lock);
    v->unread |= unread;
    if (i < v->failed) {
        v->failed = i;
        v->err = *err;
    }
    pthread_mutex_unlock(&v->lock);
}

/* Whether the tensor's values are rounded to the dtype in which they are written. */
static bool is_rounded(const struct fm_model *m, const struct fm_model_tensor *p)
{
    return m->rounding == FM_MODEL_ROUND_ALL ||
           (m->rounding == FM_MODEL_ROUND_REST && !fm_weights_is_expert(p->weight));
}

/* Record the sum of the weights that have just been read at place l, unless it is known.
 * FM_ECONFIG if it is not the wanted sum. */
static int note_sum(struct fm_model *m, int l, const struct fm_digest *sum, struct fm_err *err)
{
    assert(l >= 0 && l <= m->config.L); /* L: the tensors outside the layers */
    if (m->summed[l])
        return FM_OK;
    m->sums.sum[l] = *sum;
    m->summed[l] = true;
    if (!m->wanted || !fm_reading_check(m->wanted, l, sum, err))
        return FM_OK;
    return fm_within(err, "%s", m->path);
}

/* If the run was asked to stop, skip task i and mark it as failed. */
static bool is_ending(struct conversion *v, int i)
{
    struct fm_err err = {0};
    if (!fm_pool_ending())
        return false;
    fm_fail(&err, FM_ESAVED, "interrupted while weights were read");
    fail_piece(v, i, &err, true);
    return true;
}

/* Read and convert piece i of a tensor outside the layers, FM_READING_PIECE bytes of the file. */
static void nonlayer_task(void *arg, int i)
{
    struct conversion *v = arg;
    if (is_ending(v, i))
        return;
    const struct fm_tensor *t = v->whole->at.tensor;
    int bits = fm_stored_bits(&v->whole->at);
    size_t at = (size_t)i * FM_READING_PIECE, left = (size_t)t->size - at;
    size_t bytes = left < FM_READING_PIECE ? left : FM_READING_PIECE;
    size_t first = 8 * at / (size_t)bits, n = 8 * bytes / (size_t)bits;
    struct fm_err err = {0};
    assert(at < t->size && 8 * at % (size_t)bits == 0); /* a piece has whole values */
    struct fm_mark mark = fm_scratch_mark();
    struct fm_scales scales = v->scales;
    scales.first = (int64_t)first;
    void *raw = fm_scratch(bytes);
    struct fm_in x = {raw, t->dtype, scales.scale ? &scales : NULL};
    const struct fm_reading r = {
        .at = &v->whole->at, .e = i, .lock = &v->lock, .sum = &v->sum, .pieces = &v->sum};
    int rc = fm_reading_bytes(raw, &r, 0, at, bytes, &err);
    if (!rc && fm_stored_finite(&v->whole->at, raw, first, n, &err))
        rc = fm_within(&err, "%s", v->m->path);
    if (!rc)
        v->m->ops->convert(fm_element_out(v->dst, first), (int64_t)n, x, NULL, 1, (int64_t)n);
    else
        fail_piece(v, i, &err, true);
    fm_scratch_release(mark);
}

/* Read the scales of a tensor outside the layers into scratch; add their digest to *sum. */
static int read_nonlayer_scales(struct conversion *v, struct fm_digest *sum, struct fm_err *err)
{
    const struct fm_reading r = {.at = &v->whole->at, .e = -1, .lock = &v->lock, .sum = sum};
    const void *raw;
    float factor;
    if (!r.at->scale)
        return FM_OK;
    if (fm_reading_scales(&raw, &r, err) || fm_reading_factor(&factor, &r, true, err))
        return err->code;
    if (fm_reading_widen(&v->scales, &r, raw, factor, err))
        return fm_within(err, "%s", v->m->path);
    v->scales.rounded = is_rounded(v->m, v->whole);
    return FM_OK;
}

/* The field that the tensor fills, if it is one that has a dtype; else NULL. */
static struct fm_in *nonlayer_with_type(struct fm_model *m, const struct fm_model_tensor *p)
{
    return p->weight->field == offsetof(struct fm_nonlayer, embed)     ? &m->nonlayer.embed
           : p->weight->field == offsetof(struct fm_nonlayer, lm_head) ? &m->nonlayer.lm_head
                                                                       : NULL;
}

/* Read a tensor outside the layers; add its digest to *sum. */
static int read_nonlayer(struct fm_model *m, const struct fm_model_tensor *p, struct fm_digest *sum,
                         struct fm_err *err)
{
    const struct fm_tensor *t = p->at.tensor;
    FM_TRACE(FM_TRACE_LOAD, "%s of %s", t->name, m->path);
    size_t n = (size_t)fm_stored_count(&p->at);
    size_t pieces = (size_t)((t->size + FM_READING_PIECE - 1) / FM_READING_PIECE);
    enum fm_dtype dtype = fm_loading_nonlayer(m, p);
    void **field = (void **)((char *)&m->nonlayer + p->weight->field);
    *field = fm_alloc_large(fm_loading_size(n, dtype), t->name, err);
    if (!*field)
        return err->code;
    struct fm_in *carried = nonlayer_with_type(m, p);
    if (carried)
        carried->dtype = dtype;
    struct conversion v = {.m = m,
                           .whole = p,
                           .dst = {*field, dtype},
                           .failed = INT_MAX,
                           .lock = PTHREAD_MUTEX_INITIALIZER};
    struct fm_mark mark = fm_scratch_mark();
    if (!read_nonlayer_scales(&v, sum, &v.err))
        fm_pool_for((int)pieces, nonlayer_task, &v);
    fm_scratch_release(mark);
    pthread_mutex_destroy(&v.lock);
    if (!v.err.code) {
        struct fm_digest digest = fm_reading_digest(t, &v.sum);
        fm_reading_add(sum, &digest);
        return FM_OK;
    }
    free(*field);
    *field = NULL;
    *err = v.err;
    return err->code;
}

/* Set *same to whether a piece of two tensors has the same bytes. */
static int compare_piece(bool *same, const struct fm_stored *a, const struct fm_stored *b,
                         uint64_t at, struct fm_err *err)
{
    uint64_t left = a->tensor->size - at;
    size_t bytes = left < FM_READING_PIECE ? (size_t)left : FM_READING_PIECE;
    struct fm_mark mark = fm_scratch_mark();
    void *x = fm_scratch(bytes), *y = fm_scratch(bytes);
    int rc = fm_tensor_read(a->tensor, a->file, at, x, bytes, err);
    if (!rc)
        rc = fm_tensor_read(b->tensor, b->file, at, y, bytes, err);
    *same = !rc && memcmp(x, y, bytes) == 0;
    fm_scratch_release(mark);
    return rc;
}

/* FM_ECONFIG if config.json ties the LM head to the embedding, but the checkpoint has an LM head of
 * another type or with other bytes: transformers 5 then uses it, and other programs do not.  The
 * scales of codes and packed heads, which have other names, are not compared. */
static int check_tied(const struct fm_model *m, struct fm_err *err)
{
    const struct fm_stored *head = fm_source_find(&m->tensors, "lm_head.weight"), *embed = NULL;
    for (int i = 0; i < m->nonlayer_count; i++)
        if (m->nonlayer_tensor[i].weight->field == offsetof(struct fm_nonlayer, embed))
            embed = &m->nonlayer_tensor[i].at;
    if (!m->config.tied || !head || !embed)
        return FM_OK;
    bool same =
        head->tensor->dtype == embed->tensor->dtype && head->tensor->size == embed->tensor->size;
    int rc = FM_OK;
    for (uint64_t at = 0; same && at < head->tensor->size; at += FM_READING_PIECE)
        rc = compare_piece(&same, head, embed, at, err);
    if (rc || same)
        return rc;
    const char *key = m->config.family->tied_key;
    return fm_fail(err, FM_ECONFIG,
                   "%s: tensor '%s' differs from '%s' in type or values, but %s is true in "
                   "config.json or by default; programs differ in which they use; set it to false, "
                   "or remove '%s'",
                   m->path, head->tensor->name, embed->tensor->name,
                   key ? key : "tie_word_embeddings", head->tensor->name);
}

static int load_nonlayer(struct fm_model *m, struct fm_err *err)
{
    struct fm_digest sum = {{0}};
    bool all = true, some = false; /* all, or some, tensors are read by this call */
    for (int i = 0; i < m->nonlayer_count; i++) {
        const void *have = *(void **)((char *)&m->nonlayer + m->nonlayer_tensor[i].weight->field);
        int rc = have ? FM_OK : read_nonlayer(m, &m->nonlayer_tensor[i], &sum, err);
        if (rc)
            return rc;
        all &= !have;
        some |= !have;
    }
    if (all && (check_tied(m, err) || note_sum(m, m->config.L, &sum, err)))
        return err->code;
    return some ? fm_source_unchanged(&m->tensors, err) : FM_OK;
}

int fm_model_nonlayer(struct fm_model *m, const struct fm_nonlayer **nonlayer, struct fm_err *err)
{
    int before = fm_pool_label(FM_POOL_READING), rc = load_nonlayer(m, err);
    fm_pool_label(before);
    assert(rc || m->nonlayer.norm); /* every family has it */
    *nonlayer = &m->nonlayer;
    if (!rc && m->config.tied)
        m->nonlayer.lm_head = m->nonlayer.embed;
    return rc;
}

/* Whether the tensor holds all experts of a layer. */
static bool is_fused(const struct fm_model_tensor *p)
{
    return p->expert < 0 && fm_weights_is_expert(p->weight);
}

static struct fm_layer_slot *slot_of(struct fm_model *m, int l)
{
    return &m->slot[l < m->pinned ? l : m->pinned];
}

/* A tensor of a layer, or an expert's share of a tensor that holds all of them. */
struct piece {
    const struct fm_model_tensor *tensor;
    int e;                /* -1: not of one expert */
    size_t first, n;      /* its elements in the tensor */
    struct fm_channels c; /* the bytes of these elements, of their scales, and the factor */
};

/* The first channel of expert e in the file. */
static uint64_t first_of(const struct conversion *v, int e)
{
    const struct fm_model *m = v->m;
    return m->tensors.bundle.file.path ? (uint64_t)e * (uint64_t)m->config.I
                                       : (uint64_t)v->slot->row0[e];
}

/* The form of the layer's experts in a bundle or an export of codes. */
static const struct fm_packed *packed_of(const struct conversion *v)
{
    return fm_packed_at(&v->m->packed, fm_config_moe(&v->m->config, v->l));
}

/* Find piece i % pieces of tensor i / pieces.  Return false if the tensor is a single piece, and
 * task i is not the one that reads it. */
static bool find_piece(struct piece *x, const struct conversion *v, int i)
{
    const struct fm_config *c = &v->m->config;
    const struct fm_model_tensor *p = &v->layer->place[i / v->pieces];
    assert(i >= 0 && (size_t)(i / v->pieces) < v->layer->places);
    *x = (struct piece){.tensor = p, .e = p->expert, .n = (size_t)fm_stored_count(&p->at)};
    if (!is_fused(p))
        return i % v->pieces == 0;
    x->e = i % v->pieces;
    struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
    size_t channel = 0;
    for (int n = fm_expert_cuts(cut, c->expert, p->part); n-- > 0;)
        channel += (size_t)fm_expert_cut_channel(&cut[n], c->H);
    assert(!p->packed || v->slot->cap[x->e] % packed_of(v)->group == 0); /* invariant 8 */
    x->c = (struct fm_channels){.config = c,
                                .of = p->part,
                                .count = (uint64_t)v->slot->layer.cap[x->e],
                                .packed = p->packed ? packed_of(v) : NULL,
                                .dtype = v->m->dtype};
    x->first = channel * (size_t)first_of(v, x->e);
    x->n = channel * (size_t)x->c.count;
    return true;
}

/* For an expert's piece, if the checkpoint is read in ranked order: the file's channels in that
 * order.  Else NULL. */
static const int32_t *order_of(const struct conversion *v, const struct piece *x)
{
    const struct fm_config *c = &v->m->config;
    if (!v->m->order || x->e < 0)
        return NULL;
    size_t expert = (size_t)fm_config_moe(c, v->l) * (size_t)c->E + (size_t)x->e;
    return v->m->order + expert * (size_t)c->I;
}

/* Convert a tensor of the layer without channels to its field, with the rows of heads in the order
 * that the attention block needs. */
static void convert_field(const struct conversion *v, const struct piece *x, struct fm_in src)
{
    const struct fm_weight *w = x->tensor->weight;
    bool heads = w->part == FM_PART_HEADS;
    int rows = heads ? (int)x->tensor->at.tensor->shape[0] : 1;
    int32_t *order = heads ? fm_scratch((size_t)rows * sizeof *order) : NULL;
    int64_t width = (int64_t)(x->n / (size_t)rows);
    assert(fm_weights_is_field(w) && x->n % (size_t)rows == 0);
    void *at = *(void *const *)((const char *)&v->slot->layer + w->field);
    struct fm_out to = {at, field_as(v->m, w)};
    if (heads)
        v->m->config.attention->order(order, &v->m->config, v->l, w);
    v->m->ops->convert(to, width, src, order, rows, width);
}

/* The part of an expert whose form a tensor of the layer's MLP has; any other part is returned. */
static enum fm_weight_part part_of_expert(enum fm_weight_part part)
{
    return part == FM_PART_MLP_GATE      ? FM_PART_GATE
           : part == FM_PART_MLP_UP      ? FM_PART_UP
           : part == FM_PART_MLP_GATE_UP ? FM_PART_GATE_THEN_UP
           : part == FM_PART_MLP_DOWN    ? FM_PART_DOWN
                                         : part;
}

/* The memory of a part of the MLP, or of one of all experts. */
static struct fm_out memory_of(const struct conversion *v, bool mlp, enum fm_weight_part of)
{
    const struct fm_layer_slot *y = v->slot;
    if (of == FM_PART_BIAS)
        return fm_to_f32(y->layer.gate_up_bias);
    if (of == FM_PART_GATE_UP)
        return mlp ? y->mlp_gate_up : y->gate_up;
    return mlp ? y->mlp_down : y->down;
}

/* The order of rows that corresponds to `order` (cap), an order of channels with `rows` rows each:
 * `order` itself, or an expanded copy in scratch. */
static const int32_t *order_rows(const int32_t *order, int rows, int cap)
{
    if (!order || rows == 1)
        return order;
    int32_t *all = fm_scratch((size_t)rows * (size_t)cap * sizeof *all);
    for (int i = 0; i < rows * cap; i++)
        all[i] = order[i / rows] * rows + i % rows;
    return all;
}

/* The values of a source from element i on; *scales keeps their scales, if it is codes. */
static struct fm_in rest_of(struct fm_in x, size_t i, struct fm_scales *scales)
{
    if (!x.scales)
        return fm_element(x, i);
    *scales = *x.scales;
    scales->first += (int64_t)i;
    size_t bytes = i * (size_t)fm_code_bits(scales->code) / 8;
    assert(i * (size_t)fm_code_bits(scales->code) % 8 == 0); /* cuts end between bytes */
    return (struct fm_in){(const char *)x.data + bytes, x.dtype, scales};
}

/* Convert the values of an expert's share, or of a tensor of the MLP, cut by cut: rows to rows of a
 * channel, columns to rows. */
static void convert_channels(const struct conversion *v, const struct piece *x, struct fm_in src)
{
    struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
    const struct fm_config *c = &v->m->config;
    const struct fm_layer_slot *y = v->slot;
    const int32_t *order = order_of(v, x);
    bool mlp = x->e < 0;
    assert(x->e < c->E);
    int n = mlp ? fm_config_mlp(c, v->l) : y->cap[x->e];
    size_t left = x->n, before = mlp ? 0 : (size_t)y->row0[x->e];
    struct fm_scales scales;
    int cuts = fm_expert_cuts(cut, c->expert, part_of_expert(x->tensor->part));
    assert(mlp || x->e + 1 == c->E || y->row0[x->e] + n == y->row0[x->e + 1]); /* invariant 3 */
    for (int i = 0; i < cuts; i++) {
        struct fm_out to = memory_of(v, mlp, cut[i].of);
        size_t element = (size_t)fm_dtype_bits(to.dtype) / 8;
        const struct fm_packed_forms f =
            fm_packed_forms(c, NULL, -1, to.dtype, &cut[i], (uint64_t)n, (uint64_t)n);
        to.data = (char *)to.data + before * f.part_group + f.part_first;
        if (cut[i].columns)
            v->m->ops->transpose(to, src, order_rows(order, cut[i].rows, n), (int)f.box.items,
                                 n * cut[i].rows);
        else
            v->m->ops->convert(to, (int64_t)(f.part.group / element), src, order, n,
                               (int64_t)(f.file.group / element));
        src = rest_of(src, f.file_bytes / element, &scales);
        left -= f.file_bytes / element;
    }
    assert(left == 0); /* invariant 4 */
}

/* The reading of a tensor of the layer, or of expert e's share of it. */
static struct fm_reading reading_of(struct conversion *v, const struct fm_model_tensor *p, int e)
{
    assert(p >= v->layer->place && p < v->layer->place + v->layer->places);
    return (struct fm_reading){.at = &p->at,
                               .e = is_fused(p) ? e : -1,
                               .E = v->m->config.E,
                               .lock = &v->lock,
                               .sum = v->summing ? &v->sum : NULL,
                               .pieces = v->shares + FM_READING_SUMS * (p - v->layer->place)};
}

/* Add the sums of shares to the sum of the layer. */
static void join_shares(struct conversion *v)
{
    for (size_t i = 0; i < v->layer->places; i++) {
        const struct fm_reading r = reading_of(v, &v->layer->place[i], 0);
        for (int plane = 0; plane < FM_READING_SUMS && r.e >= 0; plane++)
            fm_reading_join(&r, plane);
    }
}

/* If the expert's channels have that plane of codes, read it into scratch. */
static int read_channels(struct conversion *v, struct piece *x, int plane, struct fm_err *err)
{
    const struct fm_reading r = reading_of(v, x->tensor, x->e);
    const struct fm_packed_part *part = fm_packed_find(x->c.packed, x->c.of, plane);
    if (!part)
        return FM_OK;
    size_t size = (size_t)fm_packed_bytes(x->c.packed, part, x->c.count);
    void *to = fm_scratch(size);
    x->c.plane[plane] = to;
    return fm_reading_bytes(to, &r, plane, fm_packed_bytes(x->c.packed, part, first_of(v, x->e)),
                            size, err);
}

/* Read codes of a bundle or an export, for the channels that the layer has in memory. */
static int read_packed(struct conversion *v, struct piece *x, struct fm_err *err)
{
    bool ragged = v->m->tensors.naming == FM_NAMING_RAGGED;
    const struct fm_packed_expert expert = {.naming = ragged ? FM_NAMING_RAGGED : FM_NAMING_STOCK,
                                            .l = v->l,
                                            .e = x->e,
                                            .find = fm_source_find,
                                            .in = &v->m->tensors,
                                            .path = v->m->path};
    if (read_channels(v, x, 0, err) || read_channels(v, x, 1, err))
        return err->code;
    return fm_packed_read_apart(&x->c, &expert, err);
}

/* Read the bytes of a piece and of its scales. */
static int read_piece(struct conversion *v, struct piece *x, struct fm_err *err)
{
    const struct fm_reading r = reading_of(v, x->tensor, x->e);
    if (x->tensor->packed)
        return read_packed(v, x, err);
    size_t bits = (size_t)fm_stored_bits(r.at), size = x->n * bits / 8;
    void *raw = fm_scratch(size);
    x->c.plane[0] = raw;
    assert(x->first * bits / 8 + size <= r.at->tensor->size); /* invariant 1 */
    int rc = fm_reading_bytes(raw, &r, 0, x->first * bits / 8, size, err);
    if (rc || !r.at->scale)
        return rc;
    if (fm_reading_scales(&x->c.plane[1], &r, err))
        return err->code;
    return fm_reading_factor(x->c.factor, &r, true, err) ? fm_within(err, "%s", v->m->path) : FM_OK;
}

/* Whether the piece is of experts that are rounded to another format. */
static bool is_requantised(const struct conversion *v, const struct piece *x)
{
    return v->m->quantiser && is_fused(x->tensor) && x->tensor->part != FM_PART_BIAS;
}

/* Convert an expert's part of a bundle or an export, through the codes of another format if it is
 * read as an export that has these. */
static int convert_expert(const struct conversion *v, struct piece *x, struct fm_err *err)
{
    const struct fm_model *m = v->m;
    struct fm_channels *c = &x->c;
    bool requantised = is_requantised(v, x);
    bool finite = !requantised || fm_packed_convert(c, &m->rounded, m->quantiser);
    c->dtype = FM_F32;
    if (finite)
        fm_packed_convert(c, NULL, NULL);
    float *values = finite ? (float *)(uintptr_t)c->plane[0] : NULL;
    if (finite && is_rounded(m, x->tensor))
        fm_dtype_round(values, requantised ? m->rounded.scheme.storage->written : m->dtype, x->n);
    if (!finite || fm_dtype_nonfinite(values, FM_F32, x->n) < x->n)
        return fm_fail(err, FM_EFORMAT, "%s: tensor '%s' holds NaN or Inf in expert %d", m->path,
                       x->tensor->at.tensor->name, x->e);
    convert_channels(v, x, fm_f32(values));
    return FM_OK;
}

/* Convert the values of a piece to its target.  The first time, fail unless all are finite. */
static int convert_piece(struct conversion *v, struct piece *x, struct fm_err *err)
{
    const struct fm_model_tensor *p = x->tensor;
    if (p->packed || is_requantised(v, x))
        return convert_expert(v, x, err);
    if (!v->layer->checked && fm_stored_finite(&p->at, x->c.plane[0], x->first, x->n, err))
        return fm_within(err, "%s", v->m->path);
    const struct fm_reading r = reading_of(v, p, x->e);
    struct fm_scales scales;
    if (fm_reading_widen(&scales, &r, x->c.plane[1], x->c.factor[0], err))
        return fm_within(err, "%s", v->m->path);
    scales.rounded = is_rounded(v->m, p);
    struct fm_in src = {x->c.plane[0], p->at.tensor->dtype, scales.scale ? &scales : NULL};
    if (x->e >= 0 || part_of_expert(p->part) != p->part)
        convert_channels(v, x, src);
    else
        convert_field(v, x, src);
    return FM_OK;
}

static void convert_task(void *arg, int i)
{
    struct conversion *v = arg;
    struct piece x;
    struct fm_err err = {0};
    if (is_ending(v, i) || !find_piece(&x, v, i))
        return;
    assert(v->slot->l == -1); /* invariant 5 */
    struct fm_mark mark = fm_scratch_mark();
    bool unread = read_piece(v, &x, &err);
    if (unread || convert_piece(v, &x, &err))
        fail_piece(v, i, &err, unread);
    fm_scratch_release(mark);
}

static int load_layer(struct fm_model *m, struct fm_layer_slot *s, int l, struct fm_err *err)
{
    assert(!m->ahead.running); /* invariant 7 */
    s->l = -1;
    int rc = shape_slot(m, s, l, err);
    if (rc)
        return rc;
    struct fm_layer_tensors *layer = &m->layer[l];
    struct fm_mark mark = fm_scratch_mark();
    size_t shares = FM_READING_SUMS * layer->places * sizeof(struct fm_digest);
    struct conversion v = {.m = m,
                           .layer = layer,
                           .slot = s,
                           .l = l,
                           .pieces = layer->fused ? m->config.E : 1,
                           .failed = INT_MAX,
                           .summing = !m->summed[l],
                           .shares = fm_scratch(shares),
                           .lock = PTHREAD_MUTEX_INITIALIZER};
    memset(v.shares, 0, shares);
    fm_pool_for((int)layer->places * v.pieces, convert_task, &v);
    join_shares(&v);
    fm_scratch_release(mark);
    pthread_mutex_destroy(&v.lock);
    /* If the sums differ, report that these are other weights, rather than an invalid value. */
    if (!v.unread && note_sum(m, l, &v.sum, err))
        return err->code;
    if (v.failed != INT_MAX) {
        *err = v.err;
        return err->code;
    }
    if (fm_source_unchanged(&m->tensors, err))
        return err->code;
    layer->checked = true;
    assert(v.failed == INT_MAX && !v.unread); /* invariant 5 */
    s->l = l;
    return FM_OK;
}

/* ---- reading ahead ---- */

/* While a layer is computed, a thread asks the kernel to read ahead the bytes of the next one.
 * Reading from disk then overlaps with computation, and the process needs no extra memory. */
static void *look_ahead(void *arg)
{
    struct fm_model *m = arg;
    const struct fm_layer_tensors *layer = &m->layer[m->ahead.l];
    for (size_t i = 0; i < layer->places; i++) {
        const struct fm_stored *at = &layer->place[i].at;
        fm_file_expect(at->file, at->tensor->offset, at->tensor->size, &m->ahead.enough);
        if (at->scale)
            fm_file_expect(at->scale_file, at->scale->offset, at->scale->size, &m->ahead.enough);
    }
    return NULL;
}

void fm_loading_end_prefetch(struct fm_model *m)
{
    atomic_store(&m->ahead.enough, true);
    if (m->ahead.running)
        pthread_join(m->ahead.thread, NULL);
    m->ahead.running = false;
}

/* ---- layers ---- */

int fm_model_layer(struct fm_model *m, int l, int next, const struct fm_layer **layer,
                   struct fm_err *err)
{
    assert(l >= 0 && l < m->config.L && next >= -1 && next < m->config.L);
    struct fm_layer_slot *s = slot_of(m, l);
    int before = fm_pool_label(FM_POOL_READING);
    fm_loading_end_prefetch(m);
    FM_TRACE(FM_TRACE_LOAD, "layer %d of %s, %s", l, m->path,
             s->l == l ? "in memory" : "from the file");
    int rc = s->l == l ? FM_OK : load_layer(m, s, l, err);
    fm_pool_label(before);
    if (rc)
        return rc;
    assert(s->l == l &&
           (s->l < m->pinned ? s == &m->slot[l] : s == &m->slot[m->pinned])); /* invariant 6 */
    *layer = &s->layer;
    if (next >= 0 && slot_of(m, next)->l != next) {
        m->ahead.l = next;
        atomic_store(&m->ahead.enough, false);
        m->ahead.running = fm_signals_thread(&m->ahead.thread, look_ahead, m) == 0;
    }
    return FM_OK;
}

int fm_model_sums(struct fm_model *m, struct fm_reading_sums *sums, const atomic_int *stop,
                  struct fm_err *err)
{
    const atomic_int *before = fm_pool_heed(stop);
    const struct fm_layer *layer;
    const struct fm_nonlayer *nonlayer;
    int rc = m->summed[m->config.L] ? FM_OK : fm_model_nonlayer(m, &nonlayer, err);
    for (int l = 0; l < m->config.L && !rc; l++)
        rc = m->summed[l] ? FM_OK : fm_model_layer(m, l, -1, &layer, err);
    fm_pool_heed(before);
    *sums = m->sums;
    return rc;
}
