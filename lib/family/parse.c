#include "lib/family/family.h"

#include <float.h>
#include <inttypes.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"

/* A model beyond these is a broken file, or one that nobody has thought about. */
#define EXPERTS_MAX 1024
#define CHANNELS_MAX (1 << 20)
#define HIDDEN_MAX (1 << 17)
#define HEADS_MAX 1024
#define VOCABULARY_MAX (1 << 23)
#define POSITIONS_MAX (1 << 28)
#define EXACT_MAX (((int64_t)1 << 53) - 1)

/* A size from 1 to `limit`; one that is larger is no broken file but a model we do not take. */
static int read_size(int *size, const cJSON *json, const char *key, int limit, struct fm_err *err)
{
    int64_t value = 0;
    int rc = fm_json_get_int(json, key, 1, EXACT_MAX, &value, err);
    if (!rc && value > limit)
        rc = fm_fail(err, FM_ECONFIG, "key '%s' is %" PRId64 " (limit %d)", key, value, limit);
    *size = (int)value;
    return rc;
}

/* The same for a key that may be absent or null: *size stays. */
static int read_size_opt(int *size, const cJSON *json, const char *key, int limit,
                         struct fm_err *err)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, key);
    return !value || cJSON_IsNull(value) ? FM_OK : read_size(size, json, key, limit, err);
}

static int find_family(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const char *type = NULL;
    int rc = fm_json_get_string(json, "model_type", &type, err);
    if (rc)
        return rc;
    /* A ragged export renames the type, so that nobody reads it as the stock model. */
    bool ours = cJSON_HasObjectItem(json, "fm_widths") && strncmp(type, "fm_", 3) == 0;
    c->family = fm_families_find(ours ? type + 3 : type);
    if (c->family)
        return FM_OK;
    char known[256];
    fm_families_list(known, sizeof known);
    return fm_fail(err, FM_ECONFIG, "model_type '%.64s' is not supported; supported: %s", type,
                   known);
}

static int refuse_activation(const cJSON *json, struct fm_err *err)
{
    const cJSON *act = cJSON_GetObjectItemCaseSensitive(json, "hidden_act");
    const char *name = NULL;
    if (!act || cJSON_IsNull(act))
        return FM_OK;
    int rc = fm_json_get_string(json, "hidden_act", &name, err);
    if (!rc && strcmp(name, "silu") != 0)
        rc = fm_fail(err, FM_ECONFIG, "hidden_act '%.64s' is not supported; supported: silu", name);
    return rc;
}

/* FP8, MXFP4, GPTQ, AWQ and the like: weights that are no numbers of one of our dtypes. */
static int refuse_quantized(const cJSON *json, struct fm_err *err)
{
    const char *keys[] = {"quantization_config", "compression_config"};
    for (int i = 0; i < 2; i++) {
        const cJSON *quant = cJSON_GetObjectItemCaseSensitive(json, keys[i]);
        const cJSON *method = cJSON_GetObjectItemCaseSensitive(quant, "quant_method");
        if (!quant || cJSON_IsNull(quant))
            continue;
        return fm_fail(err, FM_ECONFIG,
                       "the model is quantized (%s%s%.32s); use its BF16, F16 or F32 original, or "
                       "dequantize it first",
                       keys[i], cJSON_IsString(method) ? ": " : "",
                       cJSON_IsString(method) ? method->valuestring : "");
    }
    return FM_OK;
}

/* `type` or `rope_type` of an object, where there is one, must be "default", or one that the family
 * knows. */
static int check_rope_type(struct fm_config *c, const cJSON *object, const char *where,
                           struct fm_err *err)
{
    const char *keys[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, keys[i]);
        if (!v || cJSON_IsNull(v))
            continue;
        const char *type = cJSON_IsString(v) ? v->valuestring : "?";
        c->longrope = c->family->longrope && strcmp(type, "longrope") == 0;
        if (!c->longrope && strcmp(type, "default") != 0)
            return fm_fail(err, FM_ECONFIG,
                           "%s: %s '%.64s' is not supported for %s; supported: default%s", where,
                           keys[i], type, c->family->name, c->family->longrope ? ", longrope" : "");
    }
    return FM_OK;
}

