/*
 * Attention block "deltanet", of Qwen3-Next and its successors: Gated DeltaNet in most layers
 * (arXiv 2412.06464), whose state does not grow with the sequence, and gated grouped-query
 * attention in the others.  Tensors are named as in transformers.
 */
#ifndef FM_DELTANET_H
#define FM_DELTANET_H

#include "lib/block/block.h"
#include "lib/block/gqa.h"

/* Options of a family. */
struct fm_deltanet_options {
    struct fm_gqa_options full;
    bool packed; /* q, k, v and z are in one tensor, and b and a in another, both grouped by key
                    head; else [q k v], z, b and a are four tensors */
};

/* Values read from config.json; struct fm_gqa has the values of the layers with full attention. */
struct fm_deltanet {
    struct fm_layers linear; /* the DeltaNet layers */
    int G, Q;                /* number of heads: G of queries and of keys, Q of values */
    int C, D;                /* width of a head: C of queries and of keys, D of values */
    int W;                   /* width of the convolution, in tokens */
    bool packed;
};

extern const struct fm_attention fm_deltanet;

/* Whether layer l is a DeltaNet layer; false if the model has a different attention block. */
static inline bool fm_deltanet_layer(const struct fm_config *config, int l)
{
    return config->attention == &fm_deltanet && fm_layers_has(&config->deltanet->linear, l);
}

enum {
    FM_DELTANET_FULL = FM_OWN << 8,
    FM_DELTANET_LINEAR = FM_OWN << 9,
    FM_DELTANET_PACKED = FM_OWN << 10,
    FM_DELTANET_APART = FM_OWN << 11
};

/* Letters in shapes.  In layers with full attention: the letters of gqa, and p = 2 Q C.  In
 * DeltaNet layers: x = 2 G C + 2 Q D, c = 2 G C + Q D, v = Q D, y = 2 Q, h = Q, d = D, w = W. */
/* clang-format off */
#define FM_DELTANET_WEIGHTS(full, own)                                                             \
    FM_LAYER_WEIGHT(full "q_proj.weight", FM_PART_HEADS, gqa.q, "pH", FM_DELTANET_FULL),           \
    FM_LAYER_WEIGHT(full "k_proj.weight", FM_PART_PROJECTION, gqa.k, "gH", FM_DELTANET_FULL),      \
    FM_LAYER_WEIGHT(full "v_proj.weight", FM_PART_PROJECTION, gqa.v, "gH", FM_DELTANET_FULL),      \
    FM_LAYER_WEIGHT(full "o_proj.weight", FM_PART_PROJECTION, gqa.o, "Hq", FM_DELTANET_FULL),      \
    FM_LAYER_WEIGHT(full "q_norm.weight", FM_PART_ATTENTION, gqa.q_norm, "a", FM_DELTANET_FULL),   \
    FM_LAYER_WEIGHT(full "k_norm.weight", FM_PART_ATTENTION, gqa.k_norm, "b", FM_DELTANET_FULL),   \
    FM_LAYER_WEIGHT(own "in_proj_qkvz.weight", FM_PART_HEADS, deltanet.qkv, "xH",                  \
                    FM_DELTANET_PACKED),                                                           \
    FM_LAYER_WEIGHT(own "in_proj_ba.weight", FM_PART_HEADS, deltanet.b, "yH", FM_DELTANET_PACKED), \
    FM_LAYER_WEIGHT(own "in_proj_qkv.weight", FM_PART_PROJECTION, deltanet.qkv, "cH",              \
                    FM_DELTANET_APART),                                                            \
    FM_LAYER_WEIGHT(own "in_proj_z.weight", FM_PART_PROJECTION, deltanet.z, "vH",                  \
                    FM_DELTANET_APART),                                                            \
    FM_LAYER_WEIGHT(own "in_proj_b.weight", FM_PART_PROJECTION, deltanet.b, "hH",                  \
                    FM_DELTANET_APART),                                                            \
    FM_LAYER_WEIGHT(own "in_proj_a.weight", FM_PART_PROJECTION, deltanet.a, "hH",                  \
                    FM_DELTANET_APART),                                                            \
    FM_LAYER_WEIGHT(own "conv1d.weight", FM_PART_ATTENTION, deltanet.conv, "c1w",                  \
                    FM_DELTANET_LINEAR),                                                           \
    FM_LAYER_WEIGHT(own "A_log", FM_PART_ATTENTION, deltanet.rate, "h", FM_DELTANET_LINEAR),       \
    FM_LAYER_WEIGHT(own "dt_bias", FM_PART_ATTENTION, deltanet.bias, "h", FM_DELTANET_LINEAR),     \
    FM_LAYER_WEIGHT(own "norm.weight", FM_PART_ATTENTION, deltanet.norm, "d", FM_DELTANET_LINEAR), \
    FM_LAYER_WEIGHT(own "out_proj.weight", FM_PART_PROJECTION, deltanet.out, "Hv",                 \
                    FM_DELTANET_LINEAR)
/* clang-format on */

#endif
