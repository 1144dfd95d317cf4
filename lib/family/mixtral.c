/* Mixtral 8x7B and 8x22B: the plainest of the families, and the one others are described by. */
#include "lib/block/gqa.h"
#include "lib/block/swiglu.h"
#include "lib/family/decoder.h"
#include "lib/family/family.h"

#define MOE "model.layers.{l}.block_sparse_moe."

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_ROUTER_WEIGHT(MOE "gate.weight", FM_MLP "gate.weight"),
    FM_SWIGLU_WEIGHTS(MOE, "w1", "w3", "w2"),
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_gqa_options attention = {.window = true, .rope = {.theta = 1e6}};

const struct fm_model_family fm_mixtral = {
    .name = "mixtral",
    .class_name = "Mixtral",
    .width_key = "intermediate_size",
    .attention = &fm_gqa,
    .attention_options = &attention,
    .expert = &fm_swiglu,
    .norm_topk = true,
    .gguf_router = FM_ROUTER_SOFTMAX,
    .eps = 1e-5,
    .positions = 131072,
    .weight = weights,
};
