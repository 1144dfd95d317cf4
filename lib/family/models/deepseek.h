/*
 * Shared by DeepSeek's families and similar ones: dense layers first, a shared expert that is not
 * weighted, a bias that affects only which experts are chosen, and the names of tensors.
 */
#ifndef FM_DEEPSEEK_H
#define FM_DEEPSEEK_H

#include "lib/block/scored.h"
#include "lib/family/models/qwen.h"

/* .layers_options of a family whose .read_layers is or calls fm_deepseek_layers. */
struct fm_deepseek_layers {
    int dense;  /* default number of dense layers before those with experts */
    int shared; /* default width of the shared expert in multiples of an expert's (shared_key of the
                   family) */
    const char *dense_key; /* key of the number of dense layers; NULL: first_k_dense_replace */
    const char *width_key; /* key of the shared expert's width; NULL: computed from `shared` */
    bool listed;           /* mlp_layer_types, if present, has the type of each layer */
    bool unread;           /* transformers does not read dense_key */
};

/* Read the number of dense layers, intermediate_size if there are any, and the shared expert's
 * width, which is a multiple of moe_intermediate_size unless it has its own key.  FM_ECONFIG
 * if no layer has experts, if mlp_layer_types disagrees with the number of dense layers, or if
 * other programs would interpret that number differently. */
int fm_deepseek_layers(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);

/* V3's rule: experts are chosen by sigmoid and bias, from the best groups if there are groups;
 * their weights are divided by their sum and multiplied by routed_scaling_factor, `by` if
 * config.json does not have it. */
#define FM_DEEPSEEK_V3_ROUTER(by)                                                                  \
    {                                                                                              \
        .sigmoid = true, .groups = FM_GROUPS_NOAUX, .renormalised = true, .norm_key = true,        \
        .eps = 1e-20, .scale = by                                                                  \
    }

/* The keys for the width and number of experts, and for the shared expert's width. */
#define FM_DEEPSEEK_SIZES                                                                          \
    .width_key = "moe_intermediate_size", .experts_key = "n_routed_experts",                       \
    .shared_key = "n_shared_experts"
/* These keys, and fm_deepseek_layers with the options in `layers`. */
#define FM_DEEPSEEK_LAYERS                                                                         \
    FM_DEEPSEEK_SIZES, .read_layers = fm_deepseek_layers, .layers_options = &layers

/* For .keys of struct fm_model_family. */
#define FM_DEEPSEEK_KEYS                                                                           \
    "aux_loss_alpha ep_size first_k_dense_replace mlp_layer_types moe_layer_freq n_group "         \
    "n_shared_experts num_mtp_layers routed_scaling_factor scoring_func seq_aux topk_group "       \
    "topk_method"

/* The MLPs, the router and the experts of a layer; and the bias, if the family has it. */
#define FM_DEEPSEEK_MOE_WEIGHTS                                                                    \
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE), FM_MLP_WEIGHTS(FM_MLP "shared_experts.", FM_SHARED),         \
        FM_QWEN_MOE_WEIGHTS
#define FM_DEEPSEEK_BIAS_WEIGHT                                                                    \
    FM_SCORED_BIAS_WEIGHT(FM_MLP "gate.e_score_correction_bias",                                   \
                          FM_MLP "gate.e_score_correction_bias", "E")

/* All tensors of families with these and grouped-query attention, latent attention, or latent
 * attention with an indexer. */
extern const struct fm_weight fm_deepseek_gqa_weights[], fm_deepseek_mla_weights[],
    fm_deepseek_indexed_weights[];

#endif
