/*
 * Opening a model does everything that needs no weights: it finds each tensor and checks its shape,
 * refuses tensors that do not belong to the model, and determines how many layers fit into memory.
 * After that, reading a layer fails only if the disk or memory fails, a file has changed, a value
 * or scale is invalid, a scale or factor that belongs to no channel is missing, the weights are not
 * the wanted ones, or the run is asked to stop.
 */
#include "lib/model/model.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "formats/quant/quant.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/pool.h"
#include "lib/model/loading.h"

/* Set the widths (M, E) to those of an export. */
static int read_caps(struct fm_model *m, const cJSON *json, struct fm_err *err)
{
    const struct fm_config *c = &m->config;
    if (cJSON_GetArraySize(json) != c->L)
        return fm_fail(err, FM_EFORMAT, "%s: %d lists of widths for %d layers", m->path,
                       cJSON_GetArraySize(json), c->L);
    uint32_t *cap = m->caps;
    int l = 0;
    const cJSON *layer, *width;
    cJSON_ArrayForEach(layer, json)
    {
        int experts = fm_config_moe(c, l++) < 0 ? 0 : c->E;
        if (cJSON_GetArraySize(layer) != experts)
            return fm_fail(err, FM_EFORMAT, "%s: layer %d has %d widths for %d experts", m->path,
                           l - 1, cJSON_GetArraySize(layer), experts);
        cJSON_ArrayForEach(width, layer)
        {
            double k = cJSON_IsNumber(width) ? width->valuedouble : -1;
            if (!(k >= 0 && k <= c->I) || k != (double)(uint32_t)k)
                return fm_fail(err, FM_EFORMAT, "%s: a width is not an integer from 0 to %d",
                               m->path, c->I);
            *cap++ = (uint32_t)k;
        }
    }
    assert(cap == m->caps + (size_t)c->M * (size_t)c->E); /* by the checks of both lengths */
    return FM_OK;
}

/* Set the widths: those that an export records, else I. */
static int find_caps(struct fm_model *m, struct fm_err *err)
{
    size_t n = (size_t)m->config.M * (size_t)m->config.E;
    m->caps = fm_alloc(n, sizeof *m->caps, "expert widths", err);
    if (!m->caps)
        return err->code;
    for (size_t i = 0; i < n; i++)
        m->caps[i] = (uint32_t)m->config.I;
    return m->tensors.widths ? read_caps(m, m->tensors.widths, err) : FM_OK;
}

/* Find the tensors of codes of an export whose config.json names a storage. */
static int find_codes(struct fm_model *m, struct fm_err *err)
{
    const struct fm_config *c = &m->config;
    char scales[FM_ST_NAME_BYTES_MAX + 1];
    fm_packed_name_scales(scales, c, m->tensors.naming);
    const struct fm_stored *s = fm_source_find(&m->tensors, scales);
    if (!s)
        return fm_fail(err, FM_EFORMAT, "%s: tensor '%s' is missing", m->path, scales);
    if (fm_packed_of(&m->packed, c, s->tensor->dtype, err))
        return fm_within(err, "%s", m->path);
    return FM_OK;
}

/* Check that experts of codes have whole channel groups. */
static int check_groups(const struct fm_model *m, struct fm_err *err)
{
    uint32_t group = m->packed.storage ? (uint32_t)m->packed.group : 1;
    for (int i = 0; i < m->config.M * m->config.E; i++)
        if (m->caps[i] % group != 0)
            return fm_fail(err, FM_EFORMAT,
                           "%s: a width is %u, but its %s codes have groups of %u channels",
                           m->path, m->caps[i], m->packed.storage->name, group);
    return FM_OK;
}

/* Whether the name of a tensor contains `part`. */
static bool has_name(const struct fm_tensors *t, const char *part)
{
    for (size_t i = 0; i < t->entries; i++)
        if (strstr(t->entry[i].tensor->name, part))
            return true;
    return false;
}

/* How layer l's experts are stored in a bundle or an export of codes. */
static const struct fm_packed *packed_of(const struct fm_model *m, int l)
{
    return fm_packed_at(&m->packed, fm_config_moe(&m->config, l));
}

