/* GLM-4.5, 4.6, 4.7 and the Air models: DeepSeek-V3's experts, grouped-query attention with half of
 * each head rotated; biases of q, k and v, and in the large models norms of the heads. */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

static const struct fm_deepseek_layers layers = {.dense = 1, .shared = 1};

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .qk_norm = FM_QK_NORM_HEAD,
                                                .qk_norm_key = "use_qk_norm",
                                                .rope = {.theta = 1e4, .partial = 0.5}};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(1);

const struct fm_model_family fm_glm4_moe = {
    .name = "glm4_moe",
    .class_name = "Glm4Moe",
    FM_DEEPSEEK_LAYERS,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-5,
    .positions = 131072,
    .keys = FM_DEEPSEEK_KEYS " use_qk_norm",
    .weight = fm_deepseek_gqa_weights,
    .extra = &fm_extra_nextn,
};
