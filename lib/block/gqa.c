/*
 * Grouped-query attention: keys of config.json, tensors, forward, backward and cost.  Q heads of
 * queries share G heads of keys and values.  Everything that families do between the projections
 * and the scores (biases, norms, clamping, rotation) is an option here, because it costs little and
 * occurs in many combinations.
 */
#include "lib/block/gqa.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/block/norm.h"
#include "lib/block/pass.h"

int fm_gqa_window(const struct fm_config *c, int l)
{
    return fm_gqa_full(c, l) ? 0 : c->gqa->window;
}

int fm_gqa_heads(const struct fm_config *c, int l)
{
    return c->gqa->heads[l] ? c->gqa->heads[l] : c->Q;
}

int fm_gqa_groups(const struct fm_config *c, int l)
{
    const struct fm_gqa *g = c->gqa;
    if (g->window_groups == 0)
        return c->G;
    return fm_layers_has(&g->full, l) ? g->full_groups : g->window_groups;
}

int fm_gqa_width(const struct fm_config *c, int l)
{
    const struct fm_gqa *g = c->gqa;
    if (g->window_width == 0)
        return c->C;
    return fm_layers_has(&g->full, l) ? g->full_width : g->window_width;
}

int fm_gqa_value(const struct fm_config *c, int l)
{
    return c->gqa->D ? c->gqa->D : fm_gqa_width(c, l);
}

void fm_gqa_differ(struct fm_config *c, int full_width, int full_groups)
{
    struct fm_gqa *g = c->gqa;
    g->window_width = c->C;
    g->full_width = full_width;
    g->window_groups = c->G;
    g->full_groups = full_groups;
    c->C = full_width > c->C ? full_width : c->C;
    c->G = full_groups > c->G ? full_groups : c->G;
}

/* Whether the values of layer l are its keys. */
static bool is_shared(const struct fm_config *c, int l)
{
    return c->gqa->shared && fm_gqa_full(c, l);
}

void fm_gqa_take_apart(int32_t *order, int groups, const int *width, int parts)
{
    int all = 0, before = 0;
    for (int p = 0; p < parts; p++)
        all += width[p];
    for (int p = 0; p < parts; before += width[p++])
        for (int g = 0; g < groups; g++)
            for (int i = 0; i < width[p]; i++)
                *order++ = g * all + before + i;
}

/* Read layer_types: full_attention, and sliding_attention if the family has both kinds of layers.
 */
static int read_layer_types(struct fm_gqa *g, const struct fm_config *c,
                            const struct fm_gqa_options *o, const cJSON *json, struct fm_err *err)
{
    const cJSON *types, *type;
    int l = 0, rc = fm_keys_array(&types, json, "layer_types", err);
    if (rc)
        return rc;
    cJSON_ArrayForEach(type, types)
    {
        const char *name = cJSON_IsString(type) ? type->valuestring : "?";
        bool full = strcmp(name, "full_attention") == 0;
        if (!full && !(o->alternates && strcmp(name, "sliding_attention") == 0))
            return fm_fail(err, FM_ECONFIG,
                           "layer_types '%.64s' is not supported; supported: full_attention%s",
                           name, o->alternates ? ", sliding_attention" : "");
        if (o->alternates && full && l < c->L)
            fm_layers_add(&g->full, l);
        l++;
    }
    if (o->alternates && l > 0 && l != c->L)
        return fm_fail(err, FM_EFORMAT, "layer_types has %d entries for %d layers", l, c->L);
    int every = o->every ? o->every : 2;
    if (o->every_key && l == 0)
        rc = fm_keys_size_opt(&every, json, o->every_key, FM_LAYERS_MAX, err);
    for (int i = every - 1; !rc && o->alternates && l == 0 && i < c->L; i += every)
        fm_layers_add(&g->full, i);
    if (!rc && l == 0 && o->first_full)
        fm_layers_add(&g->full, 0);
    return rc;
}

/* Refuse a missing window if some layers are sliding: programs disagree about what that means. */
static int check_window(const struct fm_gqa *g, const struct fm_config *c, int64_t window,
                        struct fm_err *err)
{
    for (int l = 0; l < c->L && window == 0; l++)
        if (!fm_layers_has(&g->full, l))
            return fm_fail(
                err, FM_ECONFIG,
                "sliding_window is null or 0 but layer %d is sliding_attention, which programs "
                "interpret differently; set sliding_window, or full_attention in layer_types",
                l);
    return FM_OK;
}