/* The factors and the scale of short sequences, and as far as they go: a longer one would take
 * others from its first token on. */
static int read_longrope(struct fm_config *c, const cJSON *json, const cJSON *rope,
                         struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(rope, "short_factor"), *factor;
    double scale = 0;
    int original = c->T_max, n = 0;
    int rc = fm_json_opt_double(rope, "short_mscale", 0, FLT_MAX, &scale, err);
    for (int i = 0; i < 2 && !rc; i++)
        rc = read_size_opt(&original, i ? json : rope, "original_max_position_embeddings",
                           POSITIONS_MAX, err);
    if (rc)
        return rc;
    cJSON_ArrayForEach(factor, list)
    {
        double value = cJSON_IsNumber(factor) ? factor->valuedouble : 0;
        if (n < c->C / 2 && value > 0 && value <= FLT_MAX)
            c->rope_factor[n++] = (float)value;
        else
            n = c->C;
    }
    if (n != c->C / 2 || !(scale > 0))
        return fm_fail(err, FM_EFORMAT,
                       "longrope needs short_mscale, and short_factor with %d numbers, above 0",
                       c->C / 2);
    c->rope_scale = (float)scale;
    c->T_max = original < c->T_max ? original : c->T_max;
    return FM_OK;
}

/* transformers 4: rope_theta and rope_scaling; 5: rope_parameters, which wins. */
static int read_rope(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const char *objects[] = {"rope_scaling", "rope_parameters"};
    c->rope_theta = c->family->rope_theta;
    c->rope_scale = 1;
    for (int i = 0; i < FM_HEAD_DIM_MAX / 2; i++)
        c->rope_factor[i] = 1;
    int rc = fm_json_opt_double(json, "rope_theta", 1, 1e18, &c->rope_theta, err);
    for (int i = 0; i < 2 && !rc; i++) {
        const cJSON *object = cJSON_GetObjectItemCaseSensitive(json, objects[i]);
        if (!object || cJSON_IsNull(object))
            continue;
        if (!cJSON_IsObject(object))
            return fm_fail(err, FM_EFORMAT, "key '%s' is not an object", objects[i]);
        rc = check_rope_type(c, object, objects[i], err);
        if (!rc)
            rc = fm_json_opt_double(object, "rope_theta", 1, 1e18, &c->rope_theta, err);
        if (!rc && c->longrope)
            rc = read_longrope(c, json, object, err);
    }
    return rc;
}

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
static int read_window(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    int64_t window = 0;
    bool use = c->family->window;
    int rc = fm_json_opt_int(json, "sliding_window", 0, EXACT_MAX, &window, err);
    if (!rc)
        rc = fm_json_opt_bool(json, "use_sliding_window", &use, err);
    if (!rc)
        rc = refuse_layer_types(json, err);
    if (rc)
        return rc;
    c->window = use && window < c->T_max ? (int)window : 0;
    if (c->window > 0 && !c->family->window)
        return fm_fail(err, FM_ECONFIG,
                       "use_sliding_window true with sliding_window %d is not supported for %s; "
                       "use a checkpoint where it is off",
                       c->window, c->family->name);
    return FM_OK;
}

/* Biases of q, k, v, and of o where the family has that too. */
static int read_biases(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const struct fm_model_family *f = c->family;
    bool bias = f->bias;
    int rc = fm_json_opt_bool(json, f->bias_key ? f->bias_key : "attention_bias", &bias, err);
    if (!rc && f->head_bias)
        rc = fm_json_opt_bool(json, "lm_head_bias", &c->head_bias, err);
    if (!rc && bias && !f->bias_key)
        rc = fm_fail(err, FM_ECONFIG, "attention_bias true is not supported for %s", f->name);
    c->qkv_bias = bias;
    c->o_bias = bias && f->o_bias;
    c->norm_bias = f->norm_bias;
    return rc;
}

