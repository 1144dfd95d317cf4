/*
 * Read sizes from config.json.  Keys that all families share are read here; the family's blocks
 * read the rest.  Every number is checked, and unsupported features are refused by name rather than
 * ignored, because scores of a model that is computed slightly wrong are useless.
 */
#include "lib/family/family.h"

#include <stdio.h>
#include <string.h>

#include "formats/json/json.h"
#include "formats/quant/quant.h"
#include "formats/tensor/hftext.h"
#include "lib/base/mem.h"
#include "lib/block/experts.h"
#include "lib/block/mlp.h"
#include "lib/family/extra.h"

/* Accept a family's alias only if `architectures` names the family's class, or in the text part of
 * a wrapper is missing. */
static int check_alias(const struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "architectures");
    const char *have = cJSON_GetStringValue(cJSON_GetArrayItem(list, 0));
    size_t n = strlen(c->family->class_name);
    if (!list && fm_json_has(json, FM_HFTEXT_WRAPPER))
        return FM_OK;
    if (have && strncmp(have, c->family->class_name, n) == 0 &&
        strcmp(have + n, "ForCausalLM") == 0)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "model_type '%s' with architectures '%.64s' is not supported; supported: "
                   "%sForCausalLM",
                   c->type, have ? have : "", c->family->class_name);
}

/* Any wrapper may have a text part, but a family is not a wrapper. */
static int check_wrapper(const cJSON *json, struct fm_err *err)
{
    const cJSON *wrapper = cJSON_GetObjectItemCaseSensitive(json, FM_HFTEXT_WRAPPER);
    const char *type = fm_json_string_value(wrapper, "model_type");
    if (!type || !fm_families_find(type))
        return FM_OK;
    return fm_fail(
        err, FM_ECONFIG,
        "model_type '%s' has a text_config, and programs differ in whether they read it; "
        "remove text_config",
        type);
}

static int find_family(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const char *type = NULL;
    if (fm_json_get_string(json, "model_type", &type, err) || check_wrapper(json, err))
        return err->code;
    /* A ragged export has a different model_type, so that it is not read as the stock model. */
    bool ours = fm_json_has(json, "fm_widths") && strncmp(type, "fm_", 3) == 0;
    c->family = fm_families_find(ours ? type + 3 : type);
    if (c->family) {
        bool alias = strcmp(ours ? type + 3 : type, c->family->name) != 0;
        c->type = alias ? c->family->alias : c->family->name;
        return alias ? check_alias(c, json, err) : FM_OK;
    }
    char known[512];
    fm_families_list(known, sizeof known);
    return fm_fail(err, FM_ECONFIG, "model_type '%.64s' is not supported; supported: %s", type,
                   known);
}

bool fm_families_fused(const struct fm_model_family *family)
{
    for (const struct fm_weight *w = family->weight; fm_weights_more(w); w++)
        if (w->name[FM_NAMING_STOCK] && fm_weights_is_expert(w))
            return !fm_weights_per_expert(w, FM_NAMING_STOCK);
    return false;
}

int fm_families_storage(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const cJSON *old = fm_json_value(json, "compression_config");
    const cJSON *quant = fm_json_value(json, "quantization_config");
    bool known = true;
    if (quant) {
        fm_schemes_free(c->schemes);
        c->schemes = NULL;
        if (fm_storage_read(&c->scheme, &c->schemes, quant, fm_families_fused(c->family), &known,
                            err))
            return known ? fm_within(err, "quantization_config") : err->code;
    }
    if (!old)
        return FM_OK;
    const char *method = fm_json_string_value(old, "quant_method");
    return fm_fail(err, FM_ECONFIG,
                   "the model is quantized (compression_config%s%.32s); use its BF16, F16 or F32 "
                   "original, or dequantize it first",
                   method ? ": " : "", method ? method : "");
}

/* Refuse a sparse indexer, which chooses the tokens that attention reads; for families that are not
 * `indexed`. */
static int refuse_indexer(const cJSON *json, struct fm_err *err)
{
    const char *keys[] = {"index_topk", "index_n_heads", "index_head_dim"};
    for (int i = 0; i < 3; i++)
        if (fm_json_value(json, keys[i]))
            return fm_fail(err, FM_ECONFIG, "%s: attention with a sparse indexer is not supported",
                           keys[i]);
    return FM_OK;
}

