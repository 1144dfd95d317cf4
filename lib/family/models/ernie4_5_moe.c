/*
 * ERNIE-4.5: adjacent elements of a head rotated as pairs; experts only in a range of layers,
 * chosen by probability and bias; a shared expert as wide as several experts.
 */
#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

#define BIAS "moe_statics.e_score_correction_bias"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_DEEPSEEK_MOE_WEIGHTS,
    FM_SCORED_BIAS_WEIGHT(FM_MLP BIAS, FM_MLP "gate." BIAS, "1E"),
    FM_WEIGHTS_END,
};
/* clang-format on */

/* Read a number; a list, which would give text and images separate experts, is refused. */
static int read_number(int64_t *value, const struct fm_keys *keys, const char *key, int64_t least,
                       struct fm_err *err)
{
    if (cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(keys->json, key)))
        return fm_fail(err, FM_ECONFIG, "%s as a list is not supported for %s", key, keys->family);
    return fm_json_opt_int(keys->json, key, least, FM_CHANNELS_MAX, value, err);
}

/* Set the layers with experts: every moe_layer_interval-th from moe_layer_start_index to
 * moe_layer_end_index (-1: the last layer). */
static int read_range(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int64_t start = 1, end = -1, interval = 1;
    if (read_number(&start, keys, "moe_layer_start_index", 0, err) ||
        read_number(&end, keys, "moe_layer_end_index", -1, err) ||
        read_number(&interval, keys, "moe_layer_interval", 1, err))
        return err->code;
    c->M = 0;
    for (int l = 0; l < c->L; l++)
        if ((l + 1) % interval == 0 && l >= start && (end < 0 || l <= end))
            c->moe[c->M++] = (int16_t)l;
    if (c->M == 0)
        return fm_fail(err, FM_ECONFIG,
                       "no layer is a mixture of experts (moe_layer_start_index, "
                       "moe_layer_end_index, moe_layer_interval)");
    return c->M < c->L
               ? fm_keys_size(&c->dense, keys->json, "intermediate_size", FM_CHANNELS_MAX, err)
               : FM_OK;
}

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int64_t shared = 2, width = 0;
    bool bias = false;
    if (fm_json_opt_bool(keys->json, "use_bias", &bias, err))
        return err->code;
    if (bias)
        return fm_fail(err, FM_ECONFIG, "use_bias true is not supported for %s", keys->family);
    if (read_range(c, keys, err) || read_number(&shared, keys, "moe_num_shared_experts", 0, err) ||
        read_number(&width, keys, "moe_intermediate_size", 1, err))
        return err->code;
    if (shared * width > FM_CHANNELS_MAX)
        return fm_fail(
            err, FM_ECONFIG,
            "moe_num_shared_experts %d times moe_intermediate_size %d is more than %d channels",
            (int)shared, (int)width, FM_CHANNELS_MAX);
    c->shared = (int)(shared * width);
    return FM_OK;
}

static const struct fm_gqa_options attention = {.rope = {.theta = 5e5, .pairs = true}};

static const struct fm_scored_options router = {
    .renormalised = true, .least_key = "moe_norm_min", .least = 1e-12};

static const char *const extra_names[] = {"model.mtp_block.{x}.", "model.mtp_emb_norm.{x}.",
                                          "model.mtp_hidden_norm.{x}.",
                                          "model.mtp_linear_proj.{x}.", NULL};
static const char *const extra_counts[] = {"num_nextn_predict_layers", NULL};
static const struct fm_extra_form extra = {
    .name = extra_names, .mark = "model.mtp_linear_proj.{x}.weight", .count = extra_counts};

const struct fm_model_family fm_ernie4_5_moe = {
    .name = "ernie4_5_moe",
    .class_name = "Ernie4_5_Moe",
    .width_key = "moe_intermediate_size",
    .experts_key = "moe_num_experts",
    .chosen_key = "moe_k",
    .shared_key = "moe_num_shared_experts",
    .read_layers = read_layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu, fm_rmsnorm),
    .tied = true,
    .eps = 1e-5,
    .positions = 131072,
    .keys = "moe_capacity moe_gate moe_layer_end_index moe_layer_interval moe_layer_start_index "
            "moe_norm_min moe_num_shared_experts moe_use_aux_free use_bias use_rmsnorm",
    .weight = weights,
    .extra = &extra,
};