/* Check a list that marks the layers with a window; transformers does not read this list. */
static int check_pattern(const struct fm_gqa *g, const struct fm_config *c, const char *key,
                         const cJSON *json, struct fm_err *err)
{
    const cJSON *list;
    int rc = fm_keys_list(&list, json, key, c->L, err);
    return rc ? rc : fm_keys_agree(list, &g->full, false, "layer_types", err);
}

/* Read the number of positions before the query's own; sliding_window may or may not include the
 * query's own position. */
static int read_before(int64_t *window, const char *key, const cJSON *json, struct fm_err *err)
{
    const cJSON *said = cJSON_GetObjectItemCaseSensitive(json, "sliding_window");
    int64_t before = 0; /* absent or null */
    int rc = fm_json_opt_int(json, key, 1, FM_JSON_INTEGER_MAX - 1, &before, err);
    if (rc || before == 0)
        return rc;
    if (cJSON_IsNumber(said) && *window != before && *window != before + 1)
        return fm_fail(err, FM_ECONFIG,
                       "sliding_window %" PRId64 " is neither %s %" PRId64
                       " nor one more, and programs differ in which they read",
                       *window, key, before);
    *window = before + 1;
    return FM_OK;
}

/* null and 0 mean no window; a window that covers all positions has no effect.  Where all layers
 * have a window, vLLM obeys `use_sliding_window: false` and transformers does not; where layers
 * alternate, transformers does not read the key. */
static int read_window(struct fm_gqa *g, const struct fm_config *c, const struct fm_gqa_options *o,
                       const struct fm_keys *keys, struct fm_err *err)
{
    bool use = o->window;
    const cJSON *said = cJSON_GetObjectItemCaseSensitive(keys->json, "sliding_window");
    int64_t window = said ? 0 : o->usual_window;
    if (fm_json_opt_int(keys->json, "sliding_window", 0, FM_JSON_INTEGER_MAX, &window, err) ||
        (o->before_key && read_before(&window, o->before_key, keys->json, err)) ||
        (!o->alternates && fm_json_opt_bool(keys->json, "use_sliding_window", &use, err)) ||
        (!o->other_layers && read_layer_types(g, c, o, keys->json, err)) ||
        (o->pattern_key && check_pattern(g, c, o->pattern_key, keys->json, err)) ||
        (o->alternates && check_window(g, c, window, err)))
        return err->code;
    int effective = window < c->T_max ? (int)window : 0;
    if (effective > 0 && o->window && !use)
        return fm_fail(err, FM_ECONFIG,
                       "use_sliding_window false with sliding_window %d: programs differ in "
                       "whether they apply the window; remove one of the keys",
                       effective);
    if (effective > 0 && use && !o->window)
        return fm_fail(err, FM_ECONFIG,
                       "use_sliding_window true with sliding_window %d is not supported for %s; "
                       "use a checkpoint where it is off",
                       effective, keys->family);
    g->window = use ? effective : 0;
    return FM_OK;
}

/* Read whether q, k and v have biases, and o if the family allows that. */
static int read_biases(struct fm_gqa *g, const struct fm_gqa_options *o, const struct fm_keys *keys,
                       struct fm_err *err)
{
    bool bias = o->bias;
    int rc = fm_json_opt_bool(keys->json, o->bias_key ? o->bias_key : "attention_bias", &bias, err);
    if (!rc && bias && !o->bias_key)
        rc = fm_fail(err, FM_ECONFIG, "attention_bias true is not supported for %s", keys->family);
    g->qkv_bias = bias;
    g->o_bias = bias && o->o_bias;
    return rc;
}

static int read_clip(struct fm_gqa *g, const struct fm_gqa_options *o, const struct fm_keys *keys,
                     struct fm_err *err)
{
    double clip = 0;
    int rc = fm_json_opt_double(keys->json, "clip_qkv", 0, FLT_MAX, &clip, err);
    if (!rc && clip > 0 && !o->clip)
        rc = fm_fail(err, FM_ECONFIG, "clip_qkv is not supported for %s", keys->family);
    g->clip = (float)clip;
    return rc;
}

static int read_heads(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    int rc = fm_keys_size(&c->Q, json, "num_attention_heads", FM_HEADS_MAX, err);
    if (rc)
        return rc;
    c->G = c->Q;
    c->C = c->H / c->Q;
    rc = fm_keys_size_opt(&c->G, json, "num_key_value_heads", FM_HEADS_MAX, err);
    if (!rc)
        rc = fm_keys_size_opt(&c->C, json, "head_dim", FM_HEAD_DIM_MAX, err);
    if (rc)
        return rc;
    if (c->C < 2 || c->C % 2 != 0 || c->C > FM_HEAD_DIM_MAX)
        return fm_fail(err, FM_EFORMAT, "head_dim %d is not an even number from 2 to %d", c->C,
                       FM_HEAD_DIM_MAX);
    return FM_OK;
}

