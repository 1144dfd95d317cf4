/*
 * GLM-5 to 5.3, but not GLM-5.3-Flash: DeepSeek-V3's layers with a sparse indexer
 * (deepseek_v32.c), which since GLM-5.2 only some layers have; each of the other layers uses the
 * indices of the last indexer before it.  Source: transformers' modeling_glm_moe_dsa.py.
 */
#include "lib/block/mla.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

static const struct fm_deepseek_layers layers = {.dense = 3, .shared = 1, .listed = true};

static const struct fm_mla_options attention = {
    .indexer = true, .shares_indices = true, .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(2.5);

/* transformers reads none of these. */
static const struct fm_keys_only only[] = {{"rope_interleave", "true"},
                                           {"indexer_rope_interleave", "true"},
                                           {"moe_router_dtype", "'float32'"},
                                           {"mlp_bias", "false"},
                                           {NULL, NULL}};

const struct fm_model_family fm_glm_moe_dsa = {
    .name = "glm_moe_dsa",
    .class_name = "GlmMoeDsa",
    FM_DEEPSEEK_LAYERS,
    FM_BLOCKS(fm_mla, fm_scored, fm_swiglu, fm_rmsnorm),
    .indexed = true,
    .eps = 1e-5,
    .positions = 202752,
    .only = only,
    .keys = FM_DEEPSEEK_KEYS " " FM_MLA_KEYS " " FM_MLA_INDEXER_KEYS,
    .weight = fm_deepseek_indexed_weights,
    .extra = &fm_extra_nextn,
};
