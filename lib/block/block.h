/*
 * The room of blocks: what decoder layers are made of.
 *
 *     x1 = x  + attention(norm(x))
 *     y  = x1 + sum over the experts that the router chose of weight * expert(norm(x1))
 *             + MLP(norm(x1)), in dense layers, or for a shared expert
 *
 * A family (lib/family/family.h) names four blocks: attention, router, expert form, norm.  A block
 * is one file, and everything that is said of it is said there: what it reads of config.json, its
 * tensors (names, shapes, in which models they exist), and its cost in bytes and in floating-point
 * operations.  Whoever needs a size derives it from the blocks: budgets and bundles from the
 * parameters of a channel, plans from the operations.
 *
 * Here are the sizes of a model (struct fm_config) and the weights of a layer in memory (struct
 * fm_layer), which all blocks share, and what a block of each kind says of itself.  Blocks know
 * nothing of files with weights.
 */
#ifndef FM_BLOCK_H
#define FM_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/block/keys.h"
#include "lib/block/weight.h"

/* A family: one row of the list in lib/family/families.c. */
struct fm_model_family;
struct fm_attention;
struct fm_expert_form;

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
    const struct fm_attention *attention;
    const struct fm_expert_form *expert;
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

/* Floating-point operations: of matrix products (gemm of struct fm_ops), and of what other
 * operations do in such numbers that plans must count them. */
struct fm_flops {
    double products, others;
};

/* `options` is what a family says of its block: a struct of the block's header. */
struct fm_attention {
    const char *name;
    /* Read and check its keys of config.json; Q, G and C are set, whatever they mean to it. */
    int (*read)(struct fm_config *config, const void *options, const struct fm_keys *keys,
                struct fm_err *err);
    /* What a letter of its own means in shapes. */
    uint64_t (*size)(const struct fm_config *config, char letter);
    /* Bits FM_OWN and above: which of its tensors layer l has. */
    unsigned (*has)(const struct fm_config *config, int l);
    /* Of one token of layer l, forward, in sequences of T; the gradient at its input takes as many
     * products again. */
    struct fm_flops (*flops)(const struct fm_config *config, int l, int T);
    /* Floats per token that a pass forward and backward has in use at once. */
    uint64_t (*scratch)(const struct fm_config *config);
};

/*
 * What a channel of an expert is: `rows` rows of gate_up, one of down, each H wide, and what lies
 * between them.
 */
struct fm_expert_form {
    const char *name;
    int rows;
    int (*read)(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);
};

/* Parameters of one channel, of all experts together in a full layer. */
static inline uint64_t fm_expert_channel_params(const struct fm_expert_form *form, int H)
{
    return ((uint64_t)form->rows + 1) * (uint64_t)H;
}

#endif
