#include "lib/model.h"

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/convert.h"
#include "lib/source.h"

/* A tensor of a layer: where it lies, what it becomes. */
struct place {
    const struct fm_weight *weight;
    int expert; /* -1: not one expert's */
    const struct fm_tensor *tensor;
    const struct fm_file *file;
    size_t raw; /* offset in the raw buffer */
};

/* What one layer needs: its tensors in file order. */
struct layer_plan {
    struct place *place;
    size_t places;
    size_t raw_bytes, floats;
    bool checked; /* every weight was seen to be finite */
};

/* Memory for one layer. */
struct slot {
    int l; /* resident layer, -1: none */
    float *block;
    struct fm_layer layer;
};

/* A thread that reads raw bytes of a layer ahead. */
struct prefetch {
    pthread_t thread;
    bool running;
    int rc;
    struct fm_err err;
};

struct fm_model {
    char *path;
    struct fm_tensors tensors;
    struct fm_config config;
    enum fm_dtype dtype;
    uint32_t *caps; /* (L, E) */
    const int32_t *order;
    struct layer_plan *plan; /* (L) */
    struct place end[4];
    int ends_count;
    struct fm_ends ends;
    const char **unknown;
    size_t unknowns;
    int pinned;        /* layers [0, pinned) stay; the others take turns in one slot */
    struct slot *slot; /* (pinned + 1) */
    char *raw;         /* bytes of layer raw_l as the file has them */
    int raw_l;
    struct prefetch ahead;
};

static size_t channels_of(const struct fm_model *m, int l)
{
    size_t sum = 0, E = (size_t)m->config.E;
    for (size_t e = 0; e < E; e++)
        sum += m->caps[(size_t)l * E + e];
    return sum;
}

/* (L, E) widths from a JSON array of arrays. */
static int read_caps(struct fm_model *m, const cJSON *json, struct fm_err *err)
{
    const struct fm_config *c = &m->config;
    if (cJSON_GetArraySize(json) != c->L)
        return fm_fail(err, FM_EFORMAT, "%s: %d lists of widths for %d layers", m->path,
                       cJSON_GetArraySize(json), c->L);
    uint32_t *cap = m->caps;
    const cJSON *layer, *width;
    cJSON_ArrayForEach(layer, json)
    {
        if (cJSON_GetArraySize(layer) != c->E)
            return fm_fail(err, FM_EFORMAT, "%s: a layer has %d widths for %d experts", m->path,
                           cJSON_GetArraySize(layer), c->E);
        cJSON_ArrayForEach(width, layer)
        {
            double k = cJSON_IsNumber(width) ? width->valuedouble : 0;
            if (!(k >= 1 && k <= c->I) || k != (double)(uint32_t)k)
                return fm_fail(err, FM_EFORMAT, "%s: a width is no integer from 1 to %d", m->path,
                               c->I);
            *cap++ = (uint32_t)k;
        }
    }
    return FM_OK;
}

/* Widths on disk: an export says them, everything else is full. */
static int find_caps(struct fm_model *m, struct fm_err *err)
{
    const struct fm_tensors *t = &m->tensors;
    size_t n = (size_t)m->config.L * (size_t)m->config.E;
    m->caps = fm_alloc(n, sizeof *m->caps, "expert widths", err);
    if (!m->caps)
        return err->code;
    for (size_t i = 0; i < n; i++)
        m->caps[i] = (uint32_t)m->config.I;
    bool ragged = t->source == FM_SOURCE_RAGGED;
    if (!ragged && !(t->source == FM_SOURCE_ONLINE && t->export))
        return FM_OK;
    cJSON *json = NULL;
    int rc = ragged ? fm_json_tree(&json, t->config, t->config_bytes, err)
                    : fm_json_tree(&json, t->export, t->export_bytes, err);
    if (!rc)
        rc = read_caps(m, cJSON_GetObjectItemCaseSensitive(json, ragged ? "fm_widths" : "widths"),
                       err);
    cJSON_Delete(json);
    return rc;
}

