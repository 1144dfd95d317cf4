/*
 * An adapter has as many channels for an expert as the mask it was trained on keeps, so the shapes
 * in the file identify that mask.  All shapes are checked before memory is allocated: the file must
 * have as many bytes as they require, so a small file cannot cause a large allocation.
 * fm_lorafile_check then compares the shapes with the mask that the manifest names.
 */
#include "lib/stage/lorafile.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/stage/stage.h"
#include "lib/stage/stbytes.h"

static const char *const part_names[FM_LORA_PARTS] = {"gate_A", "gate_B", "up_A",
                                                      "up_B",   "down_A", "down_B"};

/* Rows and columns of a part of an expert of width k. */
static void shape_of(uint64_t shape[2], enum fm_lora part, uint64_t r, uint64_t H, uint64_t k)
{
    switch (part) {
    case FM_GATE_A:
    case FM_UP_A:
        shape[0] = r;
        shape[1] = H;
        return;
    case FM_GATE_B:
    case FM_UP_B:
        shape[0] = k;
        shape[1] = r;
        return;
    case FM_DOWN_A:
        shape[0] = r;
        shape[1] = k;
        return;
    default:
        shape[0] = H;
        shape[1] = r;
    }
}

static void add_expert(struct fm_stbytes *s, const struct fm_adapter *a, int l, int m, int e)
{
    uint64_t shape[2], k = a->widths[(size_t)m * (size_t)a->E + (size_t)e];
    for (int part = 0; part < FM_LORA_PARTS; part++) {
        shape_of(shape, (enum fm_lora)part, (uint64_t)a->r, (uint64_t)a->H, k);
        fm_stbytes_add(s, FM_F32, 2, shape, fm_adapter_part(a, a->values, m, e, (enum fm_lora)part),
                       "layers.%d.experts.%d.%s", l, e, part_names[part]);
    }
}

static void add_router(struct fm_stbytes *s, const struct fm_adapter *a, int l, int m)
{
    const uint64_t shape[2] = {(uint64_t)a->E, (uint64_t)a->H};
    const float *values = fm_adapter_router(a, m);
    fm_stbytes_add(s, FM_F32, 2, shape, values, "layers.%d.router", l);
    if (a->biased)
        fm_stbytes_add(s, FM_F32, 1, shape, values + shape[0] * shape[1], "layers.%d.router_bias",
                       l);
}

static void add_down(struct fm_stbytes *s, const struct fm_adapter *a, int l, int m)
{
    const uint64_t shape[2] = {(uint64_t)a->E * a->widths[0], (uint64_t)a->H};
    fm_stbytes_add(s, a->dtype, 2, shape, fm_adapter_down(a, m, 0), "layers.%d.down", l);
}

int fm_lorafile_pack(const struct fm_adapter *a, const int16_t *moe, void **data, size_t *size,
                     struct fm_err *err)
{
    char rank[16], alpha[32];
    struct fm_stbytes s;
    assert(!a->router || !a->down); /* an adapter is of one kind */
    snprintf(rank, sizeof rank, "%d", a->r);
    snprintf(alpha, sizeof alpha, "%.9g", (double)a->alpha);
    const char *const low_rank[] = {"fm.kind", "adapter", "rank", rank, "alpha", alpha, NULL};
    const char *const other[] = {"fm.kind", "adapter", "train",
                                 a->router ? FM_LORAFILE_ROUTER : FM_LORAFILE_DOWN, NULL};
    size_t layer = a->router ? 2 : a->down ? 1 : (size_t)FM_LORA_PARTS * (size_t)a->E;
    if (fm_stbytes_init(&s, layer * (size_t)a->M, err))
        return err->code;
    for (int m = 0; m < a->M; m++)
        if (a->router)
            add_router(&s, a, moe[m], m);
        else if (a->down)
            add_down(&s, a, moe[m], m);
        else
            for (int e = 0; e < a->E; e++)
                add_expert(&s, a, moe[m], m, e);
    int rc = fm_stbytes_pack(&s, a->router || a->down ? other : low_rank, data, size, err);
    fm_stbytes_release(&s);
    return rc;
}

/* Parse a metadata value that must be a number. */
static int read_number(double *value, const struct fm_stmember *m, const char *key, double min,
                       double max, struct fm_err *err)
{
    const char *text = fm_safetensors_metadata(&m->st, key);
    char *end = NULL;
    *value = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || !(*value >= min && *value <= max))
        return fm_fail(err, FM_EFORMAT, "metadata %s is '%s' (limits %g to %g)", key,
                       text ? text : "", min, max);
    return FM_OK;
}