/* Every layer has experts unless the family's keys say otherwise. */
static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int rc = fm_keys_size(&c->L, keys->json, "num_hidden_layers", FM_LAYERS_MAX, err);
    if (rc)
        return rc;
    for (int l = 0; l < c->L; l++)
        c->moe[c->M++] = (int16_t)l;
    return c->family->read_layers ? c->family->read_layers(c, keys, err) : FM_OK;
}

/* Return the first of the keys own, usual and other that config.json contains.  If it contains
 * none of them, return `own`, or `other` if `own` is NULL.  `usual` may be NULL too. */
static const char *first_key(const cJSON *json, const char *own, const char *usual,
                             const char *other)
{
    const char *keys[] = {own, usual, other};
    for (int i = 0; i < 3; i++)
        if (keys[i] && fm_json_value(json, keys[i]))
            return keys[i];
    return own ? own : other;
}

static int need_keys(const char *needed, const cJSON *json, struct fm_err *err)
{
    char key[64];
    for (int n = 0; sscanf(needed, "%63s%n", key, &n) == 1; needed += n)
        if (!fm_json_value(json, key))
            return fm_fail(err, FM_EFORMAT, "key '%s' is missing", key);
    return FM_OK;
}

/* Keys with one meaning in all families: transformers reads one, or the one that is saved last, and
 * servers read another. */
static const char same[] = "moe_num_experts n_routed_experts num_experts num_local_experts; "
                           "moe_k num_experts_per_tok experts_per_token;";

/* Qwen and OLMoE use num_experts; transformers 5 may save num_experts, num_local_experts or the
 * family's own key. */
static int read_experts(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *json = keys->json;
    const struct fm_model_family *f = c->family;
    const char *key = first_key(json, f->experts_key, "num_experts", "num_local_experts");
    const char *chosen = first_key(json, f->chosen_key, NULL, "num_experts_per_tok");
    if (fm_keys_size(&c->E, json, key, FM_EXPERTS_MAX, err) ||
        fm_keys_size(&c->K, json, chosen, FM_EXPERTS_MAX, err) ||
        fm_keys_size(&c->I, json, f->width_key, FM_CHANNELS_MAX, err) ||
        f->router->read(c, f->router_options, keys, err) || fm_keys_same(json, same, err) ||
        (f->same && fm_keys_same(json, f->same, err)))
        return err->code;
    if (c->K > c->E)
        return fm_fail(err, FM_EFORMAT, "%s %d is more than %s %d", chosen, c->K, key, c->E);
    return FM_OK;
}

/* Check that the model's size in bytes in float32 fits into a size_t: experts, MLPs and embeddings,
 * with a margin for the rest. */
static int check_products(const struct fm_config *c, struct fm_err *err)
{
    size_t layer = 0, plain = 0, all = 0, table = 0;
    size_t mlp = (size_t)(c->dense > c->shared ? c->dense : c->shared);
    size_t channel = (size_t)fm_expert_channel_params(c->expert, c->H) * sizeof(float);
    bool fits = fm_mul(&layer, channel, (size_t)c->I) && fm_mul(&layer, layer, (size_t)c->E) &&
                fm_mul(&plain, (size_t)fm_mlp_channel_params(c->H) * sizeof(float), mlp) &&
                fm_add(&layer, layer, plain) && fm_mul(&all, layer, (size_t)c->L) &&
                fm_mul(&table, 2 * sizeof(float) * (size_t)c->V, (size_t)c->H) &&
                fm_add(&all, all, table) && all < SIZE_MAX / 4;
    return fits ? FM_OK : fm_fail(err, FM_ECONFIG, "the model's size overflows");
}

