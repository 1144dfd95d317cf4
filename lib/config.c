#include "lib/model.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "formats/json.h"
#include "lib/base/mem.h"
#include "lib/family.h"

/* A model beyond these is a broken file, or one that nobody has thought about. */
#define LAYERS_MAX 1024
#define EXPERTS_MAX 1024
#define CHANNELS_MAX (1 << 20)
#define HIDDEN_MAX (1 << 17)
#define HEADS_MAX 1024
#define HEAD_DIM_MAX 1024
#define VOCABULARY_MAX (1 << 23)
#define POSITIONS_MAX (1 << 28)
#define EXACT_MAX (((int64_t)1 << 53) - 1)

static const struct fm_model_family families[] = {
    {.name = "mixtral",
     .class_name = "Mixtral",
     .experts_key = "num_local_experts",
     .width_key = "intermediate_size",
     .rope_theta = 1e6,
     .weight = fm_weights_mixtral},
};
#define FAMILIES (sizeof families / sizeof *families)

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
    bool ragged = cJSON_HasObjectItem(json, "fm_widths") && strncmp(type, "fm_", 3) == 0;
    char known[256] = "";
    for (size_t i = 0; i < FAMILIES; i++) {
        if (strcmp(ragged ? type + 3 : type, families[i].name) == 0) {
            c->family = &families[i];
            return FM_OK;
        }
        if (i > 0)
            strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, families[i].name, sizeof known - strlen(known) - 1);
    }
    return fm_fail(err, FM_ECONFIG, "model_type '%.64s' is not supported; supported: %s", type,
                   known);
}

/* Features that change what the model computes and that we do not compute. */
static int refuse_features(const cJSON *json, struct fm_err *err)
{
    const cJSON *act = cJSON_GetObjectItemCaseSensitive(json, "hidden_act");
    if (act && !cJSON_IsNull(act)) {
        const char *name = NULL;
        int rc = fm_json_get_string(json, "hidden_act", &name, err);
        if (rc)
            return rc;
        if (strcmp(name, "silu") != 0)
            return fm_fail(err, FM_ECONFIG, "hidden_act '%.64s' is not supported; supported: silu",
                           name);
    }
    bool bias = false;
    int rc = fm_json_opt_bool(json, "attention_bias", &bias, err);
    if (rc)
        return rc;
    if (bias)
        return fm_fail(err, FM_ECONFIG, "attention_bias true is not supported");
    const cJSON *quant = cJSON_GetObjectItemCaseSensitive(json, "quantization_config");
    if (quant && !cJSON_IsNull(quant))
        return fm_fail(err, FM_ECONFIG,
                       "the model is quantized (quantization_config); use its BF16, F16 or F32 "
                       "original");
    return FM_OK;
}

/* `type` or `rope_type` of an object, where there is one, must be "default". */
static int check_rope_type(const cJSON *object, const char *where, struct fm_err *err)
{
    const char *keys[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, keys[i]);
        if (!v || cJSON_IsNull(v))
            continue;
        if (!cJSON_IsString(v) || strcmp(v->valuestring, "default") != 0)
            return fm_fail(err, FM_ECONFIG, "%s: %s '%.64s' is not supported; supported: default",
                           where, keys[i], cJSON_IsString(v) ? v->valuestring : "?");
    }
    return FM_OK;
}

/* transformers 4: rope_theta and rope_scaling; 5: rope_parameters, which wins. */
static int read_rope(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const char *objects[] = {"rope_scaling", "rope_parameters"};
    c->rope_theta = c->family->rope_theta;
    int rc = fm_json_opt_double(json, "rope_theta", 1, 1e18, &c->rope_theta, err);
    for (int i = 0; i < 2 && !rc; i++) {
        const cJSON *object = cJSON_GetObjectItemCaseSensitive(json, objects[i]);
        if (!object || cJSON_IsNull(object))
            continue;
        if (!cJSON_IsObject(object))
            return fm_fail(err, FM_EFORMAT, "key '%s' is not an object", objects[i]);
        rc = check_rope_type(object, objects[i], err);
        if (!rc)
            rc = fm_json_opt_double(object, "rope_theta", 1, 1e18, &c->rope_theta, err);
    }
    return rc;
}