static int find_place(struct fm_model *m, struct place *p, const struct fm_weight *w, int l, int e,
                      struct fm_err *err)
{
    char name[FM_WEIGHT_NAME_BYTES];
    fm_weights_name(name, w->name[m->tensors.source], l, e);
    *p = (struct place){.weight = w, .expert = e};
    p->tensor = fm_source_find(&m->tensors, name, &p->file);
    if (!p->tensor)
        return fm_fail(err, FM_EFORMAT, "%s: tensor '%s' is missing", m->path, name);
    if (fm_weights_check(&m->config, w, p->tensor, l < 0 ? 0 : channels_of(m, l), err))
        return fm_within(err, "%s", m->path);
    return FM_OK;
}

static bool per_expert(const struct fm_weight *w)
{
    return fm_weights_is_expert(w);
}

static bool holds_experts(const struct fm_weight *w)
{
    return w->part != FM_PART_ENDS && w->part != FM_PART_LAYER;
}

static int compare_places(const void *a, const void *b)
{
    const struct place *p = a, *q = b;
    if (p->file != q->file)
        return p->file < q->file ? -1 : 1;
    return (p->tensor->offset > q->tensor->offset) - (p->tensor->offset < q->tensor->offset);
}

/* Experts share one dtype: what merged weights are rounded to, and what a bundle stores. */
static int check_dtype(struct fm_model *m, const struct place *p, bool first, struct fm_err *err)
{
    if (first)
        m->dtype = p->tensor->dtype;
    if (p->tensor->dtype == m->dtype)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "%s: tensor '%s' is %s, other experts are %s; convert the "
                   "checkpoint to one dtype",
                   m->path, p->tensor->name, fm_dtype_name(p->tensor->dtype),
                   fm_dtype_name(m->dtype));
}

static int plan_layer(struct fm_model *m, int l, struct fm_err *err)
{
    struct layer_plan *plan = &m->plan[l];
    const struct fm_config *c = &m->config;
    size_t rows = 0, E = (size_t)c->E, H = (size_t)c->H, heads = (size_t)c->Q + (size_t)c->G;
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++)
        rows++;
    plan->place = fm_alloc(rows * E, sizeof *plan->place, "a list of tensors", err);
    if (!plan->place)
        return err->code;
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++) {
        if (w->part == FM_PART_ENDS || !w->name[m->tensors.source])
            continue;
        for (int e = 0; e < (per_expert(w) ? c->E : 1); e++) {
            struct place *p = &plan->place[plan->places++];
            int rc = find_place(m, p, w, l, per_expert(w) ? e : -1, err);
            if (!rc && holds_experts(w))
                rc = check_dtype(m, p, l == 0 && !m->dtype, err);
            if (rc)
                return rc;
        }
    }
    qsort(plan->place, plan->places, sizeof *plan->place, compare_places);
    for (size_t i = 0; i < plan->places; i++) {
        struct place *p = &plan->place[i];
        p->raw = plan->raw_bytes;
        plan->raw_bytes += (p->tensor->size + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
    }
    plan->floats = (2 * heads * (size_t)c->C + E + 2 + 3 * channels_of(m, l)) * H + 16 * 16;
    return FM_OK;
}

static int plan_ends(struct fm_model *m, struct fm_err *err)
{
    for (const struct fm_weight *w = m->config.family->weight; fm_weights_more(w); w++) {
        if (w->part != FM_PART_ENDS || (w->untied && m->config.tied))
            continue;
        assert(m->ends_count < (int)(sizeof m->end / sizeof *m->end));
        int rc = find_place(m, &m->end[m->ends_count++], w, -1, -1, err);
        if (rc)
            return rc;
    }
    return FM_OK;
}

/* A tensor nobody uses, of an expert or layer that config.json does not know (experts.8 of 8,
 * layers.-1, experts.007): the config and the weights are not of one model. */
static bool is_stray(const struct fm_config *c, const char *name)
{
    static const char layers[] = "model.layers.";
    if (strstr(name, ".experts."))
        return true;
    if (strncmp(name, layers, sizeof layers - 1) != 0)
        return false;
    char canonical[32];
    long l = strtol(name + sizeof layers - 1, NULL, 10);
    snprintf(canonical, sizeof canonical, "%ld.", l);
    return l < 0 || l >= c->L ||
           strncmp(name + sizeof layers - 1, canonical, strlen(canonical)) != 0;
}