/* Read the widths from the rows of gate_B. */
static int read_widths(uint32_t *widths, const struct fm_stmember *m,
                       const struct fm_stage_model *model, struct fm_err *err)
{
    char name[FM_STBYTES_NAME];
    for (int i = 0; i < model->M * model->E; i++) {
        snprintf(name, sizeof name, "layers.%d.experts.%d.gate_B", model->moe[i / model->E],
                 i % model->E);
        const struct fm_tensor *t = fm_safetensors_find(&m->st, name);
        if (!t || t->dims != 2)
            return fm_fail(err, FM_EFORMAT, "tensor '%s' is missing or not a matrix", name);
        if (t->shape[0] > (uint64_t)model->I)
            return fm_fail(err, FM_EFORMAT,
                           "tensor '%s' has %llu rows, but an expert has %d channels", name,
                           (unsigned long long)t->shape[0], model->I);
        widths[i] = (uint32_t)t->shape[0];
    }
    return FM_OK;
}

/* Read a tensor into `to`; if that is NULL, only check its shape. */
static int read_part(float *to, const struct fm_stmember *m, const char *name, int dims,
                     const uint64_t *shape, struct fm_err *err)
{
    const void *from = fm_stmember_get(m, FM_F32, dims, shape, err, "%s", name);
    if (!from)
        return err->code;
    size_t count = (size_t)(shape[0] * (dims > 1 ? shape[1] : 1));
    if (!to || !count)
        return FM_OK;
    memcpy(to, from, count * sizeof *to);
    size_t bad = fm_dtype_nonfinite(to, FM_F32, count);
    if (bad < count)
        return fm_fail(err, FM_EFORMAT, "%s holds %g at element %zu", name, (double)to[bad], bad);
    return FM_OK;
}

static int read_parts(struct fm_adapter *a, const struct fm_stmember *m,
                      const struct fm_stage_model *model, int r, const uint32_t *widths,
                      struct fm_err *err)
{
    uint64_t shape[2];
    char name[FM_STBYTES_NAME];
    int E = model->E;
    for (int i = 0; i < model->M * E; i++)
        for (int part = 0; part < FM_LORA_PARTS; part++) {
            enum fm_lora p = (enum fm_lora)part;
            shape_of(shape, p, (uint64_t)r, (uint64_t)model->H, widths[i]);
            float *to = a ? fm_adapter_part(a, a->values, i / E, i % E, p) : NULL;
            snprintf(name, sizeof name, "layers.%d.experts.%d.%s", model->moe[i / E], i % E,
                     part_names[p]);
            if (read_part(to, m, name, 2, shape, err))
                return err->code;
        }
    return FM_OK;
}

/* Read the routers' differences into `a`; if that is NULL, only check their shapes. */
static int read_routers(struct fm_adapter *a, const struct fm_stmember *m,
                        const struct fm_stage_model *model, bool biased, struct fm_err *err)
{
    const uint64_t shape[2] = {(uint64_t)model->E, (uint64_t)model->H};
    size_t n = (size_t)(shape[0] * shape[1]), each = n + (biased ? (size_t)model->E : 0);
    char name[FM_STBYTES_NAME];
    for (int i = 0; i < model->M; i++) {
        float *to = a ? a->values + (size_t)i * each : NULL;
        snprintf(name, sizeof name, "layers.%d.router", model->moe[i]);
        if (read_part(to, m, name, 2, shape, err))
            return err->code;
        snprintf(name, sizeof name, "layers.%d.router_bias", model->moe[i]);
        if (biased && read_part(to ? to + n : NULL, m, name, 1, shape, err))
            return err->code;
    }
    return FM_OK;
}

static int read_router_adapter(struct fm_adapter *a, const struct fm_stmember *m,
                               const struct fm_stage_model *model, struct fm_err *err)
{
    size_t M = (size_t)model->M;
    bool biased = m->st.count == 2 * M;
    if (m->st.count != M && !biased)
        return fm_fail(err, FM_EFORMAT, "has %zu tensors, but %zu layers have one or two each",
                       m->st.count, M);
    if (read_routers(NULL, m, model, biased, err) ||
        fm_adapter_init_routers(a, model->M, model->E, model->H, biased, err))
        return err->code;
    return read_routers(a, m, model, biased, err);
}

