/*
 * Granite 3 without Mamba layers (GraniteMoe): Mixtral's layers with scaling factors for the
 * embeddings, the attention scores, the outputs of attention and experts, and the logits; experts
 * are fused, with gate rows before up rows, or separate, as programs that quantise them write them.
 * GraniteMoeShared adds a shared expert, whose gate and up are fused as well.  Source:
 * transformers' modular_granitemoe.py, modular_granitemoeshared.py.
 */
#include <float.h>

#include "lib/block/gqa.h"
#include "lib/block/mlp.h"
#include "lib/block/norm.h"
#include "lib/block/softmax.h"
#include "lib/block/swiglu.h"
#include "lib/family/decoder.h"
#include "lib/family/family.h"

#define MOE "model.layers.{l}.block_sparse_moe."
#define SHARED "model.layers.{l}.shared_mlp."

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    {FM_SAME(SHARED "input_linear.weight"), FM_PART_MLP_GATE_UP, 0, "FH", FM_SHARED},
    {FM_SAME(SHARED "output_linear.weight"), FM_PART_MLP_DOWN, 0, "HD", FM_SHARED},
    FM_ROUTER_WEIGHT(MOE "router.layer.weight", MOE "router.weight"),
    FM_SWIGLU_EITHER_WEIGHTS_AS(MOE, MOE "input_linear.weight", MOE "output_linear.weight"),
    FM_WEIGHTS_END,
};
/* clang-format on */

/* Read a factor, which is 1 if config.json does not have it. */
static int read_factor(double *factor, const cJSON *json, const char *key, struct fm_err *err)
{
    *factor = 1;
    int rc = fm_json_opt_double(json, key, 0, FLT_MAX, factor, err);
    return rc || *factor >= FLT_MIN
               ? rc
               : fm_fail(err, FM_EFORMAT, "key '%s' is %g, which is not above 0", key, *factor);
}

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    double embed, residual, divisor;
    int rc = read_factor(&embed, keys->json, "embedding_multiplier", err);
    if (!rc)
        rc = read_factor(&residual, keys->json, "residual_multiplier", err);
    if (!rc)
        rc = read_factor(&divisor, keys->json, "logits_scaling", err);
    if (rc)
        return rc;
    c->embed_scale = (float)embed;
    c->residual_scale = (float)residual;
    c->logit_scale = (float)(1 / divisor);
    return FM_OK;
}

static int read_shared_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int64_t width = 0;
    int rc = read_layers(c, keys, err);
    if (!rc)
        rc = fm_json_opt_int(keys->json, "shared_intermediate_size", 0, FM_CHANNELS_MAX, &width,
                             err);
    c->shared = (int)width;
    return rc;
}

/* Read the factor of attention scores; other families derive it from the width of the heads. */
static int read_scores(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    double factor;
    int rc = read_factor(&factor, keys->json, "attention_multiplier", err);
    if (!rc)
        c->gqa->divisor = 1 / factor;
    return rc;
}

static const struct fm_gqa_options attention = {
    .bias_key = "attention_bias", .o_bias = true, .read_more = read_scores, .rope = {.theta = 1e4}};

static const struct fm_softmax_options router = {.renormalised = true};

#define KEYS "attention_multiplier embedding_multiplier logits_scaling residual_multiplier"

const struct fm_model_family fm_granitemoe = {
    .name = "granitemoe",
    .class_name = "GraniteMoe",
    .width_key = "intermediate_size",
    .read_layers = read_layers,
    FM_BLOCKS(fm_gqa, fm_softmax, fm_swiglu, fm_rmsnorm),
    .saved_fused = true,
    .eps = 1e-6,
    .positions = 2048,
    .keys = KEYS,
    .weight = weights,
};

const struct fm_model_family fm_granitemoeshared = {
    .name = "granitemoeshared",
    .class_name = "GraniteMoeShared",
    .width_key = "intermediate_size",
    .read_layers = read_shared_layers,
    FM_BLOCKS(fm_gqa, fm_softmax, fm_swiglu, fm_rmsnorm),
    .saved_fused = true,
    .eps = 1e-6,
    .positions = 2048,
    .keys = KEYS " shared_intermediate_size",
    .weight = weights,
};