static int read_clip(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    double clip = 0;
    int rc = fm_json_opt_double(json, "clip_qkv", 0, FLT_MAX, &clip, err);
    if (!rc && clip > 0 && !c->family->clip)
        rc = fm_fail(err, FM_ECONFIG, "clip_qkv is not supported for %s", c->family->name);
    c->clip = (float)clip;
    return rc;
}

static int read_attention(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    int rc = read_size(&c->Q, json, "num_attention_heads", HEADS_MAX, err);
    if (rc)
        return rc;
    c->G = c->Q;
    c->C = c->H / c->Q;
    rc = read_size_opt(&c->G, json, "num_key_value_heads", HEADS_MAX, err);
    if (!rc)
        rc = read_size_opt(&c->C, json, "head_dim", FM_HEAD_DIM_MAX, err);
    if (rc)
        return rc;
    if (c->Q % c->G != 0)
        return fm_fail(err, FM_EFORMAT,
                       "num_attention_heads %d is no multiple of num_key_value_heads %d", c->Q,
                       c->G);
    if (c->C < 2 || c->C % 2 != 0 || c->C > FM_HEAD_DIM_MAX)
        return fm_fail(err, FM_EFORMAT, "head_dim %d is not even, or not in 2 to %d", c->C,
                       FM_HEAD_DIM_MAX);
    c->qk_norm = c->family->qk_norm;
    rc = read_window(c, json, err);
    if (!rc)
        rc = read_biases(c, json, err);
    if (!rc)
        rc = read_clip(c, json, err);
    return rc ? rc : read_rope(c, json, err);
}

/* Decoder layers that are mixtures of experts: all, but for those that config.json names. */
static int read_layers(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    int64_t step = 1;
    bool dense[FM_LAYERS_MAX] = {false};
    int rc = read_size(&c->L, json, "num_hidden_layers", FM_LAYERS_MAX, err);
    if (!rc && c->family->sparse_layers) {
        rc = fm_json_opt_int(json, "decoder_sparse_step", 1, EXACT_MAX, &step, err);
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "mlp_only_layers"), *entry;
        if (!rc && list && !cJSON_IsNull(list) && !cJSON_IsArray(list))
            rc = fm_fail(err, FM_EFORMAT, "key 'mlp_only_layers' is not an array");
        cJSON_ArrayForEach(entry, list)
        {
            int l = cJSON_IsNumber(entry) ? entry->valueint : -1;
            if (!rc && (l < 0 || l != entry->valuedouble))
                rc = fm_fail(err, FM_EFORMAT, "key 'mlp_only_layers': an entry is no layer");
            if (!rc && l < c->L)
                dense[l] = true;
        }
    }
    for (int l = 0; !rc && l < c->L; l++)
        if (!dense[l] && (l + 1) % step == 0)
            c->moe[c->M++] = (int16_t)l;
    if (!rc && c->M == 0)
        rc = fm_fail(err, FM_ECONFIG,
                     "no layer is a mixture of experts (decoder_sparse_step, mlp_only_layers)");
    return rc;
}

static int read_sparsemixer(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    double eps = 0.01;
    c->router = FM_ROUTER_SPARSEMIXER;
    int rc = fm_json_opt_double(json, "router_jitter_noise", 0, 1e18, &eps, err);
    if (!rc && c->K != 2)
        rc = fm_fail(err, FM_ECONFIG, "num_experts_per_tok is %d; sparsemixer chooses 2", c->K);
    c->router_eps = (float)(2 * eps);
    return rc;
}

