/*
 * Mistral-Small-4, the text part of wrapper mistral3: latent attention with YaRN, whose queries are
 * scaled at positions of the original length and above; a softmax router with DeepSeek-V3's groups
 * and no bias; experts fused, or separate, and a shared expert.  Source: transformers'
 * modular_mistral4.py.
 */
#include "lib/block/mla.h"
#include "lib/block/norm.h"
#include "lib/family/family.h"
#include "lib/family/models/deepseek.h"

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_MLA_WEIGHTS(FM_ATTENTION),
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE),
    FM_MLP_WEIGHTS(FM_MLP "shared_experts.", FM_SHARED),
    FM_ROUTER_WEIGHT(FM_MLP "gate.weight", FM_MLP "gate.weight"),
    FM_SWIGLU_EITHER_WEIGHTS(FM_MLP),
    FM_WEIGHTS_END,
};
/* clang-format on */

static const struct fm_deepseek_layers layers = {.dense = 0, .shared = 1};

static const struct fm_mla_options attention = {
    .interleave_key = true, .scaled = true, .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_scored_options router = {
    .groups = FM_GROUPS_NOAUX, .renormalised = true, .norm_key = true, .eps = 1e-20, .scale = 1};

const struct fm_model_family fm_mistral4 = {
    .name = "mistral4",
    .class_name = "Mistral4",
    FM_DEEPSEEK_LAYERS,
    FM_BLOCKS(fm_mla, fm_scored, fm_swiglu, fm_rmsnorm),
    .saved_fused = true,
    .eps = 1e-6,
    .positions = 1048576,
    .needed = "rope_parameters", /* transformers would use its own YaRN */
    .keys = FM_DEEPSEEK_KEYS " " FM_MLA_KEYS,
    .weight = weights,
};