static int list_unknown(struct fm_model *m, struct fm_err *err)
{
    int l, e;
    size_t all = 0;
    for (size_t i = 0; i < m->tensors.files; i++)
        all += m->tensors.file[i].st->count;
    m->unknown = fm_alloc(all, sizeof *m->unknown, "a list of tensors", err);
    if (!m->unknown)
        return err->code;
    for (size_t i = 0; i < m->tensors.files; i++) {
        const struct fm_safetensors *st = m->tensors.file[i].st;
        for (size_t t = 0; t < st->count; t++) {
            const char *name = st->tensor[t].name;
            if (fm_weights_find(&m->config, m->tensors.source, name, &l, &e))
                continue;
            if (is_stray(&m->config, name))
                return fm_fail(err, FM_EFORMAT,
                               "%s: tensor '%s' belongs to no layer or expert of config.json",
                               m->path, name);
            m->unknown[m->unknowns++] = name;
        }
    }
    return FM_OK;
}

static size_t ends_bytes(const struct fm_model *m)
{
    size_t floats = 0;
    for (int i = 0; i < m->ends_count; i++)
        floats += (size_t)fm_tensor_count(m->end[i].tensor);
    return floats * sizeof(float);
}

uint64_t fm_model_layer_bytes(const struct fm_model *m)
{
    size_t most = 0;
    for (int l = 0; l < m->config.L; l++)
        most = m->plan[l].floats > most ? m->plan[l].floats : most;
    return most * sizeof(float);
}

/* How many layers stay: all, if they fit beside the ends, else what fits beside a slot for the
 * others and the bytes that are read ahead. */
static int plan_slots(struct fm_model *m, uint64_t memory, struct fm_err *err)
{
    uint64_t layer = fm_model_layer_bytes(m), ends = ends_bytes(m), raw = 0;
    int L = m->config.L;
    for (int l = 0; l < L; l++)
        raw = m->plan[l].raw_bytes > raw ? m->plan[l].raw_bytes : raw;
    uint64_t left = memory > ends ? memory - ends : 0;
    if (left / layer >= (uint64_t)L)
        m->pinned = L;
    else
        m->pinned = left > layer + raw ? (int)((left - layer - raw) / layer) : 0;
    m->slot = fm_alloc((size_t)m->pinned + 1, sizeof *m->slot, "layer slots", err);
    if (!m->slot)
        return err->code;
    for (int i = 0; i <= m->pinned; i++)
        m->slot[i].l = -1;
    m->raw_l = -1;
    return FM_OK;
}

int fm_model_open(struct fm_model **model, const char *path, uint64_t memory, struct fm_err *err)
{
    *model = NULL;
    struct fm_model *m = fm_alloc(1, sizeof *m, "a model", err);
    if (!m)
        return err->code;
    m->path = fm_strdup(path, err);
    int rc = m->path ? fm_source_open(&m->tensors, m->path, err) : err->code;
    if (!rc && fm_config_parse(&m->config, m->tensors.config, m->tensors.config_bytes, err))
        rc = fm_within(err, "%s", path);
    if (!rc)
        rc = find_caps(m, err);
    if (!rc) {
        m->plan = fm_alloc((size_t)m->config.L, sizeof *m->plan, "layer plans", err);
        rc = m->plan ? plan_ends(m, err) : err->code;
    }
    for (int l = 0; !rc && l < m->config.L; l++)
        rc = plan_layer(m, l, err);
    if (!rc)
        rc = list_unknown(m, err);
    if (!rc)
        rc = plan_slots(m, memory, err);
    if (rc)
        fm_model_close(m);
    else
        *model = m;
    return rc;
}

static void join_prefetch(struct fm_model *m)
{
    if (m->ahead.running)
        pthread_join(m->ahead.thread, NULL);
    m->ahead.running = false;
}

