/*
 * MiMo-V2.5 and V2.6: MiMo-V2-Flash's layers, of which config.json's own keys say which have a
 * window and which have experts; layers with a window have any number of key heads.  As published
 * q, k and v are one tensor of FP8 codes, and V2.6's experts are MXFP4; such a tensor is never
 * stored as values, because without scales programs differ in the order of its rows, so that its
 * bundles keep codes, and its exports are uniform or padded.  transformers has no class for it; the
 * model's own code attends to sliding_window keys including the query's own, SGLang to one more.
 *
 * Other parts are for images and audio.  Source: the model's own code, and SGLang's and vLLM's
 * mimo_v2.py.
 */
#include <string.h>

#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"
#include "lib/family/models/deepseek.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_GQA_FUSED_WEIGHT(FM_ATTENTION),
    FM_GQA_SINKS_WEIGHT_AS(FM_ATTENTION "attention_sink_bias", FM_ATTENTION "sinks"),
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE),
    FM_QWEN_MOE_WEIGHTS,
    FM_DEEPSEEK_BIAS_WEIGHT,
    FM_WEIGHTS_END,
};
/* clang-format on */

/* Give config.json the value under a name that the blocks read, unless it has that key. */
static void add_key(cJSON *json, const char *key, cJSON *value)
{
    if (fm_json_value(json, key)) {
        cJSON_Delete(value);
        return;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(json, key);
    fm_json_add(json, key, value);
}

/* `key`, a list of words for each layer, from `own`, a list of 0 and 1. */
static int respell_list(cJSON *json, const char *key, const char *own, const char *const word[2],
                        struct fm_err *err)
{
    const cJSON *list = fm_json_value(json, own), *entry;
    int layers = 0, rc = fm_keys_size(&layers, json, "num_hidden_layers", FM_LAYERS_MAX, err);
    if (rc)
        return rc;
    if (!cJSON_IsArray(list))
        return fm_fail(err, FM_EFORMAT, "key '%s' is not a list with 0 or 1 for each layer", own);
    if (cJSON_GetArraySize(list) != layers)
        return fm_fail(err, FM_EFORMAT, "%s has %d entries for %d layers", own,
                       cJSON_GetArraySize(list), layers);
    cJSON *words = cJSON_CreateArray();
    cJSON_ArrayForEach(entry, list)
        fm_json_add_string(words, NULL, word[cJSON_GetNumberValue(entry) == 1]);
    add_key(json, key, words);
    return FM_OK;
}

/* Check an object with the rotation of all layers, whose numbers must be those of the model's own
 * keys, because programs differ in which they read. */
static int check_rotation(const cJSON *json, const char *name, struct fm_err *err)
{
    static const char *const numbers[] = {"rope_theta", "partial_rotary_factor"};
    const cJSON *object = fm_json_value(json, name), *key;
    cJSON_ArrayForEach(key, object)
    {
        bool type = strcmp(key->string, "rope_type") == 0 || strcmp(key->string, "type") == 0;
        bool same = type && cJSON_IsString(key) && strcmp(key->valuestring, "default") == 0;
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            same = same || (strcmp(key->string, numbers[i]) == 0 &&
                            cJSON_Compare(key, fm_json_value(json, numbers[i]), true));
        if (!same)
            return fm_fail(err, FM_ECONFIG,
                           "'%.64s' of %s is not supported for mimo_v2 unless it says what the "
                           "model's own keys say, because programs differ in which they read",
                           key->string, name);
    }
    return FM_OK;
}

/* rope_parameters with an object for each type of layer, from rope_theta and swa_rope_theta. */
static int respell_rotation(cJSON *json, struct fm_err *err)
{
    static const char *const type[] = {"full_attention", "sliding_attention"};
    static const char *const own[] = {"rope_theta", "swa_rope_theta"};
    const cJSON *theta = fm_json_value(json, own[0]),
                *partial = fm_json_value(json, "partial_rotary_factor");
    if (check_rotation(json, "rope_scaling", err) || check_rotation(json, "rope_parameters", err))
        return err->code;
    cJSON *all = cJSON_CreateObject();
    for (int i = 0; i < 2; i++) {
        cJSON *one = fm_json_add_object(all, type[i]);
        theta = fm_json_value(json, own[i]) ? fm_json_value(json, own[i]) : theta;
        if (theta)
            fm_json_add(one, "rope_theta", cJSON_Duplicate(theta, true));
        if (partial)
            fm_json_add(one, "partial_rotary_factor", cJSON_Duplicate(partial, true));
    }
    cJSON_DeleteItemFromObjectCaseSensitive(json, "rope_scaling");
    cJSON_DeleteItemFromObjectCaseSensitive(json, "rope_parameters");
    fm_json_add(json, "rope_parameters", all);
    return FM_OK;
}

static int respell(cJSON *json, struct fm_err *err)
{
    static const char *const types[] = {"full_attention", "sliding_attention"};
    static const char *const mixtures[] = {"dense", "sparse"};
    const cJSON *window = fm_json_value(json, "sliding_window_size");
    if (respell_list(json, "layer_types", "hybrid_layer_pattern", types, err) ||
        respell_list(json, "mlp_layer_types", "moe_layer_freq", mixtures, err) ||
        respell_rotation(json, err))
        return err->code;
    if (window)
        add_key(json, "sliding_window", cJSON_Duplicate(window, true));
    return fm_json_is_whole(json) ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for config.json");
}

/* Read the number of key heads of layers with a window; their other sizes must be the usual ones.
 */
static int read_full(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    static const char *const size[][2] = {{"swa_num_attention_heads", "num_attention_heads"},
                                          {"swa_head_dim", "head_dim"},
                                          {"swa_v_head_dim", "v_head_dim"}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        if (!cJSON_Compare(fm_json_value(keys->json, size[i][0]),
                           fm_json_value(keys->json, size[i][1]), true))
            return fm_fail(err, FM_ECONFIG, "%s that is not %s is not supported for mimo_v2",
                           size[i][0], size[i][1]);
    int groups = c->G;
    int rc = fm_keys_size(&c->G, keys->json, "swa_num_key_value_heads", FM_HEADS_MAX, err);
    if (!rc)
        fm_gqa_differ(c, c->C, groups);
    return rc;
}

static const struct fm_deepseek_layers layers = {.listed = true, .unread = true};

static const struct fm_rope_options window_rope = {.theta = 1e4,
                                                   .partial = 1,
                                                   .partial_object = 1,
                                                   .layer_type = "sliding_attention",
                                                   .theta_key = "swa_rope_theta"};

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .window = true,
                                                .alternates = true,
                                                .pattern_key = "hybrid_layer_pattern",
                                                .value_key = "v_head_dim",
                                                .scale_key = "attention_value_scale",
                                                .scale = 1,
                                                .sinks = true,
                                                .window_sinks = true,
                                                .read_full = read_full,
                                                .layout_key = "attention_projection_layout",
                                                .rope = {.theta = 1e4,
                                                         .partial = 1,
                                                         .partial_object = 1,
                                                         .layer_type = "full_attention",
                                                         .theta_key = "rope_theta"},
                                                .window_rope = &window_rope};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(1);

/* The model's own code multiplies by routed_scaling_factor, vLLM and SGLang do not. */
static const struct fm_keys_only only[] = {{"add_swa_attention_sink_bias", "true"},
                                           {"add_full_attention_sink_bias", "false"},
                                           {"n_shared_experts", "0"},
                                           {"routed_scaling_factor", "1"},
                                           {NULL, NULL}};

static const char *const extra_names[] = {"model.mtp.", "visual.", "audio_encoder.",
                                          "speech_embeddings.", NULL};
static const char *const extra_objects[] = {"vision_config", "audio_config", NULL};
static const struct fm_extra_form extra = {
    .name = extra_names, .parts = 14, .count = fm_extra_nextn_counts, .object = extra_objects};

const struct fm_model_family fm_mimo_v2 = {
    .name = "mimo_v2",
    .class_name = "MiMoV2",
    .width_key = "moe_intermediate_size",
    .experts_key = "n_routed_experts",
    .respell = respell,
    .read_layers = fm_deepseek_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-6,
    .eps_key = "layernorm_epsilon",
    .positions = 32768,
    .only = only,
    .same = "sliding_window sliding_window_size;",
    .needed = "add_swa_attention_sink_bias head_dim num_key_value_heads rope_theta swa_head_dim "
              "swa_num_attention_heads swa_v_head_dim v_head_dim", /* programs differ in their
                                                                      defaults */
    .keys = FM_DEEPSEEK_KEYS " attention_chunk_size attention_projection_layout "
                             "attention_value_scale audio_config "
                             "audio_end_token_id audio_start_token_id audio_token_id "
                             "hybrid_block_size hybrid_layer_pattern image_token_id "
                             "layernorm_epsilon moe_router_dtype processor_config "
                             "sliding_window_size swa_head_dim swa_num_attention_heads "
                             "swa_num_key_value_heads swa_rope_theta swa_v_head_dim v_head_dim "
                             "video_token_id vision_config vision_end_token_id "
                             "vision_start_token_id",
    .weight = weights,
    .extra = &extra,
};
