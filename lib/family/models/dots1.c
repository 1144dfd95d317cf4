/* dots.llm1: DeepSeek-V3's experts without groups, grouped-query attention with norms of every head
 * of q and k.  Source: transformers' modeling_dots1.py. */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/family.h"

/* Without layer_types, layers from max_window_layers on have a window unless sliding_window is
 * null.  Windows in layer_types are refused by lib/block/gqa.c. */
static int refuse_windows(const struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(keys->json, "layer_types");
    const cJSON *window = cJSON_GetObjectItemCaseSensitive(keys->json, "sliding_window");
    int64_t first = 62;
    int rc = fm_json_opt_int(keys->json, "max_window_layers", 0, FM_LAYERS_MAX, &first, err);
    if (rc || cJSON_IsArray(types) || cJSON_IsNull(window) || first >= c->L)
        return rc;
    return fm_fail(err, FM_ECONFIG,
                   "layers from max_window_layers %d on have a sliding window, which is not "
                   "supported for %s; use a checkpoint where sliding_window is null",
                   (int)first, keys->family);
}

static const struct fm_deepseek_layers layers = {.dense = 0, .shared = 0};

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int rc = refuse_windows(c, keys, err);
    return rc ? rc : fm_deepseek_layers(c, keys, err);
}

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .o_bias = true,
                                                .qk_norm = FM_QK_NORM_HEAD,
                                                .rope = {.theta = 1e4}};

static const struct fm_scored_options router = {
    .sigmoid = true, .groups = FM_GROUPS_NOAUX, .norm_key = true, .eps = 1e-20, .scale = 1};

const struct fm_model_family fm_dots1 = {
    .name = "dots1",
    .class_name = "Dots1",
    FM_DEEPSEEK_SIZES,
    .read_layers = read_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-6,
    .positions = 2048,
    .keys = FM_DEEPSEEK_KEYS " max_window_layers",
    .weight = fm_deepseek_gqa_weights,
};
