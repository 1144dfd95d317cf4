/*
 * The architecture in one page: what a mixture-of-experts decoder is made of,
 * and where its weights come from.
 *
 * Weights live in float32 in the online layout (kernels/ops/kernels.h) whatever the
 * file holds.  One layer is resident at a time, the next is read ahead; where
 * --memory has room for all of them they stay.  A model is opened from
 *   - a checkpoint directory with stock names (original channel order, or ranked
 *     by a permutation given with fm_model_rank),
 *   - a bundle, or a `native` or `ragged` export (already ranked, maybe clipped).
 * The rest of the suite does not see which.
 */
#ifndef FM_MODEL_H
#define FM_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"

/* A family: one row of the table in lib/model/families.c. */
struct fm_model_family;

#define FM_LAYERS_MAX 1024
#define FM_HEAD_DIM_MAX 1024

/* What q and k go through between their projections and the rotation. */
enum fm_qk_norm {
    FM_QK_NORM_NONE,
    FM_QK_NORM_HEAD, /* each head normalised, one weight (C) for all */
    FM_QK_NORM_FULL  /* all heads together, weights (Q C) and (G C) */
};

/* How a token's experts are weighted. */
enum fm_router {
    FM_ROUTER_SOFTMAX,     /* softmax, the K largest, renormalised to sum 1 */
    FM_ROUTER_SOFTMAX_RAW, /* the same, not renormalised */
    FM_ROUTER_SPARSEMIXER
};

struct fm_config {
    const struct fm_model_family *family;
    int L;                      /* decoder layers */
    int M;                      /* those that are mixtures of experts: M <= L */
    int16_t moe[FM_LAYERS_MAX]; /* (M) their numbers, increasing; the other layers are dense */
    int H, Q, G, C;             /* hidden, query heads, key/value heads, head width */
    int E, K, I;                /* experts, chosen per token, channels of an expert */
    int dense, shared;          /* width of dense layers, of the shared expert; 0: none */
    int V;                      /* vocabulary */
    int T_max;                  /* max_position_embeddings */
    int window;                 /* sliding window, 0: none */
    float eps;                  /* of every norm */
    double rope_theta;
    float rope_scale;                       /* of cos and sin */
    float rope_factor[FM_HEAD_DIM_MAX / 2]; /* (C/2) what divides each frequency */
    bool longrope;                          /* T_max is where its short factors end */
    enum fm_router router;
    float router_eps; /* of sparsemixer: 2 router_jitter_noise */
    enum fm_qk_norm qk_norm;
    float clip;                /* q, k, v are clamped to +-clip; 0: not */
    bool qkv_bias, o_bias;     /* attention */
    bool norm_bias, head_bias; /* of every norm; of lm_head */
    bool tied;                 /* lm_head is the embedding */
};

/* Place of decoder layer l in config->moe, -1: it is dense. */
int fm_config_moe(const struct fm_config *config, int l);

/* Channels of the MLP that every token of decoder layer l goes through: a dense layer's own, or
 * the shared expert's; 0: there is none. */
int fm_config_mlp(const struct fm_config *config, int l);

/*
 * Parse and check config.json (text, size bytes, not NUL-terminated).  Every number is
 * checked against a named limit; keys of transformers 4 and 5 are both read.
 * FM_EFORMAT for broken JSON, FM_ECONFIG for a model that is not supported, by name.
 */
int fm_config_parse(struct fm_config *config, const char *text, size_t size, struct fm_err *err);

/* "mixtral": config.json's model_type. */
const char *fm_config_family(const struct fm_config *config);

/* Parameters of the whole model at these widths ((M, E), NULL: full), and those active for one
 * token when experts are chosen evenly (mean width times K per layer). */
uint64_t fm_config_params(const struct fm_config *config, const uint32_t *widths);
uint64_t fm_config_params_active(const struct fm_config *config, const uint32_t *widths);

/* One decoder layer in memory.  Expert e has cap[e] channels (I in a full model):
 * gate_up rows [2 row0[e], 2 (row0[e] + cap[e])), down rows [row0[e], row0[e] + cap[e]).
 * What the model or this layer does not have is NULL. */
struct fm_layer {
    float *input_norm, *input_norm_bias;      /* (H) */
    float *q, *k, *v, *o;                     /* (Q C, H), (G C, H), (G C, H), (H, Q C) */
    float *q_bias, *k_bias, *v_bias, *o_bias; /* (Q C), (G C), (G C), (H) */
    float *q_norm, *k_norm;                   /* (C), or (Q C) and (G C) */
    float *post_norm, *post_norm_bias;        /* (H) */
    float *mlp_gate_up, *mlp_down;            /* (2 D, H), (D, H): fm_config_mlp, as an expert's */
    float *mlp_mix;                           /* (H) logit of the shared expert's share */
    float *router;                            /* (E, H) */
    float *gate_up;                           /* (2 sum cap, H) */
    float *down;                              /* (sum cap, H) */
    int64_t *row0;                            /* (E) */
    int *cap;                                 /* (E) */
};

/* What lies outside the layers. */
struct fm_ends {
    float *embed;            /* (V, H) */
    float *norm, *norm_bias; /* (H) */
    float *head;             /* (V, H); the same block as embed where tied */
    float *head_bias;        /* (V) */
};

struct fm_model;

/*
 * Open a checkpoint directory, a native or ragged export, or a bundle file (told apart by what
 * is there).  Headers only; no weight is read.  `memory` bytes decide how many layers stay.
 * Errors name the file and the tensor.
 */
int fm_model_open(struct fm_model **model, const char *path, uint64_t memory, struct fm_err *err);
void fm_model_close(struct fm_model *model); /* NULL is fine */

const struct fm_config *fm_model_config(const struct fm_model *model);

/* Dtype of the expert weights on disk: what merged weights are rounded to. */
enum fm_dtype fm_model_dtype(const struct fm_model *model);

/* Channels each expert has on disk, (M, E); I everywhere in a full model. Borrowed. */
const uint32_t *fm_model_caps(const struct fm_model *model);

/* Read experts in ranked order from now on: channel j in memory is channel order[(l E + e) I + j]
 * of the file.  Borrows `order` (M, E, I), checked to be permutations by the caller; NULL: the
 * file's order again.  For stock checkpoints alone: all others are ranked already. */
void fm_model_rank(struct fm_model *model, const int32_t *order);

/* Weights lie on the device of `ops`, which convert them, from now on; those that lie elsewhere are
 * read again.  Borrows ops.  Before the first call that is the host's memory. */
void fm_model_use(struct fm_model *model, const struct fm_ops *ops);

/* Embedding, last norm, head: read at the first call, resident until close. */
int fm_model_ends(struct fm_model *model, const struct fm_ends **ends, struct fm_err *err);

/*
 * Layer l, resident until the next call of fm_model_layer; `next` (or -1) is read ahead by a
 * thread of its own.  FM_EFORMAT names the tensor that holds NaN or Inf.
 */
int fm_model_layer(struct fm_model *model, int l, int next, const struct fm_layer **layer,
                   struct fm_err *err);

/* Bytes that one resident layer takes; and that the model holds once a sweep went through it: the
 * ends, the layers that stay, the slot of the others and what is read ahead for it. */
uint64_t fm_model_layer_bytes(const struct fm_model *model);
uint64_t fm_model_resident_bytes(const struct fm_model *model);

#endif
