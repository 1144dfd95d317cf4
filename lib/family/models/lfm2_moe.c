/*
 * LFM2-MoE: gated short convolutions in most layers, attention with norms of q and k in the others;
 * DeepSeek-V3's experts without groups and without a shared expert; the first layers are dense;
 * nearly all tensors have names that only this family uses.  Source: transformers'
 * modular_lfm2_moe.py.
 */
#include "lib/block/norm.h"
#include "lib/block/shortconv.h"
#include "lib/family/family.h"
#include "lib/family/models/deepseek.h"

#define LAYER "model.layers.{l}."
#define FEED LAYER "feed_forward."

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_NONLAYER("model.embed_tokens.weight", embed, "VH", FM_ALWAYS),
    FM_NONLAYER("model.embedding_norm.weight", norm, "H", FM_ALWAYS),
    FM_NONLAYER("lm_head.weight", lm_head, "VH", FM_UNTIED),
    FM_NORM(LAYER "operator_norm.weight", input_norm, FM_ALWAYS),
    FM_NORM(LAYER "ffn_norm.weight", post_norm, FM_ALWAYS),
    FM_SHORTCONV_WEIGHTS(FM_ATTENTION, LAYER "conv."),
    FM_MLP_NAMED(FEED "w1", FEED "w1", FM_PART_MLP_GATE, "DH", FM_DENSE),
    FM_MLP_NAMED(FEED "w3", FEED "w3", FM_PART_MLP_UP, "DH", FM_DENSE),
    FM_MLP_NAMED(FEED "w2", FEED "w2", FM_PART_MLP_DOWN, "HD", FM_DENSE),
    FM_ROUTER_WEIGHT(FEED "gate.weight", FEED "gate.weight"),
    FM_SCORED_BIAS_WEIGHT(FEED "expert_bias", FEED "expert_bias", "E"),
    FM_SWIGLU_WEIGHTS_AS(FEED, FEED, "w1", "w3", "w2"),
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_deepseek_layers layers = {.dense = 2, .dense_key = "num_dense_layers"};

static const struct fm_gqa_options attention = {
    .qk_norm = FM_QK_NORM_HEAD, .other_layers = true, .rope = {.theta = 1e6}};

static const struct fm_scored_options router = {
    .sigmoid = true, .renormalised = true, .norm_key = true, .eps = 1e-6, .scale = 1};

static const struct fm_keys_only only[] = {
    {"conv_bias", "false"}, {"use_expert_bias", "true"}, {NULL, NULL}};

const struct fm_model_family fm_lfm2_moe = {
    .name = "lfm2_moe",
    .class_name = "Lfm2Moe",
    .width_key = "moe_intermediate_size",
    .read_layers = fm_deepseek_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_shortconv, fm_scored, fm_swiglu, fm_rmsnorm),
    .tied = true,
    .tied_key = "tie_embedding",
    .eps = 1e-5,
    .eps_key = "norm_eps",
    .positions = 128000,
    .only = only,
    .needed = "layer_types num_key_value_heads", /* transformers has no default for the first; for
                                                    the second it is 8 */
    .keys =
        "block_use_init_xavier conv_L_cache conv_dim conv_dim_out conv_use_xavier_init norm_eps "
        "num_dense_layers routed_scaling_factor theta tie_embedding use_pos_enc",
    .weight = weights,
};