/* Read the number of query heads of each layer; Q becomes the largest. */
static int read_layer_heads(struct fm_config *c, const char *key, const cJSON *json,
                            struct fm_err *err)
{
    const cJSON *list, *entry;
    int l = 0, rc = fm_keys_list(&list, json, key, c->L, err);
    if (rc || !list)
        return rc;
    c->Q = 1;
    cJSON_ArrayForEach(entry, list)
    {
        double heads = cJSON_IsNumber(entry) ? entry->valuedouble : 0;
        if (!(heads >= 1 && heads <= FM_HEADS_MAX) || heads != (int)heads)
            return fm_fail(err, FM_EFORMAT, "%s of layer %d is not a number from 1 to %d", key, l,
                           FM_HEADS_MAX);
        c->gqa->heads[l++] = (uint16_t)heads;
        c->Q = heads > c->Q ? (int)heads : c->Q;
    }
    return FM_OK;
}

/* Set the number of key heads of layers with a window, and of the other layers; G becomes the
 * larger one.  Check that both divide the number of query heads. */
static int share_heads(struct fm_config *c, const struct fm_gqa_options *o, struct fm_err *err)
{
    struct fm_gqa *g = c->gqa;
    if (o->window_groups) {
        if (c->G > FM_HEADS_MAX / o->window_groups)
            return fm_fail(err, FM_ECONFIG, "num_key_value_heads %d is too many (limit %d)", c->G,
                           FM_HEADS_MAX / o->window_groups);
        g->full_groups = c->G;
        c->G = g->window_groups = o->window_groups * c->G;
    }
    for (int l = 0; l < c->L; l++)
        if (fm_gqa_heads(c, l) % fm_gqa_groups(c, l) != 0)
            return fm_fail(err, FM_EFORMAT,
                           "num_attention_heads %d is not a multiple of num_key_value_heads %d",
                           fm_gqa_heads(c, l), fm_gqa_groups(c, l));
    return FM_OK;
}

/* Read whether q, k and v are one tensor.  Its chunks are as many as key heads of layers without a
 * window, in all layers. */
static int read_layout(struct fm_config *c, const char *key, const struct fm_keys *keys,
                       struct fm_err *err)
{
    struct fm_gqa *g = c->gqa;
    static const char *const layouts[] = {"split", "fused_qkv", NULL};
    int chunks = g->full_groups ? g->full_groups : c->G, fused = 0;
    int rc = fm_keys_word(&fused, keys, key, layouts, err);
    if (rc || !fused)
        return rc;
    if (g->qkv_bias)
        return fm_fail(err, FM_ECONFIG, "biases with %s fused_qkv are not supported for %s", key,
                       keys->family);
    for (int l = 0; l < c->L; l++)
        if (fm_gqa_heads(c, l) % chunks != 0 || fm_gqa_groups(c, l) % chunks != 0)
            return fm_fail(err, FM_EFORMAT,
                           "layer %d has %d heads and %d key heads, which are not multiples of "
                           "num_key_value_heads %d, as %s fused_qkv requires",
                           l, fm_gqa_heads(c, l), fm_gqa_groups(c, l), chunks, key);
    g->chunks = chunks;
    return FM_OK;
}

/* Read the width of values, and the factor by which they are multiplied. */
static int read_values(struct fm_gqa *g, const struct fm_gqa_options *o, const cJSON *json,
                       struct fm_err *err)
{
    const cJSON *said = cJSON_GetObjectItemCaseSensitive(json, o->scale_key ? o->scale_key : "");
    double scale = cJSON_IsNull(said) ? 1 : o->scale;
    int rc = FM_OK;
    if (o->value_key)
        rc = fm_keys_size(&g->D, json, o->value_key, FM_HEAD_DIM_MAX, err);
    if (!rc && o->scale_key)
        rc = fm_json_opt_double(json, o->scale_key, 0, FLT_MAX, &scale, err);
    g->scale = (float)scale;
    if (!rc && o->scale_key && !(g->scale > 0))
        rc = fm_fail(err, FM_EFORMAT, "%s is not above 0", o->scale_key);
    return rc;
}

