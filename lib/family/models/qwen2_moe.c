/* Qwen1.5-MoE and Qwen2-57B: a shared expert in addition to the chosen ones, biases on q, k and v.
 */
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
    FM_MLP_WEIGHTS(FM_MLP "shared_expert.", FM_SHARED),
    FM_MLP_MIX_WEIGHT(FM_MLP "shared_expert_gate.weight"),
    FM_QWEN_MOE_WEIGHTS,
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_gqa_options attention = {
    .bias_key = "qkv_bias", .bias = true, .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_softmax_options router = {.key = true};

const struct fm_model_family fm_qwen2_moe = {
    .name = "qwen2_moe",
    .class_name = "Qwen2Moe",
    .width_key = "moe_intermediate_size",
    .read_layers = fm_qwen_shared_layers,
    FM_BLOCKS(fm_gqa, fm_softmax, fm_swiglu, fm_rmsnorm),
    .eps = 1e-6,
    .positions = 32768,
    .keys = FM_QWEN_KEYS " qkv_bias",
    .weight = weights,
};
