/* DeepSeek-V2 and Coder-V2, also the Lite models: latent attention; router probabilities as
 * weights; experts chosen only from the groups with the best experts, if topk_method requires that.
 */
#include "lib/block/mla.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/family.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_MLA_WEIGHTS(FM_ATTENTION),
    FM_DEEPSEEK_MOE_WEIGHTS,
    FM_WEIGHTS_END,
};
/* clang-format on */

/* mlp_bias would add biases to every MLP.  norm_topk_prob is applied by the model's own code and by
 * vLLM, but not by transformers, so a model with it is ambiguous. */
static int refuse_switches(const struct fm_keys *keys, struct fm_err *err)
{
    const char *const off[] = {"mlp_bias", "norm_topk_prob"};
    for (int i = 0; i < 2; i++) {
        bool on = false;
        int rc = fm_json_opt_bool(keys->json, off[i], &on, err);
        if (!rc && on)
            rc = fm_fail(err, FM_ECONFIG, "%s true is not supported for %s", off[i], keys->family);
        if (rc)
            return rc;
    }
    return FM_OK;
}

static const struct fm_deepseek_layers layers = {.dense = 0, .shared = 2};

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int rc = refuse_switches(keys, err);
    return rc ? rc : fm_deepseek_layers(c, keys, err);
}

static const struct fm_mla_options attention = {.rope = {.theta = 1e4, .yarn = true}};

static const struct fm_scored_options router = {.groups = FM_GROUPS_METHOD, .scale = 1};

const struct fm_model_family fm_deepseek_v2 = {
    .name = "deepseek_v2",
    .class_name = "DeepseekV2",
    FM_DEEPSEEK_SIZES,
    .read_layers = read_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_mla, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-6,
    .positions = 2048,
    .keys = FM_DEEPSEEK_KEYS " " FM_MLA_KEYS,
    .weight = weights,
};
