/*
 * Laguna: DeepSeek-V3's experts without groups, and a shared expert whose width has its own key;
 * grouped-query attention with norms of every head of q and k, a gate for each head, and a number
 * of query heads that differs between layers; layers with a sliding window have a different
 * rotation from the others.  Source: transformers' modular_laguna.py.
 */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/family.h"

#include <string.h>

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_GQA_HEAD_GATE_WEIGHT(FM_ATTENTION),
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE),
    FM_MLP_WEIGHTS_AS(FM_MLP "shared_expert.", FM_MLP "shared_experts.", FM_SHARED),
    FM_QWEN_MOE_WEIGHTS,
    FM_SCORED_BIAS_WEIGHT(FM_MLP "experts.e_score_correction_bias",
                          FM_MLP "gate.e_score_correction_bias", "E"),
    FM_WEIGHTS_END,
};
/* clang-format on */

/* true and "per-head" mean a gate for each head; transformers treats any other value, even
 * false, as a gate for each element. */
static int check_gate(const cJSON *value, const char *key, struct fm_err *err)
{
    if (!value || cJSON_IsNull(value) || cJSON_IsTrue(value) ||
        (cJSON_IsString(value) && strcmp(value->valuestring, "per-head") == 0))
        return FM_OK;
    return fm_fail(err, FM_ECONFIG, "%s '%.64s' is not supported for laguna; supported: per-head",
                   key, cJSON_IsString(value) ? value->valuestring : "?");
}

static int check_gates(const cJSON *json, struct fm_err *err)
{
    const cJSON *list = NULL, *entry;
    int rc = check_gate(fm_json_value(json, "gating"), "gating", err);
    if (!rc)
        rc = fm_keys_array(&list, json, "gating_types", err);
    cJSON_ArrayForEach(entry, list)
    {
        if (!rc)
            rc = check_gate(entry, "gating_types", err);
    }
    return rc;
}

/* Check older files' list of dense layers, which transformers does not read. */
static int check_dense(const struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const cJSON *list = fm_json_value(json, "mlp_only_layers"), *entry;
    int found = 0;
    if (!list)
        return FM_OK;
    cJSON_ArrayForEach(entry, list)
    {
        double l = cJSON_IsNumber(entry) ? entry->valuedouble : -1;
        found += l >= 0 && l < c->L && l == (int)l && fm_config_moe(c, (int)l) < 0 ? 1 : c->L + 1;
    }
    return cJSON_IsArray(list) && found == c->L - c->M
               ? FM_OK
               : fm_fail(err, FM_ECONFIG,
                         "mlp_only_layers are not the dense layers of mlp_layer_types or its "
                         "default, and programs differ in which they read");
}

static const struct fm_deepseek_layers layers = {
    .dense = 1, .listed = true, .unread = true, .width_key = "shared_expert_intermediate_size"};

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    if (fm_json_value(keys->json, "swa_rope_parameters"))
        return fm_fail(err, FM_ECONFIG,
                       "swa_rope_parameters is not supported for laguna; use sliding_attention in "
                       "rope_parameters");
    if (check_gates(keys->json, err) || fm_deepseek_layers(c, keys, err))
        return err->code;
    return check_dense(c, keys->json, err);
}

static const struct fm_rope_options window_rope = {
    .theta = 1e4, .partial = 1, .partial_object = 1, .layer_type = "sliding_attention"};

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .o_bias = true,
                                                .window = true,
                                                .alternates = true,
                                                .every = 1,
                                                .usual_window = 512,
                                                .heads_key = "num_attention_heads_per_layer",
                                                .gated = true,
                                                .gate_apart = true,
                                                .gate_heads = true,
                                                .gate_softplus = true,
                                                .qk_norm = FM_QK_NORM_HEAD,
                                                .rope = {.theta = 5e5,
                                                         .yarn = true,
                                                         .partial = 0.5,
                                                         .partial_object = 1,
                                                         .layer_type = "full_attention"},
                                                .window_rope = &window_rope};

static const struct fm_scored_options router = {
    .sigmoid = true, .renormalised = true, .scale_key = "moe_routed_scaling_factor", .scale = 1};

/* With another value of the first two, transformers fails or computes something else; only vLLM
 * reads the others. */
static const struct fm_keys_only only[] = {{"moe_apply_router_weight_on_input", "false"},
                                           {"moe_router_logit_softcapping", "0"},
                                           {"moe_router_score_func", "'sigmoid'"},
                                           {"norm_topk_prob", "true"},
                                           {"qkv_bias", "false"},
                                           {"decoder_sparse_step", "1"},
                                           {NULL, NULL}};

const struct fm_model_family fm_laguna = {
    .name = "laguna",
    .class_name = "Laguna",
    .width_key = "moe_intermediate_size",
    .read_layers = read_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-6,
    .positions = 131072,
    .only = only,
    .needed = "head_dim num_key_value_heads shared_expert_intermediate_size", /* defaults: 128, 8
                                                                                 and 512 */
    .keys = "first_k_dense_replace gating gating_types mlp_layer_types mlp_only_layers "
            "moe_layer_freq moe_routed_scaling_factor num_attention_heads_per_layer scoring_func "
            "shared_expert_intermediate_size swa_rope_parameters",
    .weight = weights,
};
