/*
 * Grouped-query attention: what config.json says of it, its tensors, its cost.  G heads of keys and
 * values serve Q heads of queries; everything that families do between the projections and the
 * scores (biases, norms, clamping, rotation) is a switch here, because it costs next to nothing
 * and is combined in every way.
 */
#include "lib/block/gqa.h"

#include <assert.h>
#include <float.h>
#include <string.h>

#define EXACT_MAX (((int64_t)1 << 53) - 1)

/* A layer_types entry that is no full attention. */
static int refuse_layer_types(const cJSON *json, struct fm_err *err)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(json, "layer_types"), *type;
    cJSON_ArrayForEach(type, types)
    {
        if (!cJSON_IsString(type) || strcmp(type->valuestring, "full_attention") != 0)
            return fm_fail(err, FM_ECONFIG,
                           "layer_types '%.64s' is not supported; supported: full_attention",
                           cJSON_IsString(type) ? type->valuestring : "?");
    }
    return FM_OK;
}

/* null, 0 and `use_sliding_window: false` all mean none; a window over all positions is none. */
static int read_window(struct fm_config *c, const struct fm_gqa_options *o,
                       const struct fm_keys *keys, struct fm_err *err)
{
    int64_t window = 0;
    bool use = o->window;
    int rc = fm_json_opt_int(keys->json, "sliding_window", 0, EXACT_MAX, &window, err);
    if (!rc)
        rc = fm_json_opt_bool(keys->json, "use_sliding_window", &use, err);
    if (!rc)
        rc = refuse_layer_types(keys->json, err);
    if (rc)
        return rc;
    c->window = use && window < c->T_max ? (int)window : 0;
    if (c->window > 0 && !o->window)
        return fm_fail(err, FM_ECONFIG,
                       "use_sliding_window true with sliding_window %d is not supported for %s; "
                       "use a checkpoint where it is off",
                       c->window, keys->family);
    return FM_OK;
}

/* Biases of q, k, v, and of o where the family has that too. */
static int read_biases(struct fm_config *c, const struct fm_gqa_options *o,
                       const struct fm_keys *keys, struct fm_err *err)
{
    bool bias = o->bias;
    int rc = fm_json_opt_bool(keys->json, o->bias_key ? o->bias_key : "attention_bias", &bias, err);
    if (!rc && bias && !o->bias_key)
        rc = fm_fail(err, FM_ECONFIG, "attention_bias true is not supported for %s", keys->family);
    c->qkv_bias = bias;
    c->o_bias = bias && o->o_bias;
    return rc;
}

static int read_clip(struct fm_config *c, const struct fm_gqa_options *o,
                     const struct fm_keys *keys, struct fm_err *err)
{
    double clip = 0;
    int rc = fm_json_opt_double(keys->json, "clip_qkv", 0, FLT_MAX, &clip, err);
    if (!rc && clip > 0 && !o->clip)
        rc = fm_fail(err, FM_ECONFIG, "clip_qkv is not supported for %s", keys->family);
    c->clip = (float)clip;
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
    if (c->Q % c->G != 0)
        return fm_fail(err, FM_EFORMAT,
                       "num_attention_heads %d is no multiple of num_key_value_heads %d", c->Q,
                       c->G);
    if (c->C < 2 || c->C % 2 != 0 || c->C > FM_HEAD_DIM_MAX)
        return fm_fail(err, FM_EFORMAT, "head_dim %d is not even, or not in 2 to %d", c->C,
                       FM_HEAD_DIM_MAX);
    return FM_OK;
}

static int read(struct fm_config *c, const void *options, const struct fm_keys *keys,
                struct fm_err *err)
{
    const struct fm_gqa_options *o = options;
    int rc = read_heads(c, keys->json, err);
    c->qk_norm = o->qk_norm;
    if (!rc)
        rc = read_window(c, o, keys, err);
    if (!rc)
        rc = read_biases(c, o, keys, err);
    if (!rc)
        rc = read_clip(c, o, keys, err);
    return rc ? rc : fm_rope_read(c, &o->rope, keys, err);
}

static uint64_t heads_width(const struct fm_config *c, int heads)
{
    return (uint64_t)heads * (uint64_t)c->C;
}

static uint64_t size_of(const struct fm_config *c, char letter)
{
    bool head = c->qk_norm == FM_QK_NORM_HEAD;
    switch (letter) {
    case 'q':
        return heads_width(c, c->Q);
    case 'g':
        return heads_width(c, c->G);
    case 'a':
        return head ? (uint64_t)c->C : heads_width(c, c->Q);
    case 'b':
        return head ? (uint64_t)c->C : heads_width(c, c->G);
    default:
        assert(!"a letter of a shape");
        return 0;
    }
}

static unsigned has(const struct fm_config *c, int l)
{
    (void)l;
    return (c->qkv_bias ? FM_GQA_QKV_BIAS : 0) | (c->o_bias ? FM_GQA_O_BIAS : 0) |
           (c->qk_norm != FM_QK_NORM_NONE ? FM_GQA_QK_NORM : 0);
}

/* q, k, v and o; a query sees half of T keys on average, in two products of C each. */
static struct fm_flops flops(const struct fm_config *c, int l, int T)
{
    (void)l;
    return (struct fm_flops){.products = 2.0 * c->H * c->C * (2.0 * c->Q + 2.0 * c->G),
                             .others = 2.0 * c->Q * c->C * T};
}

/* q, k, v, o, their gradients; q and k again where they are normalised. */
static uint64_t scratch(const struct fm_config *c)
{
    uint64_t all = 2 * heads_width(c, c->Q + c->G);
    return 2 * all + (c->qk_norm == FM_QK_NORM_NONE ? 0 : all);
}

const struct fm_attention fm_gqa = {
    .name = "gqa", .read = read, .size = size_of, .has = has, .flops = flops, .scratch = scratch};