/* Whether a weight of layer l is stored in the form that packed_of returns. */
static bool is_packed(const struct fm_model *m, const struct fm_weight *w, int l)
{
    return m->packed.storage && fm_weights_is_expert(w) && fm_config_moe(&m->config, l) >= 0 &&
           fm_packed_find(packed_of(m, l), w->part, 0);
}

/* Check the shape of a layer's tensor of codes or scales.  In exports, experts have only their
 * remaining channels, concatenated. */
static int check_packed(const struct fm_model *m, const struct fm_packed_part *part, int l,
                        const struct fm_tensor *t, struct fm_err *err)
{
    struct fm_packed_part flat = fm_packed_flat(packed_of(m, l), part, fm_loading_channels(m, l));
    return fm_packed_check(m->tensors.bundle.file.path ? part : &flat, t, err);
}

/* Find codes of a bundle or an export, and their scales. */
static int find_packed(struct fm_model *m, struct fm_model_tensor *p, const struct fm_weight *w,
                       int l, struct fm_err *err)
{
    char name[FM_WEIGHT_NAME_BYTES], scales[FM_WEIGHT_NAME_BYTES + 8];
    const struct fm_packed_part *own = fm_packed_find(packed_of(m, l), w->part, 1);
    fm_weights_name(name, w->name[m->tensors.naming], l, -1);
    snprintf(scales, sizeof scales, "%s" FM_PACKED_SCALE, name);
    *p = (struct fm_model_tensor){.weight = w, .part = w->part, .expert = -1};
    p->packed = fm_packed_find(packed_of(m, l), w->part, 0);
    assert(p->packed); /* is_packed */
    const struct fm_stored *codes = fm_source_find(&m->tensors, name);
    const struct fm_stored *scale = own ? fm_source_find(&m->tensors, scales) : NULL;
    if (!codes || (own && !scale))
        return fm_fail(err, FM_EFORMAT, "%s: tensor '%s' is missing", m->path,
                       codes ? scales : name);
    p->at = *codes;
    if (own) {
        p->at.scale = scale->tensor;
        p->at.scale_file = scale->file;
    }
    if (check_packed(m, p->packed, l, p->at.tensor, err) ||
        (own && check_packed(m, own, l, p->at.scale, err)))
        return fm_within(err, "%s", m->path);
    return FM_OK;
}

/* FM_EFORMAT for a missing weight; the message names its codes if their scales exist. */
static int fail_missing(const struct fm_model *m, const struct fm_weight *w, int l, int e,
                        const char *name, struct fm_err *err)
{
    char codes[FM_ST_NAME_BYTES_MAX + 1], own[FM_ST_NAME_BYTES_MAX + 1];
    if (m->draft && l == fm_extra_twin_layer(&m->config))
        name = fm_extra_of_twin(own, &m->config, name);
    const struct fm_stored *scale = fm_source_weight(&m->tensors, FM_STORED_SCALE, w, l, e);
    const struct fm_storage *storage = scale ? scale->scheme.storage : NULL;
    if (storage) {
        fm_stored_name(codes, storage, name, storage->codes_end);
        name = codes;
    }
    return fm_fail(err, FM_EFORMAT, "%s: tensor '%s' is missing", m->path, name);
}

static int find_place(struct fm_model *m, struct fm_model_tensor *p, const struct fm_weight *w,
                      int l, int e, struct fm_err *err)
{
    char name[FM_WEIGHT_NAME_BYTES];
    if (is_packed(m, w, l))
        return find_packed(m, p, w, l, err);
    fm_weights_name(name, w->name[m->tensors.naming], l, e);
    const struct fm_stored *at = fm_source_stored(&m->tensors, w, l, e);
    if (!at && e < 0 && fm_weights_is_expert(w) && has_name(&m->tensors, ".experts.0."))
        return fm_fail(
            err, FM_ECONFIG,
            "%s: its experts are separate (experts.0), but '%s' must have all experts of "
            "the layer for %s; use the original checkpoint, or join the experts as "
            "transformers saves them",
            m->path, name, m->config.type);
    if (!at && e >= 0 && has_name(&m->tensors, ".experts.gate_up_proj"))
        return fm_fail(err, FM_ECONFIG, /* as transformers 5 keeps them in memory */
                       "%s: its experts are fused (experts.gate_up_proj); save the model from "
                       "transformers with save_original_format=True",
                       m->path);
    if (!at)
        return fail_missing(m, w, l, e, name, err);
    *p = (struct fm_model_tensor){.weight = w, .expert = e, .at = *at};
    uint64_t channels = l < 0 ? 0 : fm_loading_channels(m, l);
    if (fm_stored_check(&p->at, err) ||
        fm_stored_check_weight(&p->part, &p->at, &m->config, w, l, channels, err))
        return fm_within(err, "%s", m->path);
    return FM_OK;
}

