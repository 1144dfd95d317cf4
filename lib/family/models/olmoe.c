/* OLMoE 1B-7B: Qwen's tensors; q and k normalised over all heads; q, k and v clamped if clip_qkv is
 * set. */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/block/softmax.h"
#include "lib/family/family.h"
#include "lib/family/models/qwen.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_QWEN_MOE_WEIGHTS,
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .o_bias = true,
                                                .clip = true,
                                                .qk_norm = FM_QK_NORM_FULL,
                                                .rope = {.theta = 1e4}};

static const struct fm_softmax_options router = {.key = true};

const struct fm_model_family fm_olmoe = {
    .name = "olmoe",
    .class_name = "Olmoe",
    .width_key = "intermediate_size",
    FM_BLOCKS(fm_gqa, fm_softmax, fm_swiglu, fm_rmsnorm),
    .eps = 1e-5,
    .positions = 4096,
    .keys = "clip_qkv",
    .weight = weights,
};
