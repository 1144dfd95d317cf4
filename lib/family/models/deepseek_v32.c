/*
 * DeepSeek-V3.2: V3 with a sparse indexer in every layer, which chooses index_topk keys for each
 * query.  In sequences of at most index_topk tokens it chooses all keys, so attention is V3's.  The
 * indexer has no gradient at any length, and is only copied.  Source: transformers'
 * modeling_deepseek_v32.py.
 */
#include "lib/block/mla.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

static const struct fm_deepseek_layers layers = {.dense = 3, .shared = 1, .listed = true};

static const struct fm_mla_options attention = {.indexer = true,
                                                .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(2.5);

/* transformers reads none of these.  The indexer itself rotates the halves of its vectors, not
 * pairs. */
static const struct fm_keys_only only[] = {{"rope_interleave", "true"},
                                           {"indexer_rope_interleave", "false"},
                                           {"moe_router_dtype", "'float32'"},
                                           {"mlp_bias", "false"},
                                           {NULL, NULL}};

const struct fm_model_family fm_deepseek_v32 = {
    .name = "deepseek_v32",
    .class_name = "DeepseekV32",
    FM_DEEPSEEK_LAYERS,
    FM_BLOCKS(fm_mla, fm_scored, fm_swiglu, fm_rmsnorm),
    .indexed = true,
    .eps = 1e-6,
    .positions = 163840,
    .only = only,
    .needed = "n_group topk_group", /* transformers' defaults are 8 and 4 */
    .keys = FM_DEEPSEEK_KEYS " " FM_MLA_KEYS " " FM_MLA_INDEXER_KEYS,
    .weight = fm_deepseek_indexed_weights,
    .extra = &fm_extra_nextn,
};