static int read_ropes(struct fm_config *c, const struct fm_gqa_options *o,
                      const struct fm_keys *keys, struct fm_err *err)
{
    struct fm_gqa *g = c->gqa;
    int full = g->full_width ? g->full_width : c->C;
    int other = g->window_width ? g->window_width : c->C;
    int rc = fm_rope_read(&g->rope, c, full, &o->rope, keys, err);
    return rc || !o->window_rope
               ? rc
               : fm_rope_read(&g->window_rope, c, other, o->window_rope, keys, err);
}

static int read(struct fm_config *c, const void *options, const struct fm_keys *keys,
                struct fm_err *err)
{
    const struct fm_gqa_options *o = options;
    struct fm_gqa *g = c->gqa = fm_alloc(1, sizeof *g, "attention settings", err);
    if (!g)
        return err->code;
    if (read_heads(c, keys->json, err) ||
        (o->heads_key && read_layer_heads(c, o->heads_key, keys->json, err)) ||
        read_values(g, o, keys->json, err))
        return err->code;
    g->options = o;
    g->divisor = o->divisor;
    bool normed = !o->qk_norm_key;
    if (o->qk_norm_key && fm_json_opt_bool(keys->json, o->qk_norm_key, &normed, err))
        return err->code;
    g->qk_norm = normed ? o->qk_norm : FM_QK_NORM_NONE;
    if (read_window(g, c, o, keys, err) ||
        (o->shared_key && fm_json_opt_bool(keys->json, o->shared_key, &g->shared, err)) ||
        (o->read_full && o->read_full(c, keys, err)) || share_heads(c, o, err) ||
        read_biases(g, o, keys, err) || read_clip(g, o, keys, err) || read_ropes(c, o, keys, err) ||
        (o->layout_key && read_layout(c, o->layout_key, keys, err)))
        return err->code;
    return o->read_more ? o->read_more(c, keys, err) : FM_OK;
}

static uint64_t heads_width(const struct fm_config *c, int l, int heads)
{
    return (uint64_t)heads * (uint64_t)fm_gqa_width(c, l);
}

static bool each_head(const struct fm_config *c)
{
    return c->gqa->qk_norm == FM_QK_NORM_HEAD;
}

static uint64_t size_of(const struct fm_config *c, int l, char letter)
{
    int Q = fm_gqa_heads(c, l), G = fm_gqa_groups(c, l);
    switch (letter) {
    case 'q':
        return heads_width(c, l, Q);
    case 'g':
        return heads_width(c, l, G);
    case 'o':
        return (uint64_t)Q * (uint64_t)fm_gqa_value(c, l);
    case 'u':
        return (uint64_t)G * (uint64_t)fm_gqa_value(c, l);
    case 'f':
        return size_of(c, l, 'q') + size_of(c, l, 'g') + size_of(c, l, 'u');
    case 'h':
        return (uint64_t)Q;
    case 'a':
        return each_head(c) ? (uint64_t)fm_gqa_width(c, l) : heads_width(c, l, Q);
    case 'b':
        return each_head(c) ? (uint64_t)fm_gqa_width(c, l) : heads_width(c, l, G);
    case 'w':
        return (uint64_t)c->gqa->index_width;
    case 'i':
        return (uint64_t)c->gqa->index_heads * (uint64_t)c->gqa->index_width;
    default:
        assert(!"unknown letter in a shape");
        return 0;
    }
}

static unsigned has(const struct fm_config *c, int l)
{
    const struct fm_gqa *g = c->gqa;
    bool sinks = g->options->sinks && !(g->options->window_sinks && fm_gqa_full(c, l));
    return (g->qkv_bias ? FM_GQA_QKV_BIAS : 0) | (g->o_bias ? FM_GQA_O_BIAS : 0) |
           (g->qk_norm != FM_QK_NORM_NONE ? FM_GQA_QK_NORM : 0) | (sinks ? FM_GQA_SINKS : 0) |
           (fm_layers_has(&g->indexed, l) ? FM_GQA_INDEXER : 0) |
           (g->chunks ? FM_GQA_FUSED
                      : FM_GQA_APART | (is_shared(c, l) ? 0u : (unsigned)FM_GQA_VALUES));
}

static void order_rows(int32_t *order, const struct fm_config *c, int l, const struct fm_weight *w)
{
    int n = c->gqa->chunks;
    assert(w->shape[0] == 'f' && n > 0);
    const int width[] = {(int)size_of(c, l, 'q') / n, (int)size_of(c, l, 'g') / n,
                         (int)size_of(c, l, 'u') / n};
    fm_gqa_take_apart(order, n, width, 3);
}

/* ---- forward and backward ---- */

static int angles(const struct fm_config *c)
{
    return c->gqa->rope.R / 2 + c->gqa->window_rope.R / 2;
}

