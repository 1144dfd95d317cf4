/* DeepSeek-V3 and R1, Moonlight, which has no groups and no latent of the queries, and Kimi-K2 with
 * its own model_type. */
#include "lib/block/mla.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_MLA_WEIGHTS(FM_ATTENTION),
    FM_DEEPSEEK_MOE_WEIGHTS,
    FM_DEEPSEEK_BIAS_WEIGHT,
    FM_WEIGHTS_END,
};
/* clang-format on */

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    static const struct fm_deepseek_layers defaults = {.dense = 3, .shared = 1};
    return fm_deepseek_layers(c, &defaults, keys, err);
}

static const struct fm_mla_options attention = {.interleave_key = true,
                                                .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(2.5);

const struct fm_model_family fm_deepseek_v3 = {
    .name = "deepseek_v3",
    .alias = "kimi_k2",
    .class_name = "DeepseekV3",
    .width_key = "moe_intermediate_size",
    .experts_key = "n_routed_experts",
    .shared_key = "n_shared_experts",
    .read_layers = read_layers,
    .attention = &fm_mla,
    .router = &fm_scored,
    .expert = &fm_swiglu,
    .norm = &fm_rmsnorm,
    .attention_options = &attention,
    .router_options = &router,
    .eps = 1e-6,
    .positions = 4096,
    .needed = "n_group topk_group", /* transformers' defaults are 8 and 4 */
    .keys = FM_DEEPSEEK_KEYS " " FM_MLA_KEYS,
    .weight = weights,
    .extra = &fm_extra_nextn,
};
