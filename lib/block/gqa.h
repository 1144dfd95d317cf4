/*
 * Attention block "gqa": grouped-query attention with rotary positions, as most families have it;
 * biases, norms of q and k, clamping, a sliding window and a gate behind it are variants that a
 * family switches on.
 * Tensors have the names of transformers.
 */
#ifndef FM_GQA_H
#define FM_GQA_H

#include "lib/block/block.h"
#include "lib/block/rope.h"

/* What q and k go through between their projections and the rotation. */
enum fm_qk_norm {
    FM_QK_NORM_NONE,
    FM_QK_NORM_HEAD, /* each head normalised, one weight (C) for all */
    FM_QK_NORM_FULL  /* all heads together, weights (Q C) and (G C) */
};

/* What a family says of its attention. */
struct fm_gqa_options {
    const char *bias_key;  /* of config.json; NULL: the family has no biases */
    bool bias;             /* bias_key where config.json lacks it */
    bool o_bias;           /* o_proj obeys it as well */
    bool window;           /* sliding_window is obeyed; else refused where it is switched on */
    bool alternates;       /* in the layers that layer_types says, else every other one, the first
                              with it; nothing else switches it */
    const char *every_key; /* without layer_types every so-manieth layer is without a window, and no
                              other; NULL: every other one */
    int every;             /* where config.json has no such key */
    bool unrotated;        /* layers without a window have no positions at all */
    int usual_window;      /* where config.json has no sliding_window; 0: none */
    bool sinks;            /* every query head has one more score, whose value is zero */
    bool clip;             /* clip_qkv */
    bool gated;            /* a product beside q's, as wide, gates what attention gives */
    bool gate_apart;       /* it has a tensor of its own; else its rows are between q's */
    bool other_layers;     /* layer_types has other values, which somebody else reads */
    enum fm_qk_norm qk_norm;
    const char *qk_norm_key; /* of config.json, which must say true for it; NULL: always */
    struct fm_rope_options rope;
};

/* What config.json says of it. */
struct fm_gqa {
    int window;            /* sliding window, 0: none */
    bool sinks;            /* there are such */
    float clip;            /* q, k, v are clamped to +-clip; 0: not */
    bool qkv_bias, o_bias; /* there are such */
    bool gated, gate_apart;
    bool unrotated;
    enum fm_qk_norm qk_norm;
    struct fm_rope rope;
    uint8_t full[FM_LAYERS_MAX / 8]; /* bit l % 8 of byte l / 8: layer l has no window */
};

extern const struct fm_attention fm_gqa;

/* Positions that a query of layer l sees; 0: all before it. */
int fm_gqa_window(const struct fm_config *config, int l);

enum {
    FM_GQA_QKV_BIAS = FM_OWN,
    FM_GQA_O_BIAS = FM_OWN << 1,
    FM_GQA_QK_NORM = FM_OWN << 2,
    FM_GQA_SINKS = FM_OWN << 3
};

/* Letters: q = Q C, g = G C, h = Q, a and b widths of the norms of q and k. */
/* clang-format off */
#define FM_GQA_WEIGHT(n, f, shape, when)                                                           \
    {FM_SAME(n), FM_PART_ATTENTION,                                                                \
     FM_LAYER_FIELD(gqa.f), shape, when}
#define FM_GQA_MATRIX(n, f, shape)                                                                 \
    {FM_SAME(n), FM_PART_PROJECTION,                                                               \
     FM_LAYER_FIELD(gqa.f), shape, FM_ALWAYS}
#define FM_GQA_WEIGHTS(prefix)                                                                     \
    FM_GQA_MATRIX(prefix "q_proj.weight", q, "qH"),                                                \
    FM_GQA_WEIGHT(prefix "q_proj.bias", q_bias, "q", FM_GQA_QKV_BIAS),                             \
    FM_GQA_MATRIX(prefix "k_proj.weight", k, "gH"),                                                \
    FM_GQA_WEIGHT(prefix "k_proj.bias", k_bias, "g", FM_GQA_QKV_BIAS),                             \
    FM_GQA_MATRIX(prefix "v_proj.weight", v, "gH"),                                                \
    FM_GQA_WEIGHT(prefix "v_proj.bias", v_bias, "g", FM_GQA_QKV_BIAS),                             \
    FM_GQA_MATRIX(prefix "o_proj.weight", o, "Hq"),                                                \
    FM_GQA_WEIGHT(prefix "o_proj.bias", o_bias, "H", FM_GQA_O_BIAS),                               \
    FM_GQA_WEIGHT(prefix "q_norm.weight", q_norm, "a", FM_GQA_QK_NORM),                            \
    FM_GQA_WEIGHT(prefix "k_norm.weight", k_norm, "b", FM_GQA_QK_NORM)
#define FM_GQA_GATE_WEIGHT(prefix)                                                                 \
    FM_GQA_MATRIX(prefix "gate_proj.weight", gate, "qH")
#define FM_GQA_SINKS_WEIGHT(prefix)                                                                \
    FM_GQA_WEIGHT(prefix "sinks", sinks, "h", FM_GQA_SINKS)
/* clang-format on */

#endif