static void fill_angles(float *cos, float *sin, const struct fm_config *c, int T)
{
    size_t first = (size_t)T * (size_t)(c->gqa->rope.R / 2);
    fm_rope_fill(cos, sin, &c->gqa->rope, T);
    fm_rope_fill(cos + first, sin + first, &c->gqa->window_rope, T);
}

/* Inner values of N tokens; NULL if not needed. */
struct inner {
    float *q, *k, *v;       /* (N, Q C), (N, G C), (N, G D): inputs of the attention operation */
    float *q_raw, *k_raw;   /* as q, k: before their norms */
    float *v_raw;           /* as v: before it is clamped or normalised; k_raw if shared */
    float *q_rstd, *k_rstd; /* (N Q), (N G), or (N) */
    float *v_rstd;          /* (N G) */
    float *o;               /* (N, Q D) */
    float *gate;            /* as o, or (N, Q): the gate before its activation function */
};

/* Width of the gate, per token. */
static int gate_width(const struct fm_config *c, int l)
{
    return fm_gqa_heads(c, l) * (c->gqa->options->gate_heads ? 1 : fm_gqa_value(c, l));
}

/* Allocate the arrays from an arena; a counting arena only adds up their sizes. */
static struct inner take(const struct fm_config *c, int l, int N, struct fm_arena *arena)
{
    const struct fm_gqa *g = c->gqa;
    size_t n = (size_t)N, qc = n * (size_t)size_of(c, l, 'q'), gc = n * (size_t)size_of(c, l, 'g');
    size_t qd = n * (size_t)size_of(c, l, 'o'), gd = n * (size_t)size_of(c, l, 'u');
    size_t q_rows = each_head(c) ? n * (size_t)fm_gqa_heads(c, l) : n;
    size_t k_rows = each_head(c) ? n * (size_t)fm_gqa_groups(c, l) : n;
    bool norm = g->qk_norm != FM_QK_NORM_NONE, raw = g->clip > 0 || g->options->value_norm;
    struct inner a = {
        .q = fm_arena_alloc(arena, qc),
        .k = fm_arena_alloc(arena, gc),
        .v = fm_arena_alloc(arena, gd),
        .q_raw = fm_arena_alloc_if(norm, arena, qc),
        .k_raw = fm_arena_alloc_if(norm, arena, gc),
        .v_raw = fm_arena_alloc_if(raw && !is_shared(c, l), arena, gd),
        .q_rstd = fm_arena_alloc_if(norm, arena, q_rows),
        .k_rstd = fm_arena_alloc_if(norm, arena, k_rows),
        .v_rstd = fm_arena_alloc_if(g->options->value_norm, arena, n * (size_t)fm_gqa_groups(c, l)),
        .o = fm_arena_alloc(arena, qd),
        .gate = fm_arena_alloc_if(g->options->gated, arena, n * (size_t)gate_width(c, l)),
    };
    a.v_raw = is_shared(c, l) ? a.k_raw : a.v_raw;
    return a;
}

static void count_inner(const struct fm_config *c, int l, int N, struct fm_arena *count)
{
    take(c, l, N, count);
}

/* Number and width of the rows that the norm of q or k normalises, for N vectors of `heads` heads.
 */
static int norm_rows(const struct fm_config *c, int N, int heads)
{
    return each_head(c) ? N * heads : N;
}

static int norm_width(const struct fm_config *c, int l, int heads)
{
    int C = fm_gqa_width(c, l);
    return each_head(c) ? C : heads * C;
}

/* The weights of k and v, which follow those of q if they have no field. */
static const void *keys_of(const struct fm_pass *p)
{
    const struct fm_gqa_weights *w = &p->layer->gqa;
    size_t before = size_of(p->config, p->l, 'q') * (size_t)p->config->H;
    return w->k ? w->k : fm_pass_rest(p, w->q, before);
}

static const void *values_of(const struct fm_pass *p)
{
    const struct fm_gqa_weights *w = &p->layer->gqa;
    size_t rows = size_of(p->config, p->l, 'q') + size_of(p->config, p->l, 'g');
    return w->v ? w->v : fm_pass_rest(p, w->q, rows * (size_t)p->config->H);
}

/* Rotate y (N, heads C): sign 1 forward, -1 backward. */
static void rotate(const struct fm_pass *p, float *y, int heads, float sign)
{
    const struct fm_gqa *g = p->config->gqa;
    const struct fm_rope *r =
        g->window_rope.R > 0 && !fm_gqa_full(p->config, p->l) ? &g->window_rope : &g->rope;
    size_t first = r == &g->rope ? 0 : (size_t)p->positions * (size_t)(g->rope.R / 2);
    if (g->options->unrotated && fm_gqa_full(p->config, p->l))
        return;
    p->ops->rope(y, p->cos + first, p->sin + first, fm_pass_rows(p), p->T, heads,
                 fm_gqa_width(p->config, p->l), r->R, r->pairs, sign);
}

