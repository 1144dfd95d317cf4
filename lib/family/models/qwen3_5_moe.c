/*
 * Qwen3.5 and Qwen3.6, the text part (formats/tensor/hftext.h), and Qwen3.8-2.4T-A95B: Qwen3-Next's
 * layers, with a separate tensor for each projection of a DeltaNet; experts fused as published, or
 * separate as transformers saves them.
 */
#include "lib/block/norm.h"
#include "lib/block/softmax.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"
#include "lib/family/models/qwen.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_QWEN_DELTANET_WEIGHTS,
    FM_SWIGLU_EITHER_WEIGHTS(FM_MLP),
    FM_WEIGHTS_END,
};
/* clang-format on */

/* Every layer has experts and a shared expert. */
static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    c->shared_mix = true;
    return fm_keys_size(&c->shared, keys->json, "shared_expert_intermediate_size", FM_CHANNELS_MAX,
                        err);
}

static const struct fm_deltanet_options attention = {.full = FM_QWEN_GATED_ATTENTION};

static const struct fm_softmax_options router = {.renormalised = true};

static const char *const extra_names[] = {"mtp.", "model.visual.", NULL};
static const char *const extra_counts[] = {"mtp_num_hidden_layers", NULL};
static const struct fm_extra_form extra = {
    .name = extra_names, .parts = 1u << 1, .count = extra_counts, .draft = &fm_extra_mtp_draft};

/* In Qwen3.8, the activation of a DeltaNet's output gate; transformers does not read it. */
static const struct fm_keys_only only[] = {{"output_gate_type", "'swish'"}, {NULL, NULL}};

const struct fm_model_family fm_qwen3_5_moe = {
    .name = "qwen3_5_moe_text",
    .class_name = "Qwen3_5Moe",
    .width_key = "moe_intermediate_size",
    .read_layers = read_layers,
    FM_BLOCKS(fm_deltanet, fm_softmax, fm_swiglu, fm_rmsnorm_plus),
    .eps = 1e-6,
    .positions = 32768,
    .only = only,
    .keys = FM_QWEN_DELTANET_KEYS " mtp_use_dedicated_embeddings",
    .weight = weights,
    .extra = &extra,
};
