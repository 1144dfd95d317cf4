/*
 * Attention block "gqa": grouped-query attention with rotary positions, which most families have.
 * Biases, norms of q and k, clamping, a sliding window and an output gate are options of a family.
 * Tensors are named as in transformers.
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
    bool alternates; /* only the sliding layers of layer_types have a window; without layer_types,
                        every second layer has one, starting with the first; no other key switches
                        windows on or off */
    const char *every_key;  /* key of a number n: without layer_types, every n-th layer has no
                               window and all others have one; NULL: none */
    int every;              /* n if config.json has no such key; 0: 2 */
    bool first_full;        /* without layer_types, layer 0 has no window either */
    bool unrotated;         /* layers without a window have no positional encoding */
    int usual_window;       /* window if config.json has no sliding_window; 0: none */
    const char *before_key; /* key of the number of earlier positions that a query attends to, which
                               transformers prefers to sliding_window; NULL: none */
    const char *pattern_key; /* key of a list, 1 for a layer with a window and 0 for others, which
                                must agree with layer_types or its default; NULL: none */
    const char *heads_key;   /* key of the number of query heads of each layer; NULL: none */
    int window_groups; /* layers with a window have num_key_value_heads times this many key heads;
                          0: as many as other layers */
    const char *value_key; /* key of the width of values; NULL: as wide as keys */
    const char *scale_key; /* key of a factor of values; NULL: none */
    double scale;          /* the factor if config.json has no such key; null means 1 */
    bool sinks;            /* every query head has one more score, for a value of zero */
    bool window_sinks;     /* only in layers with a window */
    bool clip;             /* clip_qkv is supported */
    bool gated;            /* the output is multiplied by gates computed from the input */
    bool gate_apart;       /* the gate has its own tensor; else its rows are interleaved with q's */
    bool gate_heads;       /* one gate per head, else one per element; requires gate_apart */
    bool gate_softplus;    /* a gate per head is a softplus, else a sigmoid */
    const char *shared_key; /* key of a flag: layers without a window have no projection of values,
                               which are then the keys before their norm and rotation; NULL: none */
    bool value_norm;        /* each head of the values is normalised, without weights */
    double divisor;         /* scores are divided by it; 0: the root of the width of heads */
    /* Set the width of heads and the number of key heads of layers without a window
     * (fm_gqa_differ), when layer_types has been read; NULL: they are those of the other layers. */
    int (*read_full)(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);
    bool other_layers; /* layer_types may have other values, which read_more or a different block
                          reads */
    /* Read the keys that only this family has, after all others; NULL: none. */
    int (*read_more)(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);
    const char *layout_key; /* key that is "fused_qkv" if q, k and v are one tensor, whose rows are
                               stored in num_key_value_heads chunks, each with rows of q, k and v
                               and with its own blocks of scales; NULL: none */
    enum fm_qk_norm qk_norm;
    const char *qk_norm_key; /* key in config.json that must be true for the norm to exist; NULL:
                                it always exists */
    struct fm_rope_options rope;
    const struct fm_rope_options *window_rope; /* for layers with a window; NULL: `rope` */
};

/* Values read from config.json. */
struct fm_gqa {
    const struct fm_gqa_options *options; /* of the family */
    int window;                           /* sliding window, 0: none */
    uint16_t heads[FM_LAYERS_MAX];        /* query heads of each layer; 0: config->Q */
    int window_groups, full_groups; /* key heads of layers with a window, and without; 0: config->G
                                       in both */
    int window_width, full_width;   /* the same for the width of heads; 0: config->C in both */
    int D;                          /* width of a head's values; 0: that of the heads */
    float scale;                    /* values are multiplied by it; 0 means 1 */
    double divisor;                 /* scores are divided by it; 0: the root of heads' width */
    float clip;                     /* clamp q, k, v to +-clip; 0: no clamping */
    bool qkv_bias, o_bias;          /* as in the options */
    int chunks;                     /* of the tensor that has q, k and v; 0: they are apart */
    bool shared;                    /* as shared_key says */
    enum fm_qk_norm qk_norm;
    struct fm_rope rope;          /* of layers without a window, and of the others if
                                     window_rope.R is 0 */
    struct fm_rope window_rope;   /* of layers with a window */
    struct fm_layers full;        /* the layers without a window */
    int index_heads, index_width; /* of a sparse indexer, which chooses all keys in sequences
                                     up to config->T_exact; its tensors are only copied */
    struct fm_layers indexed;     /* the layers that have an indexer */
};

extern const struct fm_attention fm_gqa;

/* Number of positions that a query of layer l attends to; 0: all positions up to its own. */
int fm_gqa_window(const struct fm_config *config, int l);

