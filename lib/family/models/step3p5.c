/*
 * Step-3.5-Flash and the text part of Step-3.7-Flash, wrapper step3p7: grouped-query attention with
 * norms of every head of q and k and a sigmoid gate for each head; more query heads, and a
 * different rotation, in layers with a sliding window; SwiGLU with a limit in some layers; norms
 * that multiply by 1 + w; a sigmoid router with a bias for the choice, and a shared expert.  Gate,
 * up and down of a layer's experts are one tensor each, in the FP8 forms with scales of one more
 * dimension.
 *
 * Published config.json files have lists with an entry for each layer, some also for layers of
 * multi-token prediction, where transformers has an object for each type of layer.  Source:
 * transformers' modular_step3p7.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/block/gqa.h"
#include "lib/block/limited.h"
#include "lib/block/norm.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"
#include "lib/family/models/deepseek.h"

#define MOE "model.layers.{l}.moe."

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_GQA_HEAD_GATE_WEIGHT(FM_ATTENTION),
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE),
    FM_MLP_WEIGHTS_AS("model.layers.{l}.share_expert.", FM_MLP "shared_experts.", FM_SHARED),
    FM_ROUTER_WEIGHT(MOE "gate.weight", FM_MLP "gate.weight"),
    FM_SCORED_BIAS_WEIGHT(MOE "router_bias", FM_MLP "gate.e_score_correction_bias", "E"),
    {FM_STOCK(MOE "gate_proj.weight"), FM_PART_GATE, 0, "EIH", FM_MOE},
    {FM_STOCK(MOE "up_proj.weight"), FM_PART_UP, 0, "EIH", FM_MOE},
    {FM_STOCK(MOE "down_proj.weight"), FM_PART_DOWN, 0, "EHI", FM_MOE},
    FM_SWIGLU_ONLINE_WEIGHTS,
    FM_WEIGHTS_END,
};
/* clang-format on */

static bool is_sliding(const cJSON *type)
{
    const char *name = cJSON_GetStringValue(type);
    return name && strcmp(name, "sliding_attention") == 0;
}

static const char *const lists[] = {"layer_types",
                                    "mlp_layer_types",
                                    "swiglu_limits",
                                    "swiglu_limits_shared",
                                    "rope_theta",
                                    "partial_rotary_factors",
                                    NULL};

/* Remove the entries for layers of multi-token prediction from lists that have them. */
static void trim_lists(cJSON *json, int layers, int more)
{
    for (size_t i = 0; lists[i]; i++) {
        cJSON *list = cJSON_GetObjectItemCaseSensitive(json, lists[i]);
        bool padded = cJSON_IsArray(list) && cJSON_GetArraySize(list) == layers + more;
        for (int n = 0; padded && n < more; n++)
            cJSON_DeleteItemFromArray(list, layers);
    }
}

