/* GLM-4.7-Flash: DeepSeek-V3's layers, and a list of those that are dense. */
#include "lib/block/mla.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

static const struct fm_deepseek_layers layers = {
    .dense = 1, .shared = 1, .listed = true, .unread = true};

static const struct fm_mla_options attention = {.interleave_key = true,
                                                .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(1.8);

const struct fm_model_family fm_glm4_moe_lite = {
    .name = "glm4_moe_lite",
    .class_name = "Glm4MoeLite",
    FM_DEEPSEEK_LAYERS,
    FM_BLOCKS(fm_mla, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-5,
    .positions = 202752,
    .same = "qk_rope_head_dim head_dim;", /* transformers rotates head_dim elements */
    .keys = FM_DEEPSEEK_KEYS " " FM_MLA_KEYS,
    .weight = fm_deepseek_mla_weights,
    .extra = &fm_extra_nextn,
};