static int compare_places(const void *a, const void *b)
{
    const struct fm_model_tensor *p = a, *q = b;
    if (p->at.file != q->at.file)
        return p->at.file < q->at.file ? -1 : 1;
    uint64_t a_at = p->at.tensor->offset, b_at = q->at.tensor->offset;
    return (a_at > b_at) - (a_at < b_at);
}

/* All experts must share one dtype: merged weights are rounded to it, and a bundle stores all
 * experts in it. */
static int check_dtype(struct fm_model *m, const struct fm_model_tensor *p, int l, bool first,
                       struct fm_err *err)
{
    enum fm_dtype dtype =
        p->packed ? packed_of(m, l)->scheme.storage->written : fm_stored_dtype(&p->at);
    if (first)
        m->dtype = dtype;
    if (dtype == m->dtype)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "%s: tensor '%s' is %s, but other experts are %s; convert the "
                   "checkpoint to one dtype",
                   m->path, p->at.tensor->name, fm_dtype_name(p->at.tensor->dtype),
                   fm_dtype_name(m->dtype));
}

static uint64_t place_bytes(const struct fm_stored *at)
{
    return at->tensor->size + (at->scale ? at->scale->size : 0);
}

/* Count the bytes that reading the layer's tensors takes, in all and for one task: bytes of the
 * file, those of codes twice if they are transposed, scales as floats and, for codes of a bundle or
 * an export, values as floats; if experts are rounded, also their rounded values, and a matrix with
 * its values and codes. */
static void count_bytes(const struct fm_model *m, int l, struct fm_layer_tensors *layer)
{
    layer->bytes = layer->piece = 0;
    for (size_t i = 0; i < layer->places; i++) {
        const struct fm_model_tensor *p = &layer->place[i];
        uint64_t bytes = place_bytes(&p->at) + fm_tensor_scratch(p->at.tensor);
        bool fused = p->expert < 0 && fm_weights_is_expert(p->weight);
        if (p->packed)
            bytes += (uint64_t)fm_tensor_count(p->at.tensor) * 8 * sizeof(float) /
                     (uint64_t)fm_storage_bits(packed_of(m, l)->scheme.storage) *
                     (uint64_t)fm_dtype_bits(p->at.tensor->dtype) / 8;
        assert(p->at.tensor && p->at.file); /* find_place */
        if (p->at.scale)
            bytes += fm_tensor_count(p->at.scale) * sizeof(float);
        if (m->quantiser && fused)
            bytes += fm_stored_count(&p->at) * (2 * sizeof(float) + 4);
        uint64_t piece = fused ? bytes / (uint64_t)m->config.E : bytes;
        layer->bytes += bytes;
        layer->piece = piece > layer->piece ? piece : layer->piece;
    }
}

static int plan_layer(struct fm_model *m, int l, struct fm_err *err)
{
    struct fm_layer_tensors *layer = &m->layer[l];
    const struct fm_config *c = &m->config;
    size_t rows = 0, E = (size_t)c->E;
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++)
        rows++;
    layer->place = fm_alloc(rows * E, sizeof *layer->place, "a list of tensors", err);
    if (!layer->place)
        return err->code;
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++) {
        if (w->part == FM_PART_NONLAYER || !w->name[m->tensors.naming] ||
            !fm_weights_exists(c, w, l))
            continue;
        if (fm_weights_is_carried(w)) { /* no tool computes with it */
            struct fm_model_tensor found = {0};
            if (w->part != FM_PART_SPARE && find_place(m, &found, w, l, -1, err))
                return err->code;
            continue;
        }
        bool each = fm_weights_per_expert(w, m->tensors.naming);
        layer->fused |= fm_weights_is_expert(w) && !each;
        for (int e = 0; e < (each ? c->E : 1); e++) {
            struct fm_model_tensor *p = &layer->place[layer->places++];
            int rc = find_place(m, p, w, l, each ? e : -1, err);
            if (!rc && fm_weights_is_expert(w))
                rc = check_dtype(m, p, l, l == c->moe[0] && !m->dtype, err);
            if (rc)
                return rc;
        }
    }
    assert(layer->places > 0 && layer->places <= rows * E);
    qsort(layer->place, layer->places, sizeof *layer->place, compare_places);
    count_bytes(m, l, layer);
    return FM_OK;
}

