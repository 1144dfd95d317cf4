/*
 * Expert form "swiglu": h = silu(gate x) * (up x), y = down h.  A channel is a row of gate, a row
 * of up, and a column of down; there are no biases, so a channel with zero weights contributes
 * nothing.  Form "geglu", Gemma's, has gelu, approximated by tanh, in place of silu.
 */
#ifndef FM_SWIGLU_H
#define FM_SWIGLU_H

#include "lib/block/block.h"

extern const struct fm_expert_form fm_swiglu, fm_geglu;

/* Three tensors of each expert in a checkpoint, (I, H), (I, H), (H, I); two tensors for all experts
 * of a layer in a bundle and in a ragged export, gate and up interleaved, down transposed. */
/* clang-format off */
#define FM_SWIGLU_WEIGHTS(prefix, gate, up, down)                                                  \
    FM_SWIGLU_WEIGHTS_AS(prefix, "model.layers.{l}.mlp.", gate, up, down)
#define FM_SWIGLU_WEIGHTS_AS(prefix, ragged, gate, up, down)                                       \
    {FM_STOCK(prefix "experts.{e}." gate ".weight"), FM_PART_GATE, 0, "IH", FM_MOE},               \
    {FM_STOCK(prefix "experts.{e}." up ".weight"), FM_PART_UP, 0, "IH", FM_MOE},                   \
    {FM_STOCK(prefix "experts.{e}." down ".weight"), FM_PART_DOWN, 0, "HI", FM_MOE},               \
    FM_SWIGLU_ONLINE_WEIGHTS_AS(ragged)
#define FM_SWIGLU_ONLINE_WEIGHTS FM_SWIGLU_ONLINE_WEIGHTS_AS("model.layers.{l}.mlp.")
#define FM_SWIGLU_ONLINE_WEIGHTS_AS(ragged)                                                        \
    {{NULL, "layers.{l}.gate_up", ragged "experts.gate_up"}, FM_PART_GATE_UP, 0, "SH", FM_MOE},    \
    {{NULL, "layers.{l}.down", ragged "experts.down"}, FM_PART_DOWN_T, 0, "sH", FM_MOE}
/* FM_SWIGLU_WEIGHTS for a family whose checkpoints have either those tensors or fused ones, (E,
 * ...), gate followed by up. */
#define FM_SWIGLU_EITHER_WEIGHTS(prefix)                                                           \
    FM_SWIGLU_EITHER_WEIGHTS_AS(prefix, prefix "experts.gate_up_proj", prefix "experts.down_proj")
#define FM_SWIGLU_EITHER_WEIGHTS_AS(prefix, gate_up, down)                                         \
    {FM_STOCK(prefix "experts.{e}.gate_proj.weight"), FM_PART_GATE, 0, "IH", FM_MOE | FM_EACH},    \
    {FM_STOCK(prefix "experts.{e}.up_proj.weight"), FM_PART_UP, 0, "IH", FM_MOE | FM_EACH},        \
    {FM_STOCK(prefix "experts.{e}.down_proj.weight"), FM_PART_DOWN, 0, "HI", FM_MOE | FM_EACH},    \
    {FM_STOCK(gate_up), FM_PART_GATE_THEN_UP, 0, "EJH", FM_MOE | FM_FUSED},                        \
    {FM_STOCK(down), FM_PART_DOWN, 0, "EHI", FM_MOE | FM_FUSED},                                   \
    FM_SWIGLU_ONLINE_WEIGHTS_AS(prefix)
/* clang-format on */

#endif