static int read_head(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const struct fm_model_family *f = c->family;
    const char *eps_key = f->eps_key ? f->eps_key : "rms_norm_eps";
    double eps = f->eps;
    c->tied = f->tied;
    int rc = FM_OK;
    if (fm_keys_size(&c->V, json, "vocab_size", FM_VOCABULARY_MAX, err) ||
        fm_keys_size_opt(&c->T_max, json, "max_position_embeddings", FM_POSITIONS_MAX, err) ||
        fm_json_opt_double(json, eps_key, 0, 1, &eps, err) ||
        fm_json_opt_bool(json, "tie_word_embeddings", &c->tied, err) ||
        (f->tied_key && fm_json_opt_bool(json, f->tied_key, &c->tied, err)) ||
        (f->head_bias && fm_json_opt_bool(json, "lm_head_bias", &c->head_bias, err)))
        rc = err->code;
    c->eps = (float)eps;
    c->T_exact = c->T_max;
    return rc;
}

/* Set c->mixed if an expert's tensor for one weight of layer l has a scheme that differs from
 * *layer, which becomes the scheme of the first tensor with codes. */
static void compare_experts(struct fm_config *c, struct fm_scheme *layer, bool *seen,
                            const struct fm_weight *w, int l)
{
    int count = fm_weights_per_expert(w, FM_NAMING_STOCK) ? c->E : 1;
    for (int e = 0; e < count; e++) {
        char name[FM_WEIGHT_NAME_BYTES];
        fm_weights_name(name, w->name[FM_NAMING_STOCK], l, e);
        struct fm_scheme own = fm_config_scheme(c, name);
        c->mixed = c->mixed || (*seen && !fm_scheme_equal(&own, layer));
        *layer = layer->storage ? *layer : own;
        *seen = true;
    }
}

/* Set the storage of a checkpoint with several schemes to that of the first layer whose experts are
 * codes. */
static void choose_storage(struct fm_config *c)
{
    struct fm_scheme first = {0};
    for (int i = 0; i < c->M; i++) {
        struct fm_scheme layer = {0};
        bool seen = false;
        for (const struct fm_weight *w = c->family->weight; fm_weights_more(w); w++)
            if (w->name[FM_NAMING_STOCK] && fm_weights_is_expert(w) && w->part != FM_PART_BIAS &&
                fm_weights_exists(c, w, c->moe[i]))
                compare_experts(c, &layer, &seen, w, c->moe[i]);
        first = first.storage ? first : layer;
    }
    if (first.storage) /* else experts are not quantised */
        c->scheme = first;
}

static int read_config(struct fm_config *c, cJSON *json, struct fm_err *err)
{
    int rc = find_family(c, json, err);
    if (!rc && c->family->respell)
        rc = c->family->respell(json, err);
    if (rc)
        return rc;
    const struct fm_model_family *f = c->family;
    const struct fm_keys keys = {.json = json, .family = c->type};
    c->T_max = f->positions;
    c->embed_scale = c->residual_scale = c->logit_scale = 1;
    c->attention = f->attention;
    c->expert = f->expert;
    c->norm = f->norm;
    c->output_norms = f->output_norms;
    c->part = fm_json_has(json, FM_HFTEXT_WRAPPER);
    c->fused = f->saved_fused || (f->wrapper_form && !c->part);
    if (fm_families_storage(c, json, err))
        return err->code;
    const cJSON *codes = cJSON_GetObjectItemCaseSensitive(json, FM_CODES_KEY);
    if (fm_json_has(json, "fm_widths") && fm_families_storage(c, codes, err))
        return fm_within(err, FM_CODES_KEY);
    if ((!f->indexed && refuse_indexer(json, err)) ||
        (f->only && fm_keys_only(&keys, f->only, err)) ||
        (f->needed && need_keys(f->needed, json, err)) || f->expert->read(c, &keys, err) ||
        fm_keys_size(&c->H, json, "hidden_size", FM_HIDDEN_MAX, err) ||
        read_layers(c, &keys, err) || fm_extra_read(c, &keys, err) || read_head(c, json, err) ||
        f->attention->read(c, f->attention_options, &keys, err) || read_experts(c, &keys, err))
        return err->code;
    if (c->schemes)
        choose_storage(c);
    return check_products(c, err);
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
    if (!rc)
        return FM_OK;
    fm_config_release(config);
    return fm_within(err, "config.json");
}

const char *fm_config_family(const struct fm_config *config)
{
    return config->type;
}