static int find_nonlayer(struct fm_model *m, struct fm_err *err)
{
    for (const struct fm_weight *w = m->config.family->weight; fm_weights_more(w); w++) {
        if (w->part != FM_PART_NONLAYER || !fm_weights_exists(&m->config, w, -1))
            continue;
        assert(m->nonlayer_count < (int)(sizeof m->nonlayer_tensor / sizeof *m->nonlayer_tensor));
        int rc = find_place(m, &m->nonlayer_tensor[m->nonlayer_count], w, -1, -1, err);
        if (rc)
            return rc;
        m->nonlayer_count++;
    }
    return FM_OK;
}

/* Whether the tensor is the one that servers write to switch the budget of an elastic export; it is
 * not a weight. */
static bool is_switch(const struct fm_model *m, const char *name)
{
    return m->tensors.naming == FM_NAMING_RAGGED && fm_ends_with(name, ".experts.budget");
}

/* Whether the name is that of scales, or of their factors, for codes in a bundle or an export.
 * Scales are in the codes' file or, if they have no channels, among the other tensors. */
static bool is_packed_scale(const struct fm_model *m, const struct fm_stored *s)
{
    const char *const end[] = {FM_PACKED_SCALE, FM_PACKED_FACTOR}, *name = s->tensor->name;
    if (!m->packed.storage)
        return false;
    for (int i = 0; i < 2; i++) {
        char codes[FM_ST_NAME_BYTES_MAX + 1];
        if (!fm_ends_with(name, end[i]))
            continue;
        snprintf(codes, sizeof codes, "%.*s", (int)(strlen(name) - strlen(end[i])), name);
        const struct fm_stored *of = fm_source_find(&m->tensors, codes);
        if (of && of->weight && is_packed(m, of->weight, of->l))
            return true;
    }
    return fm_stored_belongs(s) && fm_stored_is_expert(s);
}

/* Accept tensors that the model does not use (old buffers, heads of other tasks), but codes among
 * them must have scales, as fm-pack writes their values; refuse those of layers or experts that
 * config.json lacks, and those that config.json switches off. */
static int refuse_stray(struct fm_model *m, const struct fm_stored *s, struct fm_err *err)
{
    const char *name = s->tensor->name;
    int l;
    bool own = s->weight && !fm_stored_belongs(s);
    if ((own && s->role == FM_STORED_VALUES) || is_switch(m, name) || is_packed_scale(m, s))
        return FM_OK;
    int rc = fm_extra_refuse(&m->config, name, err);
    if (rc || fm_extra_add(&m->extra, &m->config, s->tensor))
        return rc;
    rc = fm_stored_check_pair(s, fm_source_find, &m->tensors, err);
    if (rc || own || fm_stored_belongs(s))
        return rc;
    if (fm_weights_is_stray(&m->config, name))
        return fm_fail(err, FM_EFORMAT, "tensor '%s' belongs to no layer or expert of config.json",
                       name);
    if (fm_weights_is_off(&m->config, name, &l))
        return fm_fail(err, FM_EFORMAT,
                       "tensor '%s' exists, but layer %d has no such tensor by config.json; "
                       "correct config.json",
                       name, l);
    return fm_stored_check(s, err);
}

static int refuse_strays(struct fm_model *m, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; i < m->tensors.entries && !rc; i++)
        rc = refuse_stray(m, &m->tensors.entry[i], err);
    if (!rc)
        rc = fm_extra_check(&m->extra, &m->config, err);
    if (!rc)
        rc = fm_source_check(&m->tensors, err);
    return rc ? fm_within(err, "%s", m->path) : FM_OK;
}

