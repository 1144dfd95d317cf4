/*
 * Phi-3.5-MoE: Mixtral's tensors, but LayerNorms and biases everywhere, longrope, and its own
 * router.  Servers spell its class differently from transformers 5.
 */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/block/sparsemix.h"
#include "lib/block/swiglu.h"
#include "lib/family/decoder.h"
#include "lib/family/family.h"

#define MOE "model.layers.{l}.block_sparse_moe."

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_ROUTER_WEIGHT(MOE "gate.weight", FM_MLP "router.weight"),
    FM_SWIGLU_WEIGHTS(MOE, "w1", "w3", "w2"),
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .o_bias = true,
                                                .window = true,
                                                .rope = {.theta = 1e6, .longrope = true}};

const struct fm_model_family fm_phimoe = {
    .name = "phimoe",
    .class_name = "Phimoe",
    .width_key = "intermediate_size",
    .attention = &fm_gqa,
    .router = &fm_sparsemix,
    .expert = &fm_swiglu,
    .norm = &fm_layernorm,
    .attention_options = &attention,
    .head_bias = true,
    .eps = 1e-5,
    .positions = 131072,
    .keys = "router_jitter_noise input_jitter_noise lm_head_bias",
    .weight = weights,
    .served_as = "PhiMoEForCausalLM",
};