/* Qwen and OLMoE say num_experts; transformers 5 may store either name. */
static int read_experts(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const struct fm_model_family *f = c->family;
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(json, "num_experts");
    const char *key = number && !cJSON_IsNull(number) ? "num_experts" : "num_local_experts";
    bool renormalised = f->norm_topk;
    int rc = read_size(&c->E, json, key, EXPERTS_MAX, err);
    if (!rc)
        rc = read_size(&c->K, json, "num_experts_per_tok", EXPERTS_MAX, err);
    if (!rc)
        rc = read_size(&c->I, json, f->width_key, CHANNELS_MAX, err);
    if (!rc && c->M < c->L)
        rc = read_size(&c->dense, json, "intermediate_size", CHANNELS_MAX, err);
    if (!rc && f->shared_expert)
        rc = read_size(&c->shared, json, "shared_expert_intermediate_size", CHANNELS_MAX, err);
    if (!rc && f->topk_key)
        rc = fm_json_opt_bool(json, "norm_topk_prob", &renormalised, err);
    c->router = renormalised ? FM_ROUTER_SOFTMAX : FM_ROUTER_SOFTMAX_RAW;
    if (!rc && f->sparsemixer)
        rc = read_sparsemixer(c, json, err);
    if (!rc && c->K > c->E)
        rc = fm_fail(err, FM_EFORMAT, "num_experts_per_tok %d is more than %s %d", c->K, key, c->E);
    return rc;
}

/* The whole model in float32 must be a number of bytes that a size_t holds. */
static int check_products(const struct fm_config *c, struct fm_err *err)
{
    size_t layer = 0, plain = 0, all = 0, table = 0;
    size_t mlp = (size_t)(c->dense > c->shared ? c->dense : c->shared);
    bool fits = fm_mul(&layer, 3 * sizeof(float) * (size_t)c->I, (size_t)c->H) &&
                fm_mul(&layer, layer, (size_t)c->E) &&
                fm_mul(&plain, 3 * sizeof(float) * mlp, (size_t)c->H) &&
                fm_add(&layer, layer, plain) && fm_mul(&all, layer, (size_t)c->L) &&
                fm_mul(&table, 2 * sizeof(float) * (size_t)c->V, (size_t)c->H) &&
                fm_add(&all, all, table) && all < SIZE_MAX / 4;
    return fits ? FM_OK : fm_fail(err, FM_ECONFIG, "the model's size overflows");
}

static int read_config(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    int rc = find_family(c, json, err);
    if (rc)
        return rc;
    double eps = c->family->eps;
    c->T_max = c->family->positions;
    rc = refuse_quantized(json, err);
    if (!rc)
        rc = refuse_activation(json, err);
    if (!rc)
        rc = read_size(&c->H, json, "hidden_size", HIDDEN_MAX, err);
    if (!rc)
        rc = read_layers(c, json, err);
    if (!rc)
        rc = read_size(&c->V, json, "vocab_size", VOCABULARY_MAX, err);
    if (!rc)
        rc = read_size_opt(&c->T_max, json, "max_position_embeddings", POSITIONS_MAX, err);
    if (!rc)
        rc = fm_json_opt_double(json, "rms_norm_eps", 0, 1, &eps, err);
    if (!rc)
        rc = fm_json_opt_bool(json, "tie_word_embeddings", &c->tied, err);
    if (!rc)
        rc = read_attention(c, json, err);
    if (!rc)
        rc = read_experts(c, json, err);
    c->eps = (float)eps;
    return rc ? rc : check_products(c, err);
}

int fm_config_parse(struct fm_config *config, const char *text, size_t size, struct fm_err *err)
{
    cJSON *json = NULL;
    *config = (struct fm_config){0};
    int rc = fm_json_tree(&json, text, size, err);
    if (!rc)
        rc = cJSON_IsObject(json) ? read_config(config, json, err)
                                  : fm_fail(err, FM_EFORMAT, "not a JSON object");
    cJSON_Delete(json);
    return rc ? fm_within(err, "config.json") : FM_OK;
}

const char *fm_config_family(const struct fm_config *config)
{
    return config->family->name;
}
