/* Solar-Open: DeepSeek-V3's experts in every layer, grouped-query attention without norms of q and
 * k.  Source: transformers' modular_solar_open.py, which does not read first_k_dense_replace. */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/family.h"

static const struct fm_deepseek_layers layers = {.dense = 0, .shared = 1, .unread = true};

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int rc = fm_rope_whole(keys, err);
    return rc ? rc : fm_deepseek_layers(c, keys, err);
}

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .rope = {.theta = 1e6, .yarn = true}};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(1);

static const struct fm_keys_only only[] = {{"use_qk_norm", "false"}, {NULL, NULL}};

const struct fm_model_family fm_solar_open = {
    .name = "solar_open",
    .class_name = "SolarOpen",
    FM_DEEPSEEK_SIZES,
    .read_layers = read_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-5,
    .positions = 131072,
    .only = only,
    .needed = "head_dim num_key_value_heads", /* transformers' defaults are 128 and 8 */
    .keys = FM_DEEPSEEK_KEYS,
    .weight = fm_deepseek_gqa_weights,
};
