/*
 * MiMo-V2-Flash: DeepSeek-V3's experts without a shared one; grouped-query attention, with twice
 * as many key heads, a different rotation and sinks in layers with a sliding window; values
 * narrower than keys and multiplied by a factor.  The published config.json has additional keys, of
 * which transformers reads only sliding_window_size; for the others it uses its defaults whatever
 * the file says, so other values are refused.  Source: transformers' modular_mimo_v2_flash.py.
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
    FM_GQA_SINKS_WEIGHT_AS(FM_ATTENTION "attention_sink_bias", FM_ATTENTION "sinks"),
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE),
    FM_QWEN_MOE_WEIGHTS,
    FM_DEEPSEEK_BIAS_WEIGHT,
    FM_WEIGHTS_END,
};
/* clang-format on */

/* Check the sizes that other programs read for layers with a window. */
static int check_sizes(const struct fm_keys *keys, struct fm_err *err)
{
    static const struct {
        const char *own, *usual;
        int times;
    } size[] = {{"swa_num_attention_heads", "num_attention_heads", 1},
                {"swa_num_key_value_heads", "num_key_value_heads", 2},
                {"swa_head_dim", "head_dim", 1},
                {"swa_v_head_dim", "v_head_dim", 1}};
    int rc = FM_OK;
    for (size_t i = 0; i < sizeof size / sizeof *size && !rc; i++) {
        int usual = 0, own;
        rc = fm_keys_size(&usual, keys->json, size[i].usual, FM_HEAD_DIM_MAX, err);
        own = size[i].times * usual;
        if (!rc)
            rc = fm_keys_size_opt(&own, keys->json, size[i].own, 2 * FM_HEAD_DIM_MAX, err);
        if (!rc && own != size[i].times * usual)
            rc = fm_fail(err, FM_ECONFIG,
                         "%s %d is not %d, %d times %s, and programs differ in which they read",
                         size[i].own, own, size[i].times * usual, size[i].times, size[i].usual);
    }
    return rc;
}

static int check_eps(const struct fm_keys *keys, struct fm_err *err)
{
    double eps = 1e-5;
    int rc = fm_json_opt_double(keys->json, "rms_norm_eps", 0, 1, &eps, err);
    double own = eps;
    if (!rc)
        rc = fm_json_opt_double(keys->json, "layernorm_epsilon", 0, 1, &own, err);
    return rc || own == eps ? rc
                            : fm_fail(err, FM_ECONFIG,
                                      "layernorm_epsilon %g differs from rms_norm_eps %g, and "
                                      "programs differ in which they read",
                                      own, eps);
}

static const struct fm_deepseek_layers layers = {.dense = 1, .listed = true, .unread = true};

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    if (check_sizes(keys, err) || check_eps(keys, err))
        return err->code;
    return fm_deepseek_layers(c, keys, err);
}

static const struct fm_rope_options window_rope = {.theta = 1e4,
                                                   .partial = 0.334,
                                                   .partial_object = 0.334,
                                                   .layer_type = "sliding_attention",
                                                   .theta_key = "swa_rope_theta"};

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .window = true,
                                                .alternates = true,
                                                .every = 6,
                                                .first_full = true,
                                                .usual_window = 129,
                                                .before_key = "sliding_window_size",
                                                .pattern_key = "hybrid_layer_pattern",
                                                .window_groups = 2,
                                                .value_key = "v_head_dim",
                                                .scale_key = "attention_value_scale",
                                                .scale = 0.707,
                                                .sinks = true,
                                                .window_sinks = true,
                                                .rope = {.theta = 5e6,
                                                         .partial = 0.334,
                                                         .partial_object = 0.334,
                                                         .layer_type = "full_attention",
                                                         .theta_key = "rope_theta"},
                                                .window_rope = &window_rope};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(1);

/* transformers reads only the last of these keys, which vLLM does not read. */
static const struct fm_keys_only only[] = {{"add_swa_attention_sink_bias", "true"},
                                           {"add_full_attention_sink_bias", "false"},
                                           {"n_shared_experts", "0"},
                                           {"routed_scaling_factor", "1"},
                                           {NULL, NULL}};

static const char *const extra_names[] = {"model.mtp.", NULL};
static const struct fm_extra_form extra = {.name = extra_names, .count = fm_extra_nextn_counts};

const struct fm_model_family fm_mimo_v2_flash = {
    .name = "mimo_v2_flash",
    .class_name = "MiMoV2Flash",
    .width_key = "moe_intermediate_size",
    .experts_key = "n_routed_experts",
    .read_layers = read_layers,
    .layers_options = &layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-5,
    .positions = 131072,
    .only = only,
    .needed = "head_dim num_key_value_heads v_head_dim", /* transformers' defaults are 192, 4,
                                                            128 */
    .keys = FM_DEEPSEEK_KEYS " attention_chunk_size attention_value_scale hybrid_block_size "
                             "hybrid_layer_pattern layernorm_epsilon sliding_window_size "
                             "swa_head_dim swa_num_attention_heads swa_num_key_value_heads "
                             "swa_rope_theta swa_v_head_dim v_head_dim",
    .weight = weights,
    .extra = &extra,
};
