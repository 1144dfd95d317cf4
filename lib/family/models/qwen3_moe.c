/* Qwen3-30B-A3B and 235B-A22B: many narrow experts, every head of q and k normalised. */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/block/softmax.h"
#include "lib/family/family.h"
#include "lib/family/models/qwen.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE),
    FM_QWEN_MOE_WEIGHTS,
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .o_bias = true,
                                                .qk_norm = FM_QK_NORM_HEAD,
                                                .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_softmax_options router = {.key = true};

const struct fm_model_family fm_qwen3_moe = {
    .name = "qwen3_moe",
    .class_name = "Qwen3Moe",
    .width_key = "moe_intermediate_size",
    .read_layers = fm_qwen_layers,
    FM_BLOCKS(fm_gqa, fm_softmax, fm_swiglu, fm_rmsnorm),
    .eps = 1e-6,
    .positions = 32768,
    .keys = FM_QWEN_KEYS,
    .weight = weights,
};
