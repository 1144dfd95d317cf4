/* DeepSeek-V3, R1, Moonlight, Kimi-K2 and the text part of K2.5 to K2.7: DeepSeek-V2's attention; a
 * sigmoid router with a selection bias, a scaling factor and groups of experts; Moonlight has no
 * groups and does not compress queries; Kimi-K2 has its own model_type. */
#include "lib/block/mla.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

static const struct fm_deepseek_layers layers = {.dense = 3, .shared = 1};

static const struct fm_mla_options attention = {.interleave_key = true,
                                                .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(2.5);

const struct fm_model_family fm_deepseek_v3 = {
    .name = "deepseek_v3",
    .alias = "kimi_k2",
    .class_name = "DeepseekV3",
    FM_DEEPSEEK_LAYERS,
    FM_BLOCKS(fm_mla, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-6,
    .positions = 4096,
    .needed = "n_group topk_group",       /* transformers' defaults are 8 and 4 */
    .same = "qk_rope_head_dim head_dim;", /* transformers rotates head_dim elements */
    .keys = FM_DEEPSEEK_KEYS " " FM_MLA_KEYS,
    .weight = fm_deepseek_mla_weights,
    .extra = &fm_extra_nextn,
};