static int read_down(struct fm_adapter *a, const struct fm_stmember *m,
                     const struct fm_stage_model *model, struct fm_err *err)
{
    const uint64_t shape[2] = {(uint64_t)model->E * (uint64_t)model->I, (uint64_t)model->H};
    size_t count = (size_t)(shape[0] * shape[1]);
    char name[FM_STBYTES_NAME];
    if (m->st.count != (size_t)model->M)
        return fm_fail(err, FM_EFORMAT, "has %zu tensors where the model needs %d", m->st.count,
                       model->M);
    for (int i = 0; i < model->M; i++) {
        snprintf(name, sizeof name, "layers.%d.down", model->moe[i]);
        const void *from = fm_stmember_get(m, model->dtype, 2, shape, err, "%s", name);
        if (!from)
            return err->code;
        if (i == 0 &&
            fm_adapter_init_down(a, model->M, model->E, model->H, model->I, model->dtype, err))
            return err->code;
        void *to = fm_adapter_down(a, i, 0);
        memcpy(to, from, count * (size_t)fm_dtype_bits(model->dtype) / 8);
        size_t bad = fm_dtype_nonfinite(to, model->dtype, count); /* `from` may not be aligned */
        if (bad < count)
            return fm_fail(err, FM_EFORMAT, "%s has a value that is not finite, element %zu", name,
                           bad);
    }
    return FM_OK;
}

static int read_adapter(struct fm_adapter *a, const struct fm_stmember *m,
                        const struct fm_stage_model *model, uint32_t *widths, struct fm_err *err)
{
    double rank, alpha;
    const char *train = fm_safetensors_metadata(&m->st, "train");
    if (train && strcmp(train, FM_LORAFILE_DOWN) == 0)
        return read_down(a, m, model, err);
    if (train && strcmp(train, FM_LORAFILE_ROUTER) != 0)
        return fm_fail(err, FM_EFORMAT, "metadata train is '%s', not '%s' or '%s'", train,
                       FM_LORAFILE_ROUTER, FM_LORAFILE_DOWN);
    if (train)
        return read_router_adapter(a, m, model, err);
    size_t tensors = (size_t)FM_LORA_PARTS * (size_t)model->M * (size_t)model->E;
    if (m->st.count != tensors)
        return fm_fail(err, FM_EFORMAT, "has %zu tensors where the model needs %zu", m->st.count,
                       tensors);
    if (read_number(&rank, m, "rank", 1, FM_LORA_RANK_MAX, err) ||
        read_number(&alpha, m, "alpha", -1e9, 1e9, err) || read_widths(widths, m, model, err))
        return err->code;
    if (rank != floor(rank))
        return fm_fail(err, FM_EFORMAT, "metadata rank is %g", rank);
    if (read_parts(NULL, m, model, (int)rank, widths, err) ||
        fm_adapter_init(a, model->M, model->E, model->H, (int)rank, (float)alpha, widths, err))
        return err->code;
    return read_parts(a, m, model, (int)rank, widths, err);
}

int fm_lorafile_open(struct fm_adapter *a, const struct fm_bundle *b, struct fm_err *err)
{
    struct fm_stage_model model;
    struct fm_stmember m;
    *a = (struct fm_adapter){0};
    if (fm_stage_model_read(&model, b, err) ||
        fm_stmember_open(&m, b, FM_MEMBER_ADAPTER, "adapter", err))
        return err->code;
    uint32_t *widths =
        fm_alloc((size_t)model.M * (size_t)model.E, sizeof *widths, "adapter widths", err);
    int rc = widths ? read_adapter(a, &m, &model, widths, err) : err->code;
    if (rc) {
        fm_within(err, "%s: %s", b->file.path, FM_MEMBER_ADAPTER);
        fm_adapter_release(a);
    }
    free(widths);
    fm_stmember_close(&m);
    return rc;
}

/* Check the widths: strategy single adapts the channels of the named mask, cross those of the full
 * mask. */