void fm_model_close(struct fm_model *m)
{
    if (!m)
        return;
    join_prefetch(m);
    for (int l = 0; m->plan && l < m->config.L; l++)
        free(m->plan[l].place);
    for (int i = 0; m->slot && i <= m->pinned; i++) {
        free(m->slot[i].block);
        free(m->slot[i].layer.row0);
        free(m->slot[i].layer.cap);
    }
    free(m->slot);
    free(m->plan);
    free(m->raw);
    free(m->caps);
    free(m->unknown);
    free(m->ends.embed);
    free(m->ends.norm);
    if (!m->config.tied)
        free(m->ends.head);
    fm_source_close(&m->tensors);
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

const uint32_t *fm_model_caps(const struct fm_model *m)
{
    return m->caps;
}

size_t fm_model_unknown(const struct fm_model *m, const char *const **names)
{
    *names = m->unknown;
    return m->unknowns;
}

void fm_model_rank(struct fm_model *m, const int32_t *order)
{
    assert(!order || m->tensors.source == FM_SOURCE_STOCK);
    if (order == m->order)
        return;
    m->order = order;
    for (int i = 0; i <= m->pinned; i++)
        m->slot[i].l = -1;
}

/* Work shared by the tasks that convert: the first bad task's error wins. */
struct conversion {
    struct fm_model *m;
    struct layer_plan *plan;
    struct slot *slot;
    int l;
    pthread_mutex_t lock;
    int failed; /* lowest task that failed, INT_MAX: none */
    struct fm_err err;
    const struct place *end; /* for the ends: one tensor, cut into pieces */
    float *dst;
};

static void fail_piece(struct conversion *v, int i, const struct fm_err *err)
{
    pthread_mutex_lock(&v->lock);
    if (i < v->failed) {
        v->failed = i;
        v->err = *err;
    }
    pthread_mutex_unlock(&v->lock);
}

static int check_finite(const struct fm_model *m, const struct place *p, const void *raw,
                        size_t first, size_t n, struct fm_err *err)
{
    size_t bad = fm_dtype_nonfinite(raw, p->tensor->dtype, n);
    if (bad == n)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT, "%s: tensor '%s' holds NaN or Inf at element %zu", m->path,
                   p->tensor->name, first + bad);
}

/* Elements of one piece of an end. */
#define PIECE ((size_t)1 << 20)

static void end_task(void *arg, int i)
{
    struct conversion *v = arg;
    const struct fm_tensor *t = v->end->tensor;
    size_t all = (size_t)fm_tensor_count(t), first = (size_t)i * PIECE;
    size_t n = all - first < PIECE ? all - first : PIECE;
    size_t bytes = (size_t)(fm_dtype_bits(t->dtype) / 8);
    struct fm_err err = {0};
    struct fm_mark mark = fm_scratch_mark();
    void *raw = fm_scratch(n * bytes);
    int rc = fm_file_read(v->end->file, t->offset + first * bytes, raw, n * bytes, &err);
    if (!rc)
        rc = check_finite(v->m, v->end, raw, first, n, &err);
    if (!rc)
        fm_dtype_to_f32(v->dst + first, raw, t->dtype, n);
    else
        fail_piece(v, i, &err);
    fm_scratch_release(mark);
}

static int read_end(struct fm_model *m, const struct place *p, struct fm_err *err)
{
    size_t n = (size_t)fm_tensor_count(p->tensor);
    float **field = (float **)((char *)&m->ends + p->weight->field);
    *field = fm_alloc(n, sizeof **field, p->tensor->name, err);
    if (!*field)
        return err->code;
    struct conversion v = {
        .m = m, .end = p, .dst = *field, .failed = INT_MAX, .lock = PTHREAD_MUTEX_INITIALIZER};
    fm_pool_for((int)((n + PIECE - 1) / PIECE), end_task, &v);
    pthread_mutex_destroy(&v.lock);
    if (v.failed == INT_MAX)
        return FM_OK;
    free(*field);
    *field = NULL;
    *err = v.err;
    return err->code;
}

