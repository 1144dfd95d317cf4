/*
 * K-EXAONE: DeepSeek-V3's experts, grouped-query attention with norms of every head of q and k; a
 * sliding window in most layers, and no positional encoding in the others.  Source: transformers'
 * modular_exaone_moe.py.
 */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_DEEPSEEK_MOE_WEIGHTS,
    FM_SCORED_BIAS_WEIGHT(FM_MLP "e_score_correction_bias",
                          FM_MLP "gate.e_score_correction_bias", "E"),
    FM_WEIGHTS_END,
};
/* clang-format on */

/* Check the model's own list of layers with experts, which transformers does not read. */
static int check_list(const struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const cJSON *list, *entry;
    int l = 0, rc = fm_keys_array(&list, json, "is_moe_layer", err);
    if (rc)
        return rc;
    cJSON_ArrayForEach(entry, list)
    {
        bool moe = l < c->L && fm_config_moe(c, l) >= 0;
        if (!cJSON_IsBool(entry) || (l < c->L && (bool)cJSON_IsTrue(entry) != moe))
            return fm_fail(err, FM_ECONFIG,
                           "is_moe_layer of layer %d is not %s, which contradicts mlp_layer_types "
                           "or first_k_dense_replace; programs differ in which they read",
                           l, moe ? "true" : "false");
        l++;
    }
    return l == 0 || l == c->L
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "is_moe_layer has %d entries for %d layers", l, c->L);
}

/* Check the model's own number of dense layers, which transformers does not read. */
static int check_first(const struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int64_t first = c->moe[0];
    int rc =
        fm_json_opt_int(keys->json, "first_last_k_dense_replace", 0, FM_LAYERS_MAX, &first, err);
    return rc || first == c->moe[0]
               ? rc
               : fm_fail(err, FM_ECONFIG,
                         "first_last_k_dense_replace is %d, but layer %d is the first with experts "
                         "by the other keys; programs differ in which they read",
                         (int)first, c->moe[0]);
}

/* transformers accepts a pattern of letters only together with layer_types. */
static int check_pattern(const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(keys->json, "layer_types");
    const char *pattern = fm_json_string_value(keys->json, "sliding_window_pattern");
    if (cJSON_IsArray(types) || !pattern)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "sliding_window_pattern '%.64s' without layer_types is not supported for %s; "
                   "add layer_types",
                   pattern, keys->family);
}

/* Refuse keys of later models that transformers does not read. */
static int refuse_later(const struct fm_keys *keys, struct fm_err *err)
{
    const char *later[] = {"sliding_windows", "swiglu_limits"};
    for (int i = 0; i < 2; i++)
        if (fm_json_value(keys->json, later[i]))
            return fm_fail(err, FM_ECONFIG, "%s is not supported for %s", later[i], keys->family);
    return FM_OK;
}

static const struct fm_deepseek_layers layers = {.dense = 1, .shared = 1, .listed = true};

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    if (refuse_later(keys, err) || check_pattern(keys, err) || fm_deepseek_layers(c, keys, err) ||
        check_first(c, keys, err))
        return err->code;
    return check_list(c, keys->json, err);
}

static const struct fm_gqa_options attention = {.window = true,
                                                .alternates = true,
                                                .every_key = "sliding_window_pattern",
                                                .every = 4,
                                                .unrotated = true,
                                                .qk_norm = FM_QK_NORM_HEAD,
                                                .rope = {.theta = 1e4}};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(2.5);

static const char *const extra_names[] = {"mtp.", NULL};
static const struct fm_extra_form extra = {.name = extra_names, .count = fm_extra_nextn_counts};

const struct fm_model_family fm_exaone_moe = {
    .name = "exaone_moe",
    .class_name = "ExaoneMoe",
    .width_key = "moe_intermediate_size",
    .shared_key = "num_shared_experts",
    .read_layers = read_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-5,
    .positions = 2048,
    .needed = "num_key_value_heads sliding_window", /* transformers' defaults are 32 and 4096,
                                                       and it fails on null */
    .keys = "first_k_dense_replace first_last_k_dense_replace is_moe_layer mlp_layer_types "
            "moe_layer_freq n_group routed_scaling_factor scoring_func sliding_window_pattern "
            "topk_group topk_method",
    .weight = weights,
    .extra = &extra,
};
