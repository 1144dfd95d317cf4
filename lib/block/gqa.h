/*
 * Attention block "gqa": grouped-query attention with rotary positions, which most families have.
 * Biases, norms of q and k, clamping, a sliding window and an output gate are options of a family.
 * Tensors have the names of transformers.
 */
#ifndef FM_GQA_H
#define FM_GQA_H

#include "lib/block/block.h"
#include "lib/block/rope.h"

/* Norm of q and k between their projections and the rotation. */
enum fm_qk_norm {
    FM_QK_NORM_NONE,
    FM_QK_NORM_HEAD, /* each head normalised, one weight (C) for all heads */
    FM_QK_NORM_FULL  /* all heads normalised together, weights (Q C) and (G C) */
};

/* Options of a family. */
struct fm_gqa_options {
    const char *bias_key; /* key in config.json; NULL: the family has no biases */
    bool bias;            /* value of bias_key if config.json lacks it */
    bool o_bias;          /* bias_key also applies to o_proj */
    bool window;          /* sliding_window is supported; else refused if it is switched on */
    bool alternates; /* only the sliding layers of layer_types have a window; without layer_types
                        every second layer, the first one included; no other key switches it */
    const char *every_key; /* key of an interval: without layer_types, every layer at that interval
                              has no window and all others have one; NULL: interval 2 */
    int every;             /* the interval if config.json has no such key */
    bool unrotated;        /* layers without a window have no positional encoding */
    int usual_window;      /* window if config.json has no sliding_window; 0: none */
    bool sinks;            /* every query head has an additional score, whose value is zero */
    bool clip;             /* clip_qkv is supported */
    bool gated;            /* the output is gated by a projection as wide as q */
    bool gate_apart;       /* the gate has its own tensor; else its rows are interleaved with q's */
    bool other_layers;     /* layer_types may have other values, which another block reads */
    enum fm_qk_norm qk_norm;
    const char *qk_norm_key; /* key in config.json that must be true for qk_norm; NULL: always on */
    struct fm_rope_options rope;
};

/* Values read from config.json. */
struct fm_gqa {
    int window;            /* sliding window, 0: none */
    bool sinks;            /* as in the options */
    float clip;            /* clamp q, k, v to +-clip; 0: no clamping */
    bool qkv_bias, o_bias; /* as in the options */
    bool gated, gate_apart;
    bool unrotated;
    enum fm_qk_norm qk_norm;
    struct fm_rope rope;
    uint8_t full[FM_LAYERS_MAX / 8]; /* bit l % 8 of byte l / 8: layer l has no window */
};

extern const struct fm_attention fm_gqa;

/* Number of positions that a query of layer l attends to; 0: all positions up to its own. */
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