/* Compute q or k: project (into raw if there is a norm), normalise, clamp, rotate. */
static void turn(const struct fm_pass *p, float *y, float *raw, float *rstd, const float *x,
                 const void *w, const float *bias, const float *norm, int heads)
{
    const struct fm_config *c = p->config;
    float clip = c->gqa->clip;
    int N = fm_pass_rows(p), C = fm_gqa_width(c, p->l);
    fm_pass_project_input(p, raw ? raw : y, x, w, bias, heads * C);
    if (raw)
        fm_norm_forward(p->ops, c, y, rstd, raw, norm, NULL, norm_rows(c, N, heads),
                        norm_width(c, p->l, heads));
    if (clip > 0)
        p->ops->clamp(y, clip, (int64_t)N * heads * C);
    rotate(p, y, heads, 1);
}

/* The weights of the gate: its own tensor, or its rows of w->q. */
static const void *gate_weights(const struct fm_pass *p)
{
    const struct fm_config *c = p->config;
    return c->gqa->options->gate_apart
               ? p->layer->gqa.gate
               : fm_pass_rest(p, p->layer->gqa.q, size_of(c, p->l, 'q') * (size_t)c->H);
}

/* gated (N, Q D) = every head of o times its gate; return the gates (N, Q), in scratch. */
static float *gate_heads(const struct fm_pass *p, const struct inner *a, float *gated)
{
    int D = fm_gqa_value(p->config, p->l), rows = fm_pass_rows(p) * fm_gqa_heads(p->config, p->l);
    float *s = fm_scratch_floats((size_t)rows);
    p->ops->copy(gated, a->o, (size_t)rows * (size_t)D * sizeof *gated);
    p->ops->gate_rows(gated, s, a->gate, p->config->gqa->options->gate_softplus, rows, D);
    return s;
}

/* y (N, H) += output projection of o, which is gated if the block has a gate. */
static void give_output(const struct fm_pass *p, const struct inner *a, float *y, const float *x)
{
    const struct fm_config *c = p->config;
    const struct fm_gqa_weights *w = &p->layer->gqa;
    int N = fm_pass_rows(p), H = c->H, QD = (int)size_of(c, p->l, 'o');
    struct fm_mark mark = fm_scratch_mark();
    const float *o = a->o;
    if (a->gate) {
        float *gated = fm_scratch_floats((size_t)N * (size_t)QD);
        fm_pass_project_input(p, a->gate, x, gate_weights(p), NULL, gate_width(c, p->l));
        if (c->gqa->options->gate_heads)
            gate_heads(p, a, gated);
        else
            p->ops->gate(gated, a->o, a->gate, false, (int64_t)N * QD);
        o = gated;
    }
    fm_pass_project(p, y, o, w->o, H, QD, true);
    if (w->o_bias)
        p->ops->add_rows(y, w->o_bias, N, H);
    fm_scratch_release(mark);
}

/* Multiply v (N, width), the values or their gradient, by the factor of values. */
static void scale_values(const struct fm_pass *p, float *v, int width)
{
    float scale = p->config->gqa->scale;
    if (scale > 0 && scale != 1)
        p->ops->scale(v, scale, (int64_t)fm_pass_rows(p) * width);
}

/* The divisor of the attention scores. */
static double divisor(const struct fm_config *c, int l)
{
    return c->gqa->divisor > 0 ? c->gqa->divisor : sqrt(fm_gqa_width(c, l));
}

/* Weights (D) of the values' norm, in scratch. */
static const float *ones(const struct fm_pass *p, int D)
{
    float *w = fm_scratch_floats((size_t)D);
    p->ops->zero(w, (size_t)D * sizeof *w);
    p->ops->shift(w, w, 1, D);
    return w;
}

