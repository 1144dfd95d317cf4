/*
 * MiniMax-M2 to M2.7: Mixtral's experts, but hundreds of them, chosen by sigmoid and bias; q and k
 * normalised over all heads; half of each head rotated (rotary_dim).  Its config.json has
 * switches for features of the published models; transformers reads none of them, so other values
 * are refused.
 */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/block/scored.h"
#include "lib/block/swiglu.h"
#include "lib/family/decoder.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

#define MOE "model.layers.{l}.block_sparse_moe."

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_ROUTER_WEIGHT(MOE "gate.weight", FM_MLP "gate.weight"),
    FM_SCORED_BIAS_WEIGHT(MOE "e_score_correction_bias", FM_MLP "e_score_correction_bias", "E"),
    FM_SWIGLU_WEIGHTS(MOE, "w1", "w3", "w2"),
    FM_WEIGHTS_END,
};
/* clang-format on */

/* Refuse the lightning attention of older models, for which attn_type_list has 0. */
static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    (void)c;
    const cJSON *list, *type;
    int rc = fm_keys_array(&list, keys->json, "attn_type_list", err);
    if (rc)
        return rc;
    cJSON_ArrayForEach(type, list)
    {
        if (!cJSON_IsNumber(type) || type->valuedouble != 1)
            return fm_fail(err, FM_ECONFIG,
                           "attn_type_list has an entry other than 1 (full attention), which is "
                           "not supported for %s",
                           keys->family);
    }
    return FM_OK;
}

/* Switches that transformers does not read. */
static const struct fm_keys_only only[] = {{"use_qk_norm", "true"},
                                           {"use_routing_bias", "true"},
                                           {"qk_norm_type", "'per_layer'"},
                                           {"shared_intermediate_size", "0"},
                                           {NULL, NULL}};

static const struct fm_gqa_options attention = {
    .qk_norm = FM_QK_NORM_FULL, .rope = {.theta = 5e6, .partial = 1, .dims_key = "rotary_dim"}};

static const struct fm_scored_options router = {.sigmoid = true, .renormalised = true};

/* Layers for multi-token prediction: the published config.json counts three, but the checkpoints
 * have none. */
static const char *const extra_names[] = {FM_EXTRA_AFTER, NULL};
static const char *const extra_counts[] = {"num_mtp_modules", "num_nextn_predict_layers", NULL};
static const struct fm_extra_form extra = {.name = extra_names,
                                           .mark = FM_EXTRA_AFTER_MARK,
                                           .after = true,
                                           .count = extra_counts,
                                           .flag = "use_mtp"};

const struct fm_model_family fm_minimax_m2 = {
    .name = "minimax_m2",
    .alias = "minimax", /* model_type of the first checkpoint; it is also the name of an older
                           model */
    .class_name = "MiniMaxM2",
    .width_key = "intermediate_size",
    .read_layers = read_layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .eps = 1e-6,
    .positions = 196608,
    .only = only,
    .keys = "attn_type_list attn_window_size layernorm_full_attention_alpha "
            "layernorm_full_attention_beta "
            "layernorm_linear_attention_alpha layernorm_linear_attention_beta layernorm_mlp_alpha "
            "layernorm_mlp_beta max_model_len mlp_intermediate_size mtp_transformer_layers "
            "rotary_dim router_jitter_noise scoring_func shared_moe_mode use_mtp",
    .weight = weights,
    .extra = &extra,
};
