/*
 * Qwen3-Next and Qwen3-Coder-Next: three of four layers are Gated DeltaNets, norms multiply by 1 +
 * w, and the shared expert is weighted.
 */
#include "lib/block/norm.h"
#include "lib/block/softmax.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"
#include "lib/family/models/qwen.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_QWEN_DELTANET_WEIGHTS,
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE),
    FM_SWIGLU_WEIGHTS(FM_MLP, "gate_proj", "up_proj", "down_proj"),
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_deltanet_options attention = {.full = FM_QWEN_GATED_ATTENTION,
                                                     .packed = true};

static const struct fm_softmax_options router = {.key = true, .renormalised = true};

const struct fm_model_family fm_qwen3_next = {
    .name = "qwen3_next",
    .class_name = "Qwen3Next",
    .width_key = "moe_intermediate_size",
    .read_layers = fm_qwen_shared_layers,
    FM_BLOCKS(fm_deltanet, fm_softmax, fm_swiglu, fm_rmsnorm_plus),
    .eps = 1e-6,
    .positions = 32768,
    .keys = FM_QWEN_DELTANET_KEYS,
    .weight = weights,
    .extra = &fm_extra_mtp,
};