/* Compute the values: project, or take the keys; clamp or normalise, and scale. */
static void find_values(const struct fm_pass *p, const struct inner *a, const float *x)
{
    const struct fm_config *c = p->config;
    const struct fm_gqa_weights *w = &p->layer->gqa;
    int N = fm_pass_rows(p), G = fm_gqa_groups(c, p->l), D = fm_gqa_value(c, p->l);
    size_t count = (size_t)N * (size_t)G * (size_t)D;
    struct fm_mark mark = fm_scratch_mark();
    if (!is_shared(c, p->l))
        fm_pass_project_input(p, a->v_raw ? a->v_raw : a->v, x, values_of(p), w->v_bias, G * D);
    if (c->gqa->options->value_norm)
        fm_norm_forward(p->ops, c, a->v, a->v_rstd, a->v_raw, ones(p, D), NULL, N * G, D);
    else if (a->v_raw)
        p->ops->copy(a->v, a->v_raw, count * sizeof *a->v);
    if (c->gqa->clip > 0)
        p->ops->clamp(a->v, c->gqa->clip, (int64_t)count);
    scale_values(p, a->v, G * D);
    fm_scratch_release(mark);
}

/* dv (N, G D), the gradient at the values, becomes the gradient at v_raw. */
static void find_values_back(const struct fm_pass *p, const struct inner *a, float *dv)
{
    const struct fm_config *c = p->config;
    int N = fm_pass_rows(p), G = fm_gqa_groups(c, p->l), D = fm_gqa_value(c, p->l);
    size_t count = (size_t)N * (size_t)G * (size_t)D;
    struct fm_mark mark = fm_scratch_mark();
    scale_values(p, dv, G * D);
    if (c->gqa->clip > 0)
        p->ops->clamp_back(dv, a->v_raw, c->gqa->clip, (int64_t)count);
    if (c->gqa->options->value_norm) {
        float *dy = fm_scratch_floats(count);
        p->ops->copy(dy, dv, count * sizeof *dy);
        p->ops->zero(dv, count * sizeof *dv);
        fm_norm_backward(p->ops, c, dv, dy, a->v_raw, ones(p, D), NULL, a->v_rstd, N * G, D);
    }
    fm_scratch_release(mark);
}

static void forward(const struct fm_pass *p, float *inner, float *y, const float *x)
{
    const struct fm_config *c = p->config;
    const struct fm_gqa_weights *w = &p->layer->gqa;
    const struct inner all = take(c, p->l, fm_pass_rows(p), FM_ARENA_IN(inner)), *a = &all;
    int Q = fm_gqa_heads(c, p->l), G = fm_gqa_groups(c, p->l);
    turn(p, a->q, a->q_raw, a->q_rstd, x, w->q, w->q_bias, w->q_norm, Q);
    turn(p, a->k, a->k_raw, a->k_rstd, x, keys_of(p), w->k_bias, w->k_norm, G);
    find_values(p, a, x);
    p->ops->attention(a->o, a->q, a->k, a->v, w->sinks, p->S, p->T, Q, G, fm_gqa_width(c, p->l),
                      fm_gqa_value(c, p->l), divisor(c, p->l), fm_gqa_window(c, p->l));
    give_output(p, a, y, x);
}

/* dy (N, heads C), the gradient at the result of turn(), becomes the gradient at the projection. */
static void turn_back(const struct fm_pass *p, float *dy, const float *raw, const float *rstd,
                      const float *norm, int heads)
{
    const struct fm_config *c = p->config;
    float clip = c->gqa->clip;
    int N = fm_pass_rows(p), rows = norm_rows(c, N, heads);
    int width = norm_width(c, p->l, heads);
    size_t n = (size_t)N * (size_t)heads * (size_t)fm_gqa_width(c, p->l);
    struct fm_mark mark = fm_scratch_mark();
    assert(raw || clip == 0);
    rotate(p, dy, heads, -1);
    if (raw) {
        float *y = fm_scratch_floats(n), *again = fm_scratch_floats((size_t)rows);
        if (clip > 0) {
            fm_norm_forward(p->ops, c, y, again, raw, norm, NULL, rows, width);
            p->ops->clamp_back(dy, y, clip, (int64_t)n);
        }
        p->ops->copy(y, dy, n * sizeof *y);
        p->ops->zero(dy, n * sizeof *dy);
        fm_norm_backward(p->ops, c, dy, y, raw, norm, NULL, rstd, rows, width);
    }
    fm_scratch_release(mark);
}

/* d_o (N, Q D) holds the gradient after the gate and receives the one before it; dx (N, H) = the
 * gradient through the gate. */