/* Copy the value of a key that has another name in transformers. */
static void rename_keys(cJSON *json)
{
    static const char *const names[][2] = {{"num_attention_groups", "num_key_value_heads"},
                                           {"moe_num_experts", "n_routed_experts"},
                                           {"moe_top_k", "num_experts_per_tok"},
                                           {"share_expert_dims", "share_expert_dim"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *value = fm_json_value(json, names[i][0]);
        if (!value || fm_json_value(json, names[i][1]))
            continue;
        cJSON_DeleteItemFromObjectCaseSensitive(json, names[i][1]);
        fm_json_add(json, names[i][1], cJSON_Duplicate(value, true));
    }
}

/* Mark the layers of moe_layers_enum, numbers in a list or in a string with commas; others are
 * those of multi-token prediction. */
static int read_enum(bool *moe, int layers, const cJSON *value, struct fm_err *err)
{
    static const char message[] = "moe_layers_enum is neither a list of layers nor a string of "
                                  "numbers with commas";
    const char *at = cJSON_GetStringValue(value);
    const cJSON *entry;
    if (!at && !cJSON_IsArray(value))
        return fm_fail(err, FM_EFORMAT, message);
    while (at && *at) {
        char *end;
        long l = strtol(at, &end, 10);
        if (end == at || (*end && *end != ','))
            return fm_fail(err, FM_EFORMAT, message);
        if (l >= 0 && l < layers)
            moe[l] = true;
        at = end + (*end == ',');
    }
    cJSON_ArrayForEach(entry, value)
    {
        if (!cJSON_IsNumber(entry))
            return fm_fail(err, FM_EFORMAT, message);
        if (entry->valuedouble >= 0 && entry->valuedouble < layers)
            moe[(int)entry->valuedouble] = true;
    }
    return FM_OK;
}

/* mlp_layer_types from moe_layers_enum, which must agree with it if both are present. */
static int respell_mixtures(cJSON *json, int layers, struct fm_err *err)
{
    const cJSON *value = fm_json_value(json, "moe_layers_enum");
    const cJSON *types = fm_json_value(json, "mlp_layer_types");
    bool moe[FM_LAYERS_MAX] = {false};
    int rc = value ? read_enum(moe, layers, value, err) : FM_OK;
    if (rc || !value)
        return rc;
    cJSON *list = cJSON_CreateArray();
    for (int l = 0; l < layers; l++)
        fm_json_add_string(list, NULL, moe[l] ? "sparse" : "dense");
    if (!types) {
        cJSON_DeleteItemFromObjectCaseSensitive(json, "mlp_layer_types");
        fm_json_add(json, "mlp_layer_types", list);
        return FM_OK;
    }
    bool same = cJSON_Compare(list, types, true);
    cJSON_Delete(list);
    return same ? FM_OK
                : fm_fail(err, FM_ECONFIG,
                          "mlp_layer_types and moe_layers_enum name different layers, and programs "
                          "differ in which they read");
}

/* Check that a key of attention_other_setting has the value of the model's own key. */
static int check_other(const cJSON *json, const cJSON *other, const char *key, const char *own,
                       struct fm_err *err)
{
    const cJSON *a = fm_json_value(other, key), *b = fm_json_value(json, own);
    return !a || !b || cJSON_Compare(a, b, true)
               ? FM_OK
               : fm_fail(err, FM_ECONFIG,
                         "%s of attention_other_setting differs from %s, which is not supported "
                         "for step3p5",
                         key, own);
}

/* The number of query heads of layers with a window; 0: as many as the others. */
static int read_sliding(int *heads, const cJSON *json, struct fm_err *err)
{
    const cJSON *other = fm_json_value(json, "attention_other_setting");
    const cJSON *type = fm_json_value(other, "attention_type");
    int own = 0;
    if (other && !cJSON_IsObject(other))
        return fm_fail(err, FM_EFORMAT, "key 'attention_other_setting' is not an object");
    if (type && !is_sliding(type))
        return fm_fail(err, FM_ECONFIG,
                       "attention_type of attention_other_setting is not supported for step3p5; "
                       "supported: sliding_attention");
    if (check_other(json, other, "num_attention_groups", "num_key_value_heads", err) ||
        check_other(json, other, "head_dim", "head_dim", err) ||
        fm_keys_size_opt(&own, other, "num_attention_heads", FM_HEADS_MAX, err) ||
        fm_keys_size_opt(heads, json, "num_sliding_attention_heads", FM_HEADS_MAX, err))
        return err->code;
    if (*heads > 0 && own > 0 && *heads != own)
        return fm_fail(err, FM_ECONFIG,
                       "num_sliding_attention_heads %d differs from num_attention_heads %d of "
                       "attention_other_setting, and programs differ in which they read",
                       *heads, own);
    *heads = *heads > 0 ? *heads : own;
    return FM_OK;
}

/* Check the number of heads of layer l in per_layer_config, which transformers saves for layers
 * that differ from the model's own keys. */
static int check_layer(const cJSON *json, int l, int heads, int usual, struct fm_err *err)
{
    char number[16];
    snprintf(number, sizeof number, "%d", l);
    const cJSON *all = fm_json_value(json, "per_layer_config"), *layer = fm_json_value(all, number);
    int own = usual, keys = cJSON_GetArraySize(layer);
    int rc = fm_keys_size_opt(&own, layer, "num_attention_heads", FM_HEADS_MAX, err);
    if (rc || !all ||
        (own == heads && keys == (fm_json_value(layer, "num_attention_heads") ? 1 : 0)))
        return rc;
    return fm_fail(err, FM_ECONFIG,
                   "per_layer_config of layer %d is not the num_attention_heads %d that other keys "
                   "give, and programs differ in which they read",
                   l, heads);
}

/* num_attention_heads_per_layer, the name that the attention reads. */
static int respell_heads(cJSON *json, int layers, struct fm_err *err)
{
    const cJSON *types = fm_json_value(json, "layer_types");
    int usual = 0, sliding = 0;
    if (fm_keys_size(&usual, json, "num_attention_heads", FM_HEADS_MAX, err) ||
        read_sliding(&sliding, json, err))
        return err->code;
    cJSON *list = cJSON_CreateArray();
    int rc = FM_OK;
    for (int l = 0; l < layers && !rc; l++) {
        bool window = is_sliding(cJSON_GetArrayItem(types, l));
        int heads = window && sliding > 0 ? sliding : usual;
        fm_json_add(list, NULL, cJSON_CreateNumber(heads));
        rc = check_layer(json, l, heads, usual, err);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(json, "num_attention_heads_per_layer");
    fm_json_add(json, "num_attention_heads_per_layer", list);
    return rc;
}

/* The value of `key`, one number or a list, in the layers of one type, which must have the same. */
static int read_type(double *value, const cJSON *json, const char *key, bool sliding, int layers,
                     struct fm_err *err)
{
    const cJSON *types = fm_json_value(json, "layer_types"), *list = fm_json_value(json, key),
                *entry;
    bool seen = false;
    int l = 0;
    if (!list || cJSON_IsNumber(list)) {
        *value = list ? list->valuedouble : *value;
        return FM_OK;
    }
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != layers)
        return fm_fail(err, FM_EFORMAT, "%s is not a list of numbers for %d layers", key, layers);
    cJSON_ArrayForEach(entry, list)
    {
        if (!cJSON_IsNumber(entry))
            return fm_fail(err, FM_EFORMAT, "%s of layer %d is not a number", key, l);
        if (is_sliding(cJSON_GetArrayItem(types, l++)) != sliding)
            continue;
        if (seen && entry->valuedouble != *value)
            return fm_fail(err, FM_ECONFIG,
                           "%s of layer %d is %g, and %g in an earlier layer of its type, which is "
                           "not supported for step3p5",
                           key, l - 1, entry->valuedouble, *value);
        *value = entry->valuedouble;
        seen = true;
    }
    return FM_OK;
}

/* rope_scaling applies to the layers of yarn_only_types: in transformers always those without a
 * window, elsewhere all if the key is missing. */
static int add_scaling(cJSON *full, const cJSON *json, struct fm_err *err)
{
    const cJSON *scaling = fm_json_value(json, "rope_scaling"), *key;
    const cJSON *only = fm_json_value(json, "yarn_only_types");
    const char *type = cJSON_GetStringValue(cJSON_GetArrayItem(only, 0));
    bool right = cJSON_GetArraySize(only) == 1 && type && strcmp(type, "full_attention") == 0;
    if (scaling && !cJSON_IsObject(scaling))
        return fm_fail(err, FM_EFORMAT, "key 'rope_scaling' is not an object");
    if ((scaling && scaling->child && !right) || (only && !right))
        return fm_fail(err, FM_ECONFIG,
                       "yarn_only_types is not ['full_attention'], and programs differ in the "
                       "layers to which they apply rope_scaling");
    cJSON_ArrayForEach(key, scaling)
    {
        cJSON_DeleteItemFromObjectCaseSensitive(full, key->string);
        fm_json_add(full, key->string, cJSON_Duplicate(key, true));
    }
    return FM_OK;
}

/* rope_parameters with an object for each type of layer, from lists. */
static int respell_rotation(cJSON *json, int layers, struct fm_err *err)
{
    static const char *const own[] = {"rope_theta", "partial_rotary_factors", "rope_scaling"};
    if (fm_json_value(json, "rope_parameters")) {
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            if (fm_json_value(json, own[i]))
                return fm_fail(err, FM_ECONFIG,
                               "%s is outside rope_parameters, and programs differ in which they "
                               "read; keep one of them",
                               own[i]);
        return FM_OK;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(json, "rope_parameters");
    cJSON *all = fm_json_add_object(json, "rope_parameters"), *full = NULL;
    for (int sliding = 0; sliding < 2; sliding++) {
        double theta = 1e4, partial = 1;
        if (read_type(&theta, json, "rope_theta", sliding, layers, err) ||
            read_type(&partial, json, "partial_rotary_factors", sliding, layers, err))
            return err->code;
        cJSON *one = fm_json_add_object(all, sliding ? "sliding_attention" : "full_attention");
        fm_json_add(one, "rope_theta", cJSON_CreateNumber(theta));
        fm_json_add(one, "partial_rotary_factor", cJSON_CreateNumber(partial));
        full = full ? full : one;
    }
    int rc = add_scaling(full, json, err);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(json, own[i]);
    return rc;
}

static int respell(cJSON *json, struct fm_err *err)
{
    int layers = 0, more = 0;
    if (fm_keys_size(&layers, json, "num_hidden_layers", FM_LAYERS_MAX, err) ||
        (cJSON_GetNumberValue(fm_json_value(json, "num_nextn_predict_layers")) > 0 &&
         fm_keys_size(&more, json, "num_nextn_predict_layers", FM_EXTRA_LAYERS_MAX, err)))
        return err->code;
    trim_lists(json, layers, more);
    rename_keys(json);
    if (!cJSON_IsArray(fm_json_value(json, "layer_types")))
        return FM_OK; /* refused later */
    if (respell_mixtures(json, layers, err) || respell_heads(json, layers, err) ||
        respell_rotation(json, layers, err))
        return err->code;
    return fm_json_is_whole(json) ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for config.json");
}

static const struct fm_deepseek_layers layers = {
    .listed = true, .unread = true, .width_key = "share_expert_dim"};

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *scalar = fm_json_value(keys->json, "query_pre_attn_scalar");
    const cJSON *turned = fm_json_value(keys->json, "use_rope_layers"), *entry;
    if (scalar && !cJSON_Compare(scalar, fm_json_value(keys->json, "head_dim"), true))
        return fm_fail(err, FM_ECONFIG,
                       "query_pre_attn_scalar that is not head_dim is not supported for step3p5");
    cJSON_ArrayForEach(entry, turned)
    {
        if (!cJSON_IsTrue(entry))
            return fm_fail(err, FM_ECONFIG,
                           "use_rope_layers that are not all true are not supported for step3p5");
    }
    return fm_deepseek_layers(c, keys, err);
}

static const struct fm_rope_options window_rope = {
    .theta = 1e4, .partial = 1, .partial_object = 1, .layer_type = "sliding_attention"};

static const struct fm_gqa_options attention = {.window = true,
                                                .alternates = true,
                                                .heads_key = "num_attention_heads_per_layer",
                                                .gated = true,
                                                .gate_apart = true,
                                                .gate_heads = true,
                                                .qk_norm = FM_QK_NORM_HEAD,
                                                .rope = {.theta = 1e4,
                                                         .llama3 = true,
                                                         .partial = 1,
                                                         .partial_object = 1,
                                                         .layer_type = "full_attention"},
                                                .window_rope = &window_rope};

static const struct fm_scored_options router = {
    .sigmoid = true, .renormalised = true, .scale_key = "moe_router_scaling_factor", .scale = 1};

static const struct fm_extra_form extra = {FM_EXTRA_NEXTN_FORM, .list = lists};

/* transformers reads only the last two of these. */
static const struct fm_keys_only only[] = {{"use_head_wise_attn_gate", "true"},
                                           {"use_moe", "true"},
                                           {"use_moe_router_bias", "true"},
                                           {"use_mfa", "false"},
                                           {"norm_expert_weight", "true"},
                                           {"moe_router_activation", "'sigmoid'"},
                                           {"att_impl_type", "'GQA'"},
                                           {"zero_centered", "true"},
                                           {"sink", "false"},
                                           {"mlp_bias", "false"},
                                           {"use_bidirectional_attention", "false"},
                                           {NULL, NULL}};

const struct fm_model_family fm_step3p5 = {
    .name = "step3p5",
    .class_name = "Step3p7",
    .served_as = "Step3p5ForCausalLM",
    .width_key = "moe_intermediate_size",
    .experts_key = "n_routed_experts",
    .respell = respell,
    .read_layers = read_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu_limited, fm_rmsnorm_plus),
    .eps = 1e-5,
    .positions = 128000,
    .only = only,
    .same = "num_attention_groups num_key_value_heads; moe_top_k num_experts_per_tok; "
            "share_expert_dim share_expert_dims;",
    .needed = "head_dim num_key_value_heads layer_types mlp_layer_types",
    .keys = "attention_other_setting layer_types max_seq_len mlp_layer_types moe_every_n_layer "
            "moe_layer_offset moe_layers_enum moe_num_experts moe_router_scaling_factor moe_top_k "
            "mtp_layer_types mtp_mlp_layer_types need_fp32_gate num_attention_groups "
            "num_mtp_layers num_sliding_attention_heads partial_rotary_factors "
            "query_pre_attn_scalar share_expert_dim share_expert_dims swiglu_limits "
            "swiglu_limits_shared use_qk_norm use_rope_layers yarn_only_types",
    .weight = weights,
    .extra = &extra,
};
