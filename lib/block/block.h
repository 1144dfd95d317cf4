/*
 * The room of blocks: what decoder layers are made of.  Here are the sizes of a model (struct
 * fm_config) and the weights of a layer in memory (struct fm_layer), which all blocks share.
 */
#ifndef FM_BLOCK_H
#define FM_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A family: one row of the list in lib/family/families.c. */
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

#endif