static size_t nonlayer_bytes(const struct fm_model *m)
{
    size_t sum = 0;
    for (int i = 0; i < m->nonlayer_count; i++)
        sum += fm_loading_size(fm_stored_count(&m->nonlayer_tensor[i].at),
                               fm_loading_nonlayer(m, &m->nonlayer_tensor[i]));
    return sum;
}

/* Bytes that threads hold while they read a layer. */
static uint64_t pieces_bytes(const struct fm_model *m)
{
    uint64_t most = 0, threads = (uint64_t)fm_pool_threads();
    for (int l = 0; l < m->config.L; l++) {
        const struct fm_layer_tensors *layer = &m->layer[l];
        assert(layer->piece > 0 && layer->piece <= layer->bytes);
        uint64_t bytes =
            threads < layer->bytes / layer->piece ? threads * layer->piece : layer->bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

const struct fm_ops *fm_model_ops(const struct fm_model *m)
{
    return m->ops;
}

int fm_model_pinned(const struct fm_model *m)
{
    return m->pinned;
}

uint64_t fm_model_resident_bytes(const struct fm_model *m)
{
    uint64_t layers = (uint64_t)m->pinned * fm_model_layer_bytes(m);
    if (m->pinned < m->config.L)
        layers += fm_model_layer_bytes(m) + pieces_bytes(m);
    return nonlayer_bytes(m) + layers;
}

/* Set how many layers stay in memory: all, if they fit in addition to the other weights; else as
 * many as fit in addition to a slot for the others and the bytes being read into it. */
static void count_pinned(struct fm_model *m)
{
    uint64_t layer = fm_model_layer_bytes(m), nonlayer = nonlayer_bytes(m), raw = pieces_bytes(m);
    int L = m->config.L;
    uint64_t left = m->memory > nonlayer ? m->memory - nonlayer : 0;
    if (left / layer >= (uint64_t)L)
        m->pinned = L;
    else
        m->pinned = left > layer + raw ? (int)((left - layer - raw) / layer) : 0;
    assert(m->pinned >= 0 && m->pinned <= L);
}

static int plan_slots(struct fm_model *m, struct fm_err *err)
{
    int L = m->config.L;
    m->slot = fm_alloc((size_t)L + 1, sizeof *m->slot, "layer slots", err);
    if (!m->slot)
        return err->code;
    for (int i = 0; i <= L; i++)
        m->slot[i].l = -1;
    count_pinned(m);
    return FM_OK;
}

/* Set the form of the experts of the layer for multi-token prediction, in the place of layer l. */
static void find_form(struct fm_model *m, int l)
{
    char name[FM_WEIGHT_NAME_BYTES], own[FM_ST_NAME_BYTES_MAX + 1];
    if (fm_weights_fused_name(name, &m->config, l))
        m->config.fused =
            fm_source_find(&m->tensors, fm_extra_of_twin(own, &m->config, name)) != NULL;
}

/* Open the model at `path`, or in `dir` if that is open; `draft`: fm_model_open_draft. */
static int open_model(struct fm_model **model, const char *path, const struct fm_hfdir *dir,
                      bool draft, uint64_t memory, struct fm_err *err)
{
    *model = NULL;
    struct fm_model *m = fm_alloc(1, sizeof *m, "a model", err);
    if (!m)
        return err->code;
    m->ops = fm_ops_ref();
    m->draft = draft;
    m->memory = memory;
    m->path = fm_strdup(path, err);
    if (!m->path ||
        (dir ? fm_source_borrow(&m->tensors, dir, err) : fm_source_open(&m->tensors, m->path, err)))
        goto fail;
    if (fm_config_parse(&m->config, m->tensors.config, m->tensors.config_bytes, err)) {
        fm_within(err, "%s", path);
        goto fail;
    }
    char name[FM_WEIGHT_NAME_BYTES]; /* if the family allows both forms: which one is it? */
    if (m->tensors.naming == FM_NAMING_STOCK &&
        fm_weights_fused_name(name, &m->config, m->config.moe[0]))
        m->config.fused = fm_source_find(&m->tensors, name) != NULL;
    if (fm_packed_in(&m->tensors.bundle) &&
        fm_packed_read(&m->packed, &m->tensors.bundle, &m->config, err))
        goto fail;
    if (m->tensors.naming != FM_NAMING_STOCK && m->config.scheme.storage &&
        !m->tensors.bundle.file.path && find_codes(m, err))
        goto fail;
    m->all = m->packed.storage ? FM_MODEL_EXACT : FM_MODEL_ROUND_ALL;
    if (m->tensors.naming != FM_NAMING_STOCK && !m->packed.storage)
        m->config.scheme.storage =
            NULL; /* the config of the source checkpoint describes how that was stored */
    if (fm_source_resolve(&m->tensors, &m->config, err))
        goto fail;
    if (draft)
        fm_source_draft(&m->tensors, &m->config);
    if (find_caps(m, err) || check_groups(m, err))
        goto fail;
    m->layer = fm_alloc((size_t)m->config.L, sizeof *m->layer, "layer plans", err);
    if (!m->layer || find_nonlayer(m, err))
        goto fail;
    m->sums.L = m->config.L;
    for (int l = 0; l < m->config.L; l++) {
        const bool fused = m->config.fused;
        if (draft && l == fm_extra_twin_layer(&m->config))
            find_form(m, l);
        int rc = plan_layer(m, l, err);
        m->config.fused = fused;
        if (rc)
            goto fail;
    }
    if ((!draft && refuse_strays(m, err)) || plan_slots(m, err))
        goto fail;
    *model = m;
    return FM_OK;
fail:
    fm_model_close(m);
    return err->code;
}

/* Free the resident weights. */
static void drop_weights(struct fm_model *m)
{
    for (int i = 0; m->slot && i <= m->config.L; i++) {
        free(m->slot[i].block);
        free(m->slot[i].row0);
        free(m->slot[i].cap);
        m->slot[i] = (struct fm_layer_slot){.l = -1};
    }
    for (int i = 0; i < m->nonlayer_count; i++)
        free(*(float **)((char *)&m->nonlayer + m->nonlayer_tensor[i].weight->field));
    m->nonlayer = (struct fm_nonlayer){0};
}

void fm_model_limit(struct fm_model *m, uint64_t memory)
{
    m->memory = memory;
    fm_loading_end_prefetch(m);
    drop_weights(m);
    count_pinned(m);
}

void fm_model_use(struct fm_model *m, const struct fm_ops *ops)
{
    bool other = m->ops->operand != ops->operand;
    if (other)
        drop_weights(m);
    m->ops = ops;
    if (other)
        count_pinned(m);
}

bool fm_model_forms(struct fm_packed_layers *layers, const struct fm_model *m,
                    char why[FM_PACKED_WHY])
{
    const struct fm_config *c = &m->config;
    *layers = m->packed;
    if (m->packed.storage)
        return true;
    fm_packed_begin(layers);
    if (c->family->saved_fused && !c->fused) {
        snprintf(why, FM_PACKED_WHY,
                 "%s is exported with the experts of a layer in one tensor, which codes of single "
                 "experts cannot be",
                 c->type);
        return false;
    }
    for (int i = 0; i < c->M; i++) {
        const struct fm_layer_tensors *layer = &m->layer[c->moe[i]];
        for (size_t k = 0; k < layer->places; k++) {
            const struct fm_model_tensor *p = &layer->place[k];
            if (fm_weights_is_expert(p->weight) && p->part != FM_PART_BIAS &&
                !fm_packed_see(layers, c, m->dtype, i, &p->at, why))
                return false;
        }
    }
    return fm_packed_any(layers, c, why);
}

bool fm_model_can_keep(const struct fm_model *m, int group)
{
    struct fm_packed_layers layers;
    char why[FM_PACKED_WHY];
    return m->config.scheme.storage && fm_model_forms(&layers, m, why) && group % layers.group == 0;
}

void fm_model_keep_codes(struct fm_model *m, bool keep)
{
    m->all = keep && m->config.scheme.storage ? FM_MODEL_EXACT : FM_MODEL_ROUND_ALL;
}

void fm_model_round(struct fm_model *m, enum fm_model_rounding rounding)
{
    rounding = rounding == FM_MODEL_ROUND_ALL ? m->all : rounding;
    if (m->rounding == rounding)
        return;
    m->rounding = rounding;
    for (int i = 0; (m->config.scheme.storage || m->quantiser) && i <= m->pinned; i++)
        m->slot[i].l = -1;
    for (int i = 0; i < m->nonlayer_count; i++) {
        float **end = (float **)((char *)&m->nonlayer + m->nonlayer_tensor[i].weight->field);
        if (!m->nonlayer_tensor[i].at.scale)
            continue;
        free(*end);
        *end = NULL;
    }
}

void fm_model_narrow(struct fm_model *m, const uint32_t *widths, enum fm_model_rounding all,
                     const struct fm_quantiser *quantiser, const struct fm_packed *rounded)
{
    assert(m->tensors.bundle.file.path && (!quantiser || rounded));
    for (int i = 0; i < m->config.M * m->config.E; i++)
        assert(widths[i] <= (uint32_t)m->config.I);
    memcpy(m->caps, widths, (size_t)m->config.M * (size_t)m->config.E * sizeof *m->caps);
    m->all = all;
    m->quantiser = quantiser;
    m->rounded = quantiser ? *rounded : (struct fm_packed){0};
    for (int l = 0; l < m->config.L; l++)
        count_bytes(m, l, &m->layer[l]);
    fm_model_limit(m, m->memory);
}

enum fm_dtype fm_model_stored(const struct fm_model *m, int l, size_t field)
{
    const struct fm_layer_tensors *layer = &m->layer[l];
    size_t i = 0;
    while (i < layer->places &&
           (!fm_weights_is_field(layer->place[i].weight) || layer->place[i].weight->field != field))
        i++;
    assert(i < layer->places);
    return fm_stored_dtype(&layer->place[i].at);
}

void fm_model_want(struct fm_model *m, const struct fm_reading_sums *wanted)
{
    m->wanted = wanted;
}

int fm_model_open(struct fm_model **model, const char *path, uint64_t memory, struct fm_err *err)
{
    return open_model(model, path, NULL, false, memory, err);
}

int fm_model_open_dir(struct fm_model **model, const struct fm_hfdir *dir, uint64_t memory,
                      struct fm_err *err)
{
    return open_model(model, dir->path, dir, false, memory, err);
}

/* The tensor of a pattern of struct fm_extra_draft; NULL with FM_EFORMAT. */
static const struct fm_stored *find_joint(const struct fm_model *m, const char *pattern,
                                          struct fm_err *err)
{
    char name[FM_WEIGHT_NAME_BYTES];
    fm_weights_name(name, pattern, -1, fm_extra_number(&m->config));
    const struct fm_stored *s = fm_source_find(&m->tensors, name);
    if (!s)
        fm_fail(err, FM_EFORMAT, "%s: tensor '%s' is missing", m->path, name);
    return s;
}

/* Check a tensor (H) or, unless columns is 0, (H, columns). */
static int check_joint(const struct fm_model *m, const char *pattern, uint64_t columns,
                       struct fm_err *err)
{
    const uint64_t want[2] = {(uint64_t)m->config.H, columns};
    const struct fm_stored *s = find_joint(m, pattern, err);
    if (!s)
        return err->code;
    const struct fm_tensor *t = s->tensor;
    if (fm_weights_check_shape(t, want, columns ? 2 : 1, "config.json requires", err))
        return fm_within(err, "%s", m->path);
    if (!fm_dtype_is_weight(t->dtype))
        return fm_fail(err, FM_ECONFIG, "%s: tensor '%s' is %s; it must be BF16, F16 or F32",
                       m->path, t->name, fm_dtype_name(t->dtype));
    return FM_OK;
}

int fm_model_open_draft(struct fm_model **model, const struct fm_hfdir *dir, struct fm_err *err)
{
    if (open_model(model, dir->path, dir, true, 0, err))
        return err->code;
    const struct fm_model *m = *model;
    const struct fm_extra_draft *d = m->config.family->extra->draft;
    if (check_joint(m, d->enorm, 0, err) || check_joint(m, d->hnorm, 0, err) ||
        check_joint(m, d->proj, 2 * (uint64_t)m->config.H, err) || !find_joint(m, d->norm, err)) {
        fm_model_close(*model);
        *model = NULL;
        return err->code;
    }
    return FM_OK;
}

/* Read a tensor that was checked. */
static int read_joint(struct fm_out to, const struct fm_model *m, const char *pattern,
                      struct fm_err *err)
{
    const struct fm_stored *s = find_joint(m, pattern, err);
    if (!s)
        return err->code;
    const struct fm_tensor *t = s->tensor;
    struct fm_mark mark = fm_scratch_mark();
    size_t n = (size_t)fm_tensor_count(t);
    void *raw = fm_scratch((size_t)t->size);
    int rc = fm_tensor_read(t, s->file, 0, raw, (size_t)t->size, err);
    if (!rc && fm_stored_finite(s, raw, 0, n, err))
        rc = fm_within(err, "%s", m->path);
    if (!rc) {
        float *wide = to.dtype == FM_F32 ? to.data : fm_scratch_floats(n);
        fm_dtype_to_f32(wide, raw, t->dtype, n);
        if (to.dtype != FM_F32)
            fm_dtype_from_f32(to.data, wide, to.dtype, n);
    }
    fm_scratch_release(mark);
    return rc;
}

uint64_t fm_model_joint_bytes(const struct fm_config *c)
{
    return (uint64_t)c->H * (2 + 2 * (uint64_t)c->H) * sizeof(float);
}

int fm_model_joint(struct fm_model_joint *j, const struct fm_model *m, struct fm_err *err)
{
    const struct fm_extra_draft *d = m->config.family->extra->draft;
    size_t H = (size_t)m->config.H;
    assert(m->draft); /* fm_model_open_draft checked these tensors */
    *j = (struct fm_model_joint){0};
    float *all = fm_alloc_large((size_t)fm_model_joint_bytes(&m->config), d->proj, err);
    if (!all)
        return err->code;
    j->owned = j->enorm = all;
    j->hnorm = all + H;
    j->proj = (struct fm_in){all + 2 * H, m->ops->operand, NULL};
    if (read_joint((struct fm_out){j->enorm, FM_F32}, m, d->enorm, err) ||
        read_joint((struct fm_out){j->hnorm, FM_F32}, m, d->hnorm, err) ||
        read_joint((struct fm_out){all + 2 * H, j->proj.dtype}, m, d->proj, err))
        return err->code;
    return fm_source_unchanged(&m->tensors, err);
}

void fm_model_joint_release(struct fm_model_joint *j)
{
    free(j->owned);
    *j = (struct fm_model_joint){0};
}

void fm_model_close(struct fm_model *m)
{
    if (!m)
        return;
    fm_loading_end_prefetch(m);
    for (int l = 0; m->layer && l < m->config.L; l++)
        free(m->layer[l].place);
    drop_weights(m);
    free(m->slot);
    free(m->layer);
    free(m->caps);
    fm_source_close(&m->tensors);
    fm_config_release(&m->config);
    free(m->path);
    free(m);
}

const struct fm_config *fm_model_config(const struct fm_model *m)
{
    return &m->config;
}

enum fm_dtype fm_model_dtype(const struct fm_model *m)
{
    return m->dtype;
}

const struct fm_extra *fm_model_extra(const struct fm_model *m)
{
    return &m->extra;
}

uint64_t fm_model_layers_bytes(const struct fm_model *m, int begin, int end)
{
    uint64_t bytes = 0;
    assert(begin >= 0 && begin <= end && end <= m->config.L);
    for (int l = begin; l < end; l++)
        for (size_t i = 0; i < m->layer[l].places; i++)
            bytes += place_bytes(&m->layer[l].place[i].at);
    return bytes;
}

uint64_t fm_model_nonlayer_bytes(const struct fm_model *m)
{
    uint64_t bytes = 0;
    for (int i = 0; i < m->nonlayer_count; i++)
        bytes += place_bytes(&m->nonlayer_tensor[i].at);
    return bytes;
}

void fm_model_bytes(const struct fm_model *m, uint64_t *stored, uint64_t *written)
{
    fm_source_bytes(&m->tensors, stored, written);
}

const uint32_t *fm_model_caps(const struct fm_model *m)
{
    return m->caps;
}

void fm_model_rank(struct fm_model *m, const int32_t *order)
{
    assert(!order || m->tensors.naming == FM_NAMING_STOCK);
    if (order == m->order)
        return;
    m->order = order;
    for (int i = 0; i <= m->pinned; i++)
        m->slot[i].l = -1;
}
