/*
 * Expert form "swiglu-clamped", gpt-oss's:
 *
 *     g = min(gate x + its bias, limit),  u = up x + its bias, clamped to [-limit, limit]
 *     h = (u + 1) g sigmoid(alpha g),  y = down h + its bias
 *
 * with alpha 1.702 and limit 7 unless config.json has swiglu_alpha or swiglu_limit.  A channel is a
 * row of gate and a row of up, each with a bias, and a column of down.  If its rows of gate and up
 * are zero, h is zero only if the bias of gate is also zero: (u + 1) 0 sigmoid(0) = 0.  Down's bias
 * belongs to the expert and applies at any width, including 0.
 *
 * Form "swiglu-clamped-unbiased", MiniMax-M3's, is the same without biases.
 *
 * Source: transformers' models/gpt_oss/modeling_gpt_oss.py (GptOssExperts).
 */
#ifndef FM_CLAMPED_H
#define FM_CLAMPED_H

#include "lib/block/block.h"

extern const struct fm_expert_form fm_swiglu_clamped, fm_swiglu_clamped_unbiased;

/* The four tensors with which a checkpoint stores all experts of a layer: gate_up_proj (E, H, 2 I),
 * whose columns are g0, u0, g1, ..., down_proj (E, I, H), and their biases (E, 2 I) and (E, H). */
/* clang-format off */
#define FM_CLAMPED_WEIGHTS(prefix)                                                                 \
    {FM_STOCK(prefix "experts.gate_up_proj"), FM_PART_GATE_UP_T, 0, "EHJ", FM_MOE},                \
    {FM_STOCK(prefix "experts.down_proj"), FM_PART_DOWN_T, 0, "EIH", FM_MOE},                      \
    {FM_STOCK(prefix "experts.gate_up_proj_bias"), FM_PART_BIAS, 0, "EJ", FM_MOE},                 \
    {{NULL, "layers.{l}.gate_up", prefix "experts.gate_up"}, FM_PART_GATE_UP, 0, "SH", FM_MOE},    \
    {{NULL, "layers.{l}.down", prefix "experts.down"}, FM_PART_DOWN_T, 0, "sH", FM_MOE},           \
    {{NULL, "layers.{l}.gate_up_bias", prefix "experts.bias_gate_up"}, FM_PART_BIAS, 0, "S",       \
     FM_MOE},                                                                                      \
    {{prefix "experts.down_proj_bias", prefix "experts.down_proj_bias", prefix "experts.bias_down"},\
     FM_PART_DOWN_BIAS, FM_LAYER_FIELD(down_bias), "EH", FM_MOE}
/* clang-format on */

#endif