/* null, 0 and `use_sliding_window: false` all mean none. */
static int read_window(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    int64_t window = 0;
    bool use = true;
    int rc = fm_json_opt_int(json, "sliding_window", 0, EXACT_MAX, &window, err);
    if (!rc)
        rc = fm_json_opt_bool(json, "use_sliding_window", &use, err);
    /* A window over all positions is none. */
    c->window = use && window <= POSITIONS_MAX ? (int)window : 0;
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
        rc = read_size_opt(&c->C, json, "head_dim", HEAD_DIM_MAX, err);
    if (rc)
        return rc;
    if (c->Q % c->G != 0)
        return fm_fail(err, FM_EFORMAT,
                       "num_attention_heads %d is no multiple of num_key_value_heads %d", c->Q,
                       c->G);
    if (c->C < 2 || c->C % 2 != 0 || c->C > HEAD_DIM_MAX)
        return fm_fail(err, FM_EFORMAT, "head_dim %d is not even, or not in 2 to %d", c->C,
                       HEAD_DIM_MAX);
    rc = read_window(c, json, err);
    return rc ? rc : read_rope(c, json, err);
}

static int read_experts(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    int rc = read_size(&c->E, json, c->family->experts_key, EXPERTS_MAX, err);
    if (!rc)
        rc = read_size(&c->K, json, "num_experts_per_tok", EXPERTS_MAX, err);
    if (!rc)
        rc = read_size(&c->I, json, c->family->width_key, CHANNELS_MAX, err);
    if (!rc && c->K > c->E)
        rc = fm_fail(err, FM_EFORMAT, "num_experts_per_tok %d is more than %s %d", c->K,
                     c->family->experts_key, c->E);
    return rc;
}

/* The whole model in float32 must be a number of bytes that a size_t holds. */
static int check_products(const struct fm_config *c, struct fm_err *err)
{
    size_t layer = 0, all = 0, table = 0;
    bool fits = fm_mul(&layer, 3 * sizeof(float) * (size_t)c->I, (size_t)c->H) &&
                fm_mul(&layer, layer, (size_t)c->E) && fm_mul(&all, layer, (size_t)c->L) &&
                fm_mul(&table, 2 * sizeof(float) * (size_t)c->V, (size_t)c->H) &&
                fm_add(&all, all, table) && all < SIZE_MAX / 4;
    return fits ? FM_OK : fm_fail(err, FM_ECONFIG, "the model's size overflows");
}

static int read_config(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    double eps = 1e-5;
    c->T_max = 131072;
    int rc = find_family(c, json, err);
    if (!rc)
        rc = refuse_features(json, err);
    if (!rc)
        rc = read_size(&c->H, json, "hidden_size", HIDDEN_MAX, err);
    if (!rc)
        rc = read_size(&c->L, json, "num_hidden_layers", LAYERS_MAX, err);
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

/* All that is not an expert. */
static uint64_t params_fixed(const struct fm_config *c)
{
    uint64_t H = (uint64_t)c->H, table = (uint64_t)c->V * H;
    uint64_t heads = 2 * (uint64_t)c->C * ((uint64_t)c->Q + (uint64_t)c->G);
    uint64_t layer = H * (2 + heads + (uint64_t)c->E);
    return (c->tied ? 1 : 2) * table + H + (uint64_t)c->L * layer;
}

/* Sum of widths over all experts of a layer. */
static uint64_t channels(const struct fm_config *c, const uint32_t *widths, int l)
{
    uint64_t sum = 0;
    for (int e = 0; e < c->E; e++)
        sum += widths ? widths[(size_t)l * (size_t)c->E + (size_t)e] : (uint32_t)c->I;
    return sum;
}

uint64_t fm_config_params(const struct fm_config *c, const uint32_t *widths)
{
    uint64_t sum = params_fixed(c);
    for (int l = 0; l < c->L; l++)
        sum += 3 * (uint64_t)c->H * channels(c, widths, l);
    return sum;
}

uint64_t fm_config_params_active(const struct fm_config *c, const uint32_t *widths)
{
    uint64_t sum = params_fixed(c);
    for (int l = 0; l < c->L; l++)
        sum += 3 * (uint64_t)c->H * channels(c, widths, l) * (uint64_t)c->K / (uint64_t)c->E;
    return sum;
}