int fm_model_ends(struct fm_model *m, const struct fm_ends **ends, struct fm_err *err)
{
    *ends = &m->ends;
    for (int i = 0; i < m->ends_count; i++) {
        const float *have = *(float **)((char *)&m->ends + m->end[i].weight->field);
        int rc = have ? FM_OK : read_end(m, &m->end[i], err);
        if (rc)
            return rc;
    }
    if (m->config.tied)
        m->ends.head = m->ends.embed;
    return FM_OK;
}

static int read_raw(struct fm_model *m, int l, struct fm_err *err)
{
    const struct layer_plan *plan = &m->plan[l];
    for (size_t i = 0; i < plan->places; i++) {
        const struct place *p = &plan->place[i];
        int rc = fm_file_read(p->file, p->tensor->offset, m->raw + p->raw, p->tensor->size, err);
        if (rc)
            return fm_within(err, "tensor '%s'", p->tensor->name);
    }
    return FM_OK;
}

static void *read_ahead(void *arg)
{
    struct fm_model *m = arg;
    m->ahead.rc = read_raw(m, m->raw_l, &m->ahead.err);
    return NULL;
}

/* Raw bytes of layer l are in the buffer, from the thread that read ahead or read now. */
static int need_raw(struct fm_model *m, int l, struct fm_err *err)
{
    if (!m->raw) {
        size_t most = 0;
        for (int i = 0; i < m->config.L; i++)
            most = m->plan[i].raw_bytes > most ? m->plan[i].raw_bytes : most;
        m->raw = fm_alloc(most, 1, "a layer's bytes", err);
        if (!m->raw)
            return err->code;
    }
    if (m->raw_l == l) {
        if (m->ahead.rc)
            *err = m->ahead.err;
        return m->ahead.rc;
    }
    m->raw_l = -1;
    return read_raw(m, l, err);
}

static struct slot *slot_of(struct fm_model *m, int l)
{
    return &m->slot[l < m->pinned ? l : m->pinned];
}

static float *carve(float **at, size_t n)
{
    float *p = *at;
    *at += (n + 15) / 16 * 16;
    return p;
}

/* Memory and pointers of a slot for layer l; the shared slot has room for the largest. */
static int shape_slot(struct fm_model *m, struct slot *s, int l, struct fm_err *err)
{
    const struct fm_config *c = &m->config;
    size_t H = (size_t)c->H, E = (size_t)c->E, q = (size_t)c->Q * (size_t)c->C;
    size_t g = (size_t)c->G * (size_t)c->C, channels = channels_of(m, l);
    struct fm_layer *y = &s->layer;
    if (!s->block) {
        size_t own = m->plan[l].floats, largest = fm_model_layer_bytes(m) / sizeof(float);
        s->block = fm_alloc(l < m->pinned ? own : largest, sizeof(float), "a layer", err);
        y->row0 = fm_alloc(E, sizeof *y->row0, "a layer", err);
        y->cap = fm_alloc(E, sizeof *y->cap, "a layer", err);
        if (!s->block || !y->row0 || !y->cap)
            return err->code;
    }
    float *at = s->block;
    y->input_norm = carve(&at, H);
    y->q = carve(&at, q * H);
    y->k = carve(&at, g * H);
    y->v = carve(&at, g * H);
    y->o = carve(&at, H * q);
    y->post_norm = carve(&at, H);
    y->router = carve(&at, E * H);
    y->gate_up = carve(&at, 2 * channels * H);
    y->down = carve(&at, channels * H);
    assert(at <= s->block + m->plan[l].floats);
    int64_t row = 0;
    for (size_t e = 0; e < E; e++) {
        y->row0[e] = row;
        y->cap[e] = (int)m->caps[(size_t)l * E + e];
        row += y->cap[e];
    }
    return FM_OK;
}

