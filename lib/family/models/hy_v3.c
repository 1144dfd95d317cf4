/*
 * Hy3: DeepSeek-V3's experts without groups, whose weights are always renormalised; grouped-query
 * attention with norms of every head of q and k; its own tensor names.  transformers reads the
 * width of the experts and of the shared expert from moe_intermediate_size, vLLM from
 * expert_hidden_dim.  Source: transformers' modular_hy_v3.py.
 */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE),
    FM_MLP_WEIGHTS_AS(FM_MLP "shared_mlp.", FM_MLP "shared_experts.", FM_SHARED),
    FM_ROUTER_WEIGHT(FM_MLP "router.gate.weight", FM_MLP "gate.weight"),
    FM_SCORED_BIAS_WEIGHT(FM_MLP "expert_bias", FM_MLP "e_score_correction_bias", "E"),
    FM_SWIGLU_WEIGHTS(FM_MLP, "gate_proj", "up_proj", "down_proj"),
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_deepseek_layers layers = {
    .dense = 1, .shared = 1, .listed = true, .unread = true};

/* Without a shared expert, transformers would create one as wide as a dense layer. */
static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int rc = fm_deepseek_layers(c, keys, err);
    return rc || c->shared > 0 ? rc
                               : fm_fail(err, FM_ECONFIG,
                                         "num_shared_experts 0 is not supported for %s, because "
                                         "programs interpret it differently",
                                         keys->family);
}

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .o_bias = true,
                                                .qk_norm = FM_QK_NORM_HEAD,
                                                .rope = {.theta = 11158840}};

static const struct fm_scored_options router = {.sigmoid = true,
                                                .renormalised = true,
                                                .eps = 1e-20,
                                                .scale_key = "router_scaling_factor",
                                                .scale = 2.826};

static const struct fm_keys_only only[] = {{"route_norm", "true"},
                                           {"norm_topk_prob", "true"},
                                           {"qk_norm", "true"},
                                           {"moe_router_use_sigmoid", "true"},
                                           {"moe_router_enable_expert_bias", "true"},
                                           {"mlp_bias", "false"},
                                           {NULL, NULL}};

/* Like fm_extra_nextn, but the last norm has another name, and vLLM uses the embedding and head of
 * the model even if the checkpoint has others for this layer. */
static const struct fm_extra_draft draft = {FM_EXTRA_NEXTN_DRAFT,
                                            .norm = FM_EXTRA_AFTER "final_layernorm.weight"};
static const struct fm_extra_form extra = {FM_EXTRA_NEXTN_FORM, .draft = &draft};

const struct fm_model_family fm_hy_v3 = {
    .name = "hy_v3",
    .class_name = "HYV3",
    .width_key = "moe_intermediate_size",
    .width_twin = "expert_hidden_dim",
    .same = "moe_intermediate_size expert_hidden_dim;",
    .shared_key = "num_shared_experts",
    .read_layers = read_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-5,
    .positions = 131072,
    .only = only,
    .needed = "head_dim num_key_value_heads", /* transformers' defaults are 128 and 8 */
    .keys = "enable_attention_fp32_softmax enable_lm_head_fp32 enable_moe_fp32_combine "
            "first_k_dense_replace mlp_layer_types moe_layer_freq router_scaling_factor "
            "scoring_func",
    .weight = weights,
    .extra = &extra,
};
