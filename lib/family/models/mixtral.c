/* Mixtral 8x7B and 8x22B: the simplest family, with which the others are compared. */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/block/softmax.h"
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

static const struct fm_softmax_options router = {.renormalised = true};

const struct fm_model_family fm_mixtral = {
    .name = "mixtral",
    .class_name = "Mixtral",
    .width_key = "intermediate_size",
    FM_BLOCKS(fm_gqa, fm_softmax, fm_swiglu, fm_rmsnorm),
    .eps = 1e-5,
    .positions = 131072,
    .keys = "router_jitter_noise",
    .weight = weights,
};