static void gate_back(const struct fm_pass *p, const struct inner *a, float *dx, float *d_o)
{
    const struct fm_config *c = p->config;
    int N = fm_pass_rows(p), QD = (int)size_of(c, p->l, 'o'), width = gate_width(c, p->l);
    struct fm_mark mark = fm_scratch_mark();
    float *dgate = fm_scratch_floats((size_t)N * (size_t)width);
    if (c->gqa->options->gate_heads) {
        float *gated = fm_scratch_floats((size_t)N * (size_t)QD);
        const float *s = gate_heads(p, a, gated);
        p->ops->gate_rows_back(d_o, dgate, gated, s, c->gqa->options->gate_softplus, N * width,
                               fm_gqa_value(c, p->l));
    } else {
        p->ops->gate_back(d_o, dgate, d_o, a->o, a->gate, false, (int64_t)N * QD);
    }
    fm_pass_project_back(p, dx, dgate, gate_weights(p), width, c->H, false);
    fm_scratch_release(mark);
}

static void backward(const struct fm_pass *p, float *inner, float *dx, const float *dy)
{
    const struct fm_config *c = p->config;
    const struct fm_ops *op = p->ops;
    const struct fm_gqa_weights *w = &p->layer->gqa;
    const struct inner all = take(c, p->l, fm_pass_rows(p), FM_ARENA_IN(inner)), *a = &all;
    int N = fm_pass_rows(p), Q = fm_gqa_heads(c, p->l), G = fm_gqa_groups(c, p->l), H = c->H;
    int C = fm_gqa_width(c, p->l), D = fm_gqa_value(c, p->l);
    int QC = Q * C, GC = G * C, QD = Q * D, GD = G * D;
    size_t n = (size_t)N;
    struct fm_mark mark = fm_scratch_mark();
    float *d_o = fm_scratch_floats(n * (size_t)QD), *dq = fm_scratch_floats(n * (size_t)QC);
    float *dk = fm_scratch_floats(n * (size_t)GC), *dv = fm_scratch_floats(n * (size_t)GD);
    fm_pass_project_back(p, d_o, dy, w->o, H, QD, false);
    if (a->gate)
        gate_back(p, a, dx, d_o);
    op->attention_back(dq, dk, dv, d_o, a->o, a->q, a->k, a->v, w->sinks, p->S, p->T, Q, G, C, D,
                       divisor(c, p->l), fm_gqa_window(c, p->l));
    turn_back(p, dq, a->q_raw, a->q_rstd, w->q_norm, Q);
    turn_back(p, dk, a->k_raw, a->k_rstd, w->k_norm, G);
    find_values_back(p, a, dv);
    if (is_shared(c, p->l))
        op->add(dk, dv, (int64_t)N * GD);
    fm_pass_project_back(p, dx, dq, w->q, QC, H, a->gate != NULL);
    fm_pass_project_back(p, dx, dk, keys_of(p), GC, H, true);
    if (!is_shared(c, p->l))
        fm_pass_project_back(p, dx, dv, values_of(p), GD, H, true);
    fm_scratch_release(mark);
}

/* ---- cost ---- */

/* Products with the weights of q, k, v, o and the gate; a query attends to T / 2 keys on average,
 * and each key takes a product of width C and one of width D. */
static struct fm_flops flops(const struct fm_config *c, int l, int T)
{
    double C = fm_gqa_width(c, l), D = fm_gqa_value(c, l);
    double Q = fm_gqa_heads(c, l), G = fm_gqa_groups(c, l), shared = is_shared(c, l) ? G * D : 0;
    double rows = (Q + G) * (C + D) - shared + (c->gqa->options->gated ? gate_width(c, l) : 0);
    return (struct fm_flops){.products = 2 * c->H * rows, .others = Q * (C + D) * T};
}

/* q, k, v, o and their gradients; of what is normalised, also the values before their norm, and
 * copies of their gradients; the gate, its gradient, and the gated output.  With C and G of
 * `config`, the largest. */
static uint64_t scratch(const struct fm_config *c)
{
    uint64_t heads = (uint64_t)(c->Q + c->G), keys = heads * (uint64_t)c->C;
    uint64_t D = (uint64_t)(c->gqa->D ? c->gqa->D : c->C), values = heads * D;
    uint64_t gate = c->gqa->options->gated ? 3 * (uint64_t)c->Q * D : 0;
    uint64_t norm = c->gqa->options->value_norm ? 2 * (uint64_t)c->G * D : 0;
    norm += c->gqa->qk_norm == FM_QK_NORM_NONE ? 0 : 2 * keys;
    return 2 * (keys + values) + norm + gate;
}

const struct fm_attention fm_gqa = {.read = read,
                                    .size = size_of,
                                    .has = has,
                                    .order = order_rows,
                                    .angles = angles,
                                    .fill_angles = fill_angles,
                                    .inner = count_inner,
                                    .forward = forward,
                                    .backward = backward,
                                    .flops = flops,
                                    .scratch = scratch};