static int check_widths(const struct fm_adapter *a, const int16_t *moe, const struct fm_masks *f,
                        const char *strategy, int64_t index, struct fm_err *err)
{
    bool cross = strcmp(strategy, "cross") == 0;
    if (!cross && strcmp(strategy, "single") != 0)
        return fm_fail(err, FM_EFORMAT, "strategy is '%s'", strategy);
    if (a->r == 0)
        return FM_OK;
    assert(cross || index >= 0); /* read_index(): only down projections have none */
    const uint32_t *widths = fm_masks_widths(f, cross ? 0 : (int)index);
    for (int i = 0; i < a->M * a->E; i++)
        if (a->widths[i] != widths[i])
            return fm_fail(err, FM_EFORMAT,
                           "layer %d, expert %d: the adapter has %u channels, but mask %d has %u",
                           moe[i / a->E], i % a->E, a->widths[i], cross ? 0 : (int)index,
                           widths[i]);
    return FM_OK;
}

/* Check the list of masks for which down projections were solved. */
static int check_served(const cJSON *note, const struct fm_masks *f, const char *strategy,
                        int64_t index, struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(note, "served"), *one;
    bool single = strcmp(strategy, "single") == 0;
    int64_t mask = -1;
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (n < 1 || n > (single ? 1 : FM_LORAFILE_SERVED))
        return fm_fail(err, FM_EFORMAT, "strategy %s, but 'served' has %d masks", strategy, n);
    cJSON_ArrayForEach(one, list)
    {
        double weight = 0;
        if (fm_json_get_int(one, "budget_index", mask + 1, f->count - 1, &mask, err) ||
            fm_json_opt_double(one, "weight", 0, 1e9, &weight, err))
            return fm_within(err, "'served'");
        if (!(weight > 0) || (single && mask != index))
            return fm_fail(err, FM_EFORMAT, "'served' has mask %d with weight %g", (int)mask,
                           weight);
    }
    return FM_OK;
}

/* The mask for which an adapter was made; -1 for down projections that serve several. */
static int read_index(int64_t *index, const struct fm_adapter *a, const cJSON *note,
                      const char *strategy, const struct fm_masks *f, struct fm_err *err)
{
    *index = -1;
    if (!a->down || strcmp(strategy, "cross") != 0)
        return fm_json_get_int(note, "budget_index", 0, f->count - 1, index, err);
    return !fm_json_has(note, "budget_index")
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "'budget_index' must be absent with strategy cross");
}

static int check_note(const struct fm_adapter *a, const int16_t *moe, const cJSON *note,
                      const struct fm_masks *f, struct fm_err *err)
{
    int64_t rank = 0, index;
    bool low_rank = a->r > 0;
    double alpha = low_rank ? NAN : 0; /* NAN differs from every number */
    const char *strategy, *train = fm_json_string_value(note, "train");
    const char *own = a->router ? FM_LORAFILE_ROUTER : a->down ? FM_LORAFILE_DOWN : "experts";
    if (strcmp(own, train ? train : "experts") != 0)
        return fm_fail(err, FM_EFORMAT, "is of '%s'; the manifest says '%s'", own,
                       train ? train : "experts");
    if ((low_rank && (fm_json_get_int(note, "rank", 1, FM_LORA_RANK_MAX, &rank, err) ||
                      fm_json_opt_double(note, "alpha", -1e9, 1e9, &alpha, err))) ||
        fm_json_get_string(note, "strategy", &strategy, err) ||
        read_index(&index, a, note, strategy, f, err))
        return err->code;
    if (rank != a->r || (float)alpha != a->alpha)
        return fm_fail(err, FM_EFORMAT, "rank %d, alpha %g; the manifest says %d, %g", a->r,
                       (double)a->alpha, (int)rank, alpha);
    if (check_widths(a, moe, f, strategy, index, err))
        return err->code;
    return a->down ? check_served(note, f, strategy, index, err) : FM_OK;
}

int fm_lorafile_check(const struct fm_adapter *a, const struct fm_bundle *b,
                      const struct fm_masks *masks, struct fm_err *err)
{
    const cJSON *note = cJSON_GetObjectItemCaseSensitive(b->manifest, "adapter");
    struct fm_stage_model model;
    assert(a->M == masks->M && a->E == masks->E);
    int rc = fm_stage_model_read(&model, b, err);
    if (!rc)
        rc = note ? check_note(a, model.moe, note, masks, err)
                  : fm_fail(err, FM_EFORMAT, "the manifest has no 'adapter'");
    return rc ? fm_within(err, "%s: %s", b->file.path, FM_MEMBER_ADAPTER) : FM_OK;
}
