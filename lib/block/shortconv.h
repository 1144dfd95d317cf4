/*
 * Attention block "shortconv", for LFM2: gated short convolutions in most layers and grouped-query
 * attention in the others.  Tensors are named as in transformers.
 */
#ifndef FM_SHORTCONV_H
#define FM_SHORTCONV_H

#include "lib/block/block.h"
#include "lib/block/gqa.h"

/* Values read from config.json; struct fm_gqa has the values of the attention layers, for which are
 * a family's options: struct fm_gqa_options. */
struct fm_shortconv {
    struct fm_layers conv; /* the layers with a convolution */
    int W;                 /* width of the convolution, in tokens */
};

extern const struct fm_attention fm_shortconv;

/* Whether layer l has a convolution; false if the model has a different attention block. */
static inline bool fm_shortconv_layer(const struct fm_config *config, int l)
{
    return config->attention == &fm_shortconv && fm_layers_has(&config->shortconv->conv, l);
}

enum { FM_SHORTCONV_FULL = FM_OWN << 8, FM_SHORTCONV_CONV = FM_OWN << 9 };

/* Letters of shapes: the letters of gqa, and n = 3 H, w = W. */
/* clang-format off */
#define FM_SHORTCONV_WEIGHTS(full, own)                                                            \
    FM_LAYER_WEIGHT(full "q_proj.weight", FM_PART_PROJECTION, gqa.q, "qH", FM_SHORTCONV_FULL),     \
    FM_LAYER_WEIGHT(full "k_proj.weight", FM_PART_PROJECTION, gqa.k, "gH", FM_SHORTCONV_FULL),     \
    FM_LAYER_WEIGHT(full "v_proj.weight", FM_PART_PROJECTION, gqa.v, "gH", FM_SHORTCONV_FULL),     \
    FM_LAYER_WEIGHT(full "out_proj.weight", FM_PART_PROJECTION, gqa.o, "Hq", FM_SHORTCONV_FULL),   \
    FM_LAYER_WEIGHT(full "q_layernorm.weight", FM_PART_ATTENTION, gqa.q_norm, "a",                 \
                    FM_SHORTCONV_FULL),                                                            \
    FM_LAYER_WEIGHT(full "k_layernorm.weight", FM_PART_ATTENTION, gqa.k_norm, "b",                 \
                    FM_SHORTCONV_FULL),                                                            \
    FM_LAYER_WEIGHT(own "in_proj.weight", FM_PART_PROJECTION, shortconv.in, "nH",                  \
                    FM_SHORTCONV_CONV),                                                            \
    FM_LAYER_WEIGHT(own "conv.weight", FM_PART_ATTENTION, shortconv.conv, "H1w",                   \
                    FM_SHORTCONV_CONV),                                                            \
    FM_LAYER_WEIGHT(own "out_proj.weight", FM_PART_PROJECTION, shortconv.out, "HH",                \
                    FM_SHORTCONV_CONV)
/* clang-format on */

#endif