/* Task i converts expert i % E of tensor i / E; a tensor without experts has one piece alone. */
static void convert_task(void *arg, int i)
{
    struct conversion *v = arg;
    struct fm_model *m = v->m;
    const struct fm_config *c = &m->config;
    const struct place *p = &v->plan->place[i / c->E];
    const struct fm_layer *y = &v->slot->layer;
    enum fm_weight_part role = p->weight->part;
    bool flat = role == FM_PART_GATE_UP || role == FM_PART_DOWN_T;
    int e = flat ? i % c->E : p->expert, H = c->H;
    if (!flat && i % c->E != 0)
        return;
    size_t n = (size_t)fm_tensor_count(p->tensor), first = 0;
    size_t row0 = e < 0 ? 0 : (size_t)y->row0[e], width = (size_t)H;
    int cap = e < 0 ? 0 : y->cap[e], rows = role == FM_PART_GATE_UP ? 2 * cap : cap;
    if (flat) {
        first = (role == FM_PART_GATE_UP ? 2 : 1) * row0 * width;
        n = (size_t)rows * width;
    }
    enum fm_dtype dtype = p->tensor->dtype;
    const char *raw = m->raw + p->raw + first * (size_t)(fm_dtype_bits(dtype) / 8);
    const int32_t *order = NULL;
    if (m->order && e >= 0)
        order = m->order + ((size_t)v->l * (size_t)c->E + (size_t)e) * (size_t)c->I;
    struct fm_err err = {0};
    if (!v->plan->checked && check_finite(m, p, raw, first, n, &err)) {
        fail_piece(v, i, &err);
        return;
    }
    float *gate_up = y->gate_up + 2 * row0 * width, *down = y->down + row0 * width;
    switch (role) {
    case FM_PART_LAYER:
        fm_dtype_to_f32(*(float *const *)((const char *)y + p->weight->field), raw, dtype, n);
        break;
    case FM_PART_GATE:
        fm_convert_rows(gate_up, 2 * width, raw, dtype, cap, H, order);
        break;
    case FM_PART_UP:
        fm_convert_rows(gate_up + width, 2 * width, raw, dtype, cap, H, order);
        break;
    case FM_PART_DOWN:
        fm_convert_transposed(down, raw, dtype, H, cap, order);
        break;
    case FM_PART_GATE_UP:
        fm_convert_rows(gate_up, width, raw, dtype, rows, H, NULL);
        break;
    case FM_PART_DOWN_T:
        fm_convert_rows(down, width, raw, dtype, rows, H, NULL);
        break;
    case FM_PART_ENDS:
        assert(!"a tensor of a layer");
    }
}

static int load_layer(struct fm_model *m, struct slot *s, int l, struct fm_err *err)
{
    s->l = -1;
    int rc = need_raw(m, l, err);
    if (!rc)
        rc = shape_slot(m, s, l, err);
    if (rc)
        return rc;
    struct layer_plan *plan = &m->plan[l];
    struct conversion v = {.m = m,
                           .plan = plan,
                           .slot = s,
                           .l = l,
                           .failed = INT_MAX,
                           .lock = PTHREAD_MUTEX_INITIALIZER};
    fm_pool_for((int)plan->places * m->config.E, convert_task, &v);
    pthread_mutex_destroy(&v.lock);
    if (v.failed != INT_MAX) {
        *err = v.err;
        return err->code;
    }
    for (size_t i = 0; i < plan->places; i++)
        if (i == 0 || plan->place[i].file != plan->place[i - 1].file)
            if ((rc = fm_file_unchanged(plan->place[i].file, err)) != FM_OK)
                return rc;
    plan->checked = true;
    s->l = l;
    return FM_OK;
}

static void start_prefetch(struct fm_model *m, int l)
{
    m->raw_l = l;
    m->ahead = (struct prefetch){.running = true};
    if (pthread_create(&m->ahead.thread, NULL, read_ahead, m) != 0) {
        m->ahead.running = false; /* then it is read when it is needed */
        m->raw_l = -1;
    }
}

int fm_model_layer(struct fm_model *m, int l, int next, const struct fm_layer **layer,
                   struct fm_err *err)
{
    assert(l >= 0 && l < m->config.L && next >= -1 && next < m->config.L);
    struct slot *s = slot_of(m, l);
    join_prefetch(m);
    int rc = s->l == l ? FM_OK : load_layer(m, s, l, err);
    if (rc)
        return rc;
    *layer = &s->layer;
    if (next >= 0 && slot_of(m, next)->l != next && m->raw_l != next)
        start_prefetch(m, next);
    return FM_OK;
}
