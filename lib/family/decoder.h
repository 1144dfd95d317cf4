/*
 * Names of tensors that nearly all decoders in transformers share: what lies outside the layers,
 * the two norms of a layer, the attention's and the MLP's place.
 */
#ifndef FM_DECODER_H
#define FM_DECODER_H

#include "lib/block/block.h"

#define FM_ATTENTION "model.layers.{l}.self_attn."
#define FM_MLP "model.layers.{l}.mlp."

#define FM_END(n, f, shape, when)                                                                  \
    {                                                                                              \
        FM_SAME(n), FM_PART_ENDS, offsetof(struct fm_ends, f), shape, when                         \
    }
#define FM_NORM(n, f, when)                                                                        \
    {                                                                                              \
        FM_SAME(n), FM_PART_NORM, FM_LAYER_FIELD(f), "H", when                                     \
    }

#define FM_DECODER_WEIGHTS                                                                         \
    FM_END("model.embed_tokens.weight", embed, "VH", FM_ALWAYS),                                   \
        FM_END("model.norm.weight", norm, "H", FM_ALWAYS),                                         \
        FM_END("model.norm.bias", norm_bias, "H", FM_NORM_BIAS),                                   \
        FM_END("lm_head.weight", head, "VH", FM_UNTIED),                                           \
        FM_END("lm_head.bias", head_bias, "V", FM_HEAD_BIAS),                                      \
        FM_NORM("model.layers.{l}.input_layernorm.weight", input_norm, FM_ALWAYS),                 \
        FM_NORM("model.layers.{l}.input_layernorm.bias", input_norm_bias, FM_NORM_BIAS),           \
        FM_NORM("model.layers.{l}.post_attention_layernorm.weight", post_norm, FM_ALWAYS),         \
        FM_NORM("model.layers.{l}.post_attention_layernorm.bias", post_norm_bias, FM_NORM_BIAS)

/* The row that ends a table. */
#define FM_WEIGHTS_END                                                                             \
    {                                                                                              \
        {NULL}, FM_PART_ENDS, 0, "", FM_ALWAYS                                                     \
    }

#endif
