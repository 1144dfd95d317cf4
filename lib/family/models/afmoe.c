/*
 * Trinity (AFMoE): DeepSeek-V3's experts without groups; grouped-query attention gated by a
 * separate projection; norms of the outputs of attention and MLP, so that post_attention_layernorm
 * is not the norm before the MLP; a sliding window in most layers, and no positional encoding in
 * the others; with mup_enabled, embeddings multiplied by the square root of H.  Source:
 * transformers' modular_afmoe.py.
 */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/family.h"

#include <math.h>

#define LAYER "model.layers.{l}."

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_ENDS,
    FM_NORM(LAYER "input_layernorm.weight", input_norm, FM_ALWAYS),
    FM_NORM(LAYER "post_attention_layernorm.weight", attention_norm, FM_ALWAYS),
    FM_NORM(LAYER "pre_mlp_layernorm.weight", post_norm, FM_ALWAYS),
    FM_NORM(LAYER "post_mlp_layernorm.weight", mlp_norm, FM_ALWAYS),
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_GQA_GATE_WEIGHT(FM_ATTENTION),
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE),
    FM_MLP_WEIGHTS(FM_MLP "shared_experts.", FM_SHARED),
    FM_ROUTER_WEIGHT(FM_MLP "router.gate.weight", FM_MLP "router.gate.weight"),
    FM_SCORED_BIAS_WEIGHT(FM_MLP "expert_bias", FM_MLP "expert_bias", "E"),
    FM_SWIGLU_WEIGHTS(FM_MLP, "gate_proj", "up_proj", "down_proj"),
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_deepseek_layers layers = {
    .dense = 1, .shared = 2, .dense_key = "num_dense_layers"};

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    bool scaled = false;
    int rc = fm_json_opt_bool(keys->json, "mup_enabled", &scaled, err);
    if (!rc && scaled)
        c->embed_scale = (float)sqrt(c->H);
    return rc ? rc : fm_deepseek_layers(c, keys, err);
}

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .o_bias = true,
                                                .window = true,
                                                .alternates = true,
                                                .every_key = "global_attn_every_n_layers",
                                                .every = 4,
                                                .unrotated = true,
                                                .gated = true,
                                                .gate_apart = true,
                                                .usual_window = 1024,
                                                .qk_norm = FM_QK_NORM_HEAD,
                                                .rope = {.theta = 1e4}};

static const struct fm_scored_options router = {
    .sigmoid = true, .renormalised = true, .eps = 1e-20, .scale_key = "route_scale", .scale = 1};

/* vLLM reads these keys; transformers does not. */
static const struct fm_keys_only only[] = {
    {"score_func", "'sigmoid'"}, {"route_norm", "true"},      {"n_group", "1"}, {"topk_group", "1"},
    {"num_expert_groups", "1"},  {"num_limited_groups", "1"}, {NULL, NULL}};

const struct fm_model_family fm_afmoe = {
    .name = "afmoe",
    .class_name = "Afmoe",
    .width_key = "moe_intermediate_size",
    .shared_key = "num_shared_experts",
    .read_layers = read_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .output_norms = FM_NORMS_ATTENTION | FM_NORMS_MLP,
    .eps = 1e-5,
    .positions = 16384,
    .only = only,
    .needed = "head_dim", /* transformers' default is 128 */
    .keys = "global_attn_every_n_layers load_balance_coeff mlp_layer_types moe_layer_freq "
            "mup_enabled num_dense_layers route_scale scoring_func use_grouped_mm",
    .weight = weights,
};
