/*
 * Shared by Qwen's families and similar ones: which layers have experts, and the names of tensors.
 */
#ifndef FM_QWEN_H
#define FM_QWEN_H

#include "lib/block/deltanet.h"
#include "lib/block/mlp.h"
#include "lib/block/router.h"
#include "lib/block/swiglu.h"
#include "lib/family/decoder.h"

/* Read decoder_sparse_step and mlp_only_layers, and intermediate_size if some layers are dense. */
int fm_qwen_layers(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);

/* Like fm_qwen_layers; also reads shared_expert_intermediate_size, the width of a weighted shared
 * expert. */
int fm_qwen_shared_layers(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);

/* For .keys of struct fm_model_family. */
#define FM_QWEN_KEYS "decoder_sparse_step mlp_only_layers shared_expert_intermediate_size"
#define FM_QWEN_DELTANET_KEYS                                                                      \
    FM_QWEN_KEYS " attn_output_gate full_attention_interval linear_conv_kernel_dim "               \
                 "linear_key_head_dim linear_num_key_heads linear_num_value_heads "                \
                 "linear_value_head_dim mamba_ssm_dtype"

#define FM_QWEN_MOE_WEIGHTS                                                                        \
    FM_ROUTER_WEIGHT(FM_MLP "gate.weight", FM_MLP "gate.weight"),                                  \
        FM_SWIGLU_WEIGHTS(FM_MLP, "gate_proj", "up_proj", "down_proj")

/* clang-format off */
/* All tensors of the families with Gated DeltaNets, except the MLPs of dense layers and experts. */
#define FM_QWEN_DELTANET_WEIGHTS                                                                   \
    FM_DECODER_WEIGHTS,                                                                            \
    FM_DELTANET_WEIGHTS(FM_ATTENTION, "model.layers.{l}.linear_attn."),                            \
    FM_MLP_WEIGHTS(FM_MLP "shared_expert.", FM_SHARED),                                            \
    FM_MLP_MIX_WEIGHT(FM_MLP "shared_expert_gate.weight"),                                         \
    FM_ROUTER_WEIGHT(FM_MLP "gate.weight", FM_MLP "gate.weight")

/* Options of the layers with full attention in these families. */
#define FM_QWEN_GATED_ATTENTION                                                                    \
    {.gated = true, .other_layers = true, .qk_norm = FM_QK_NORM_HEAD,                              \
     .rope = {.theta = 1e4, .partial = 0.25, .yarn = true}}
/* clang-format on */

#endif
