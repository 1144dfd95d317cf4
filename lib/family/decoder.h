/*
 * Names of tensors that nearly all decoders in transformers share: those outside the layers, the
 * two norms of a layer, and the prefixes of attention and MLP.  Also FM_BLOCKS, the fields for
 * a family's blocks.
 */
#ifndef FM_DECODER_H
#define FM_DECODER_H

#define FM_ATTENTION "model.layers.{l}.self_attn."
#define FM_MLP "model.layers.{l}.mlp."

#define FM_NONLAYER(n, f, shape, when)                                                             \
    {                                                                                              \
        FM_SAME(n), FM_PART_NONLAYER, offsetof(struct fm_nonlayer, f), shape, when                 \
    }
#define FM_NORM(n, f, when)                                                                        \
    {                                                                                              \
        FM_SAME(n), FM_PART_NORM, FM_LAYER_FIELD(f), "H", when                                     \
    }

/* Tensors outside the layers. */
#define FM_DECODER_ENDS                                                                            \
    FM_NONLAYER("model.embed_tokens.weight", embed, "VH", FM_ALWAYS),                              \
        FM_NONLAYER("model.norm.weight", norm, "H", FM_ALWAYS),                                    \
        FM_NONLAYER("model.norm.bias", norm_bias, "H", FM_NORM_BIAS),                              \
        FM_NONLAYER("lm_head.weight", lm_head, "VH", FM_UNTIED),                                   \
        FM_NONLAYER("lm_head.bias", lm_head_bias, "V", FM_HEAD_BIAS)

#define FM_DECODER_WEIGHTS                                                                         \
    FM_DECODER_ENDS, FM_NORM("model.layers.{l}.input_layernorm.weight", input_norm, FM_ALWAYS),    \
        FM_NORM("model.layers.{l}.input_layernorm.bias", input_norm_bias, FM_NORM_BIAS),           \
        FM_NORM("model.layers.{l}.post_attention_layernorm.weight", post_norm, FM_ALWAYS),         \
        FM_NORM("model.layers.{l}.post_attention_layernorm.bias", post_norm_bias, FM_NORM_BIAS)

/* The blocks of a family; its file defines their options as `attention` and `router`. */
#define FM_BLOCKS(attention_block, router_block, expert_form, norm_form)                           \
    .attention = &attention_block, .attention_options = &attention, .router = &router_block,       \
    .router_options = &router, .expert = &expert_form, .norm = &norm_form

/* The row that ends a table. */
#define FM_WEIGHTS_END                                                                             \
    {                                                                                              \
        {NULL}, FM_PART_NONLAYER, 0, "", FM_ALWAYS                                                 \
    }

#endif