/* Whether layer l has no window. */
static inline bool fm_gqa_full(const struct fm_config *config, int l)
{
    return fm_layers_has(&config->gqa->full, l);
}

/* Query heads and key heads of layer l, and the widths of a head and of its values. */
int fm_gqa_heads(const struct fm_config *config, int l);
int fm_gqa_groups(const struct fm_config *config, int l);
int fm_gqa_width(const struct fm_config *config, int l);
int fm_gqa_value(const struct fm_config *config, int l);

/* For read_full: layers without a window have heads of this width and this many key heads, other
 * layers those that config has; config receives the larger ones. */
void fm_gqa_differ(struct fm_config *config, int full_width, int full_groups);

/* Rows of a file in `groups` groups, each with parts of width[0], width[1], ... rows, as `order` of
 * struct fm_attention for a field that has the parts one after another. */
void fm_gqa_take_apart(int32_t *order, int groups, const int *width, int parts);

enum {
    FM_GQA_QKV_BIAS = FM_OWN,
    FM_GQA_O_BIAS = FM_OWN << 1,
    FM_GQA_QK_NORM = FM_OWN << 2,
    FM_GQA_SINKS = FM_OWN << 3,
    FM_GQA_INDEXER = FM_OWN << 4,
    FM_GQA_VALUES = FM_OWN << 5,
    FM_GQA_APART = FM_OWN << 6,
    FM_GQA_FUSED = FM_OWN << 7
};

/* Letters, of layer l: q = Q C, g = G C, o = Q D, u = G D, f = q + g + u, h = Q, a and b = widths
 * of the norms of q and k; D is the width of values.  For an indexer, w = its width, i = its heads
 * times w. */
/* clang-format off */
#define FM_GQA_WEIGHT(n, f, shape, when)                                                           \
    FM_LAYER_WEIGHT(n, FM_PART_ATTENTION, gqa.f, shape, when)
#define FM_GQA_MATRIX(n, f, shape) FM_GQA_MATRIX_IF(n, f, shape, FM_ALWAYS)
#define FM_GQA_MATRIX_IF(n, f, shape, when)                                                        \
    FM_LAYER_WEIGHT(n, FM_PART_PROJECTION, gqa.f, shape, when)
#define FM_GQA_WEIGHTS(prefix)                                                                     \
    FM_GQA_MATRIX_IF(prefix "q_proj.weight", q, "qH", FM_GQA_APART),                               \
    FM_GQA_WEIGHT(prefix "q_proj.bias", q_bias, "q", FM_GQA_QKV_BIAS),                             \
    FM_GQA_MATRIX_IF(prefix "k_proj.weight", k, "gH", FM_GQA_APART),                               \
    FM_GQA_WEIGHT(prefix "k_proj.bias", k_bias, "g", FM_GQA_QKV_BIAS),                             \
    FM_GQA_MATRIX_IF(prefix "v_proj.weight", v, "uH", FM_GQA_VALUES),                              \
    FM_GQA_WEIGHT(prefix "v_proj.bias", v_bias, "u", FM_GQA_QKV_BIAS),                             \
    FM_GQA_MATRIX(prefix "o_proj.weight", o, "Ho"),                                                \
    FM_GQA_WEIGHT(prefix "o_proj.bias", o_bias, "H", FM_GQA_O_BIAS),                               \
    FM_GQA_WEIGHT(prefix "q_norm.weight", q_norm, "a", FM_GQA_QK_NORM),                            \
    FM_GQA_WEIGHT(prefix "k_norm.weight", k_norm, "b", FM_GQA_QK_NORM)
#define FM_GQA_FUSED_WEIGHT(prefix)                                                                \
    FM_LAYER_WEIGHT(prefix "qkv_proj.weight", FM_PART_HEADS, gqa.q, "fH", FM_GQA_FUSED)
#define FM_GQA_HEAD_GATE_WEIGHT(prefix)                                                            \
    FM_GQA_MATRIX(prefix "g_proj.weight", gate, "hH")
#define FM_GQA_GATE_WEIGHT(prefix)                                                                 \
    FM_GQA_MATRIX(prefix "gate_proj.weight", gate, "oH")
#define FM_GQA_SINKS_WEIGHT(prefix)                                                                \
    FM_GQA_SINKS_WEIGHT_AS(prefix "sinks", prefix "sinks")
/* FM_GQA_SINKS_WEIGHT with a different name in checkpoints. */
#define FM_GQA_SINKS_WEIGHT_AS(stock, ragged)                                                      \
    {{stock, stock, ragged}, FM_PART_ATTENTION,                                                    \
     FM_LAYER_FIELD(gqa.sinks), "h", FM_GQA_SINKS}
/* clang-format on */

#endif
