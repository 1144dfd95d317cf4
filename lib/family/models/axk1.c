/*
 * A.X-K1: DeepSeek-V3's layers with one more norm, of the sum of the routed and the shared experts.
 * Published checkpoints store that norm for dense layers too, where it is not used.  Source:
 * transformers' modeling_axk1.py.
 */
#include "lib/block/mla.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/family.h"

#define NORM                                                                                       \
    {                                                                                              \
        "model.layers.{l}.post_mlp_layernorm.weight",                                              \
            "model.layers.{l}.post_mlp_layernorm.weight", FM_MLP "post_mlp_layernorm.weight"       \
    }

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_MLA_WEIGHTS(FM_ATTENTION),
    FM_DEEPSEEK_MOE_WEIGHTS,
    FM_DEEPSEEK_BIAS_WEIGHT,
    {NORM, FM_PART_NORM, FM_LAYER_FIELD(mlp_norm), "H", FM_MOE},
    {NORM, FM_PART_SPARE, 0, "H", FM_DENSE},
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_deepseek_layers layers = {.dense = 1, .shared = 1, .listed = true};

static const struct fm_mla_options attention = {.interleave_key = true,
                                                .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(2.5);

static const struct fm_keys_only only[] = {{"mlp_bias", "false"}, {NULL, NULL}};

const struct fm_model_family fm_axk1 = {
    .name = "axk1",
    .class_name = "AXK1",
    FM_DEEPSEEK_LAYERS,
    FM_BLOCKS(fm_mla, fm_scored, fm_swiglu, fm_rmsnorm),
    .output_norms = FM_NORMS_EXPERTS,
    .eps = 1e-6,
    .positions = 32768,
    .only = only,
    .needed = "n_group topk_group",       /* transformers' defaults are 8 and 4 */
    .same = "qk_rope_head_dim head_dim;", /* transformers rotates head_dim elements */
    .keys = FM_DEEPSEEK_KEYS " " FM_MLA_KEYS,
    .weight = weights,
};
