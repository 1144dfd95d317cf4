/*
 * gpt-oss-20b and -120b: experts with biases and a clamped activation, attention sinks in every
 * head, a sliding window in every second layer.  In checkpoints the experts of a layer are fused;
 * in OpenAI's they are also MXFP4 (formats/quant/mxfp4.c).
 */
#include "lib/block/clamped.h"
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/block/softmax.h"
#include "lib/family/decoder.h"
#include "lib/family/family.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_GQA_SINKS_WEIGHT(FM_ATTENTION),
    FM_ROUTER_WEIGHT(FM_MLP "router.weight", FM_MLP "router.weight"),
    FM_ROUTER_BIAS_WEIGHT(FM_MLP "router.bias"),
    FM_CLAMPED_WEIGHTS(FM_MLP),
    FM_WEIGHTS_END,
};
/* clang-format on */

/* If config.json has no rotation keys, or none in rope_scaling, transformers uses its own YaRN
 * parameters. */
static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(keys->json, "rope_scaling");
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(keys->json, "rope_parameters");
    (void)c;
    if (cJSON_IsObject(rope) || (cJSON_IsObject(scaling) && cJSON_GetArraySize(scaling) > 0))
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "rope_parameters and rope_scaling are missing, which programs interpret "
                   "differently for %s; add rope_parameters to config.json",
                   keys->family);
}

static const struct fm_gqa_options attention = {.bias_key = "attention_bias",
                                                .bias = true,
                                                .o_bias = true,
                                                .window = true,
                                                .alternates = true,
                                                .usual_window = 128,
                                                .sinks = true,
                                                .rope = {.theta = 150000, .yarn = true}};

static const struct fm_softmax_options router = {.renormalised = true};

const struct fm_model_family fm_gpt_oss = {
    .name = "gpt_oss",
    .class_name = "GptOss",
    .width_key = "intermediate_size",
    .read_layers = read_layers,
    FM_BLOCKS(fm_gqa, fm_softmax, fm_swiglu_clamped, fm_rmsnorm),
    .eps = 1e-5,
    .positions = 131072,
    .keys = "experts_per_token initial_context_length rope_ntk_alpha rope_ntk_beta "
            "rope_scaling_factor swiglu_alpha swiglu_limit",
    .weight = weights,
    .fused_format = "mxfp4",
};
