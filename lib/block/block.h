/*
 * This room, lib/block: the parts of decoder layers.
 *
 *     x1 = x  + attention(norm(x))
 *     y  = x1 + sum over the experts that the router chose of weight * expert(norm(x1))
 *             + MLP(norm(x1)), if the layer is dense or has a shared expert
 *
 * A family (lib/family/family.h) names four blocks: attention, router, expert form, norm.  A block
 * is one file that contains everything specific to it: the keys it reads from config.json, its
 * tensors (names, shapes, in which models they exist), its inner values (those of the forward that
 * the backward needs), forward and backward, and its cost in bytes and in floating-point
 * operations.  Everything else is derived from the blocks: the sizes of budgets and bundles from
 * the parameters of a channel, the estimates of a run from the operations.
 *
 * All blocks share the sizes of a model (struct fm_config, in this header) and the weights of a
 * layer in memory (struct fm_layer, in layerweights.h).  This header also has the descriptor of
 * each kind of block.  Blocks do not read weight files and do not pass values between layers:
 * lib/model reads the tensors that their tables list, and lib/engine calls the blocks in model
 * order (lib/block/pass.h).
 *
 * In reading order: this header, layerweights.h (weights in memory), weight.h and pass.h (the
 * arguments of a block), keys (sizes from config.json), config.c, arena.c; norm; attention: gqa
 * with rope, mla, deltanet, shortconv; routers: router with softmax, scored, sparsemix; experts:
 * experts with swiglu, clamped and limited, mlp; cost.
 */
#ifndef FM_BLOCK_H
#define FM_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/quant/quant.h"
#include "kernels/ops/kernels.h"
#include "lib/block/keys.h"
#include "lib/block/layerweights.h"
#include "lib/block/weight.h"

/* A model family: one row of the list in lib/family/family.h. */
struct fm_model_family;
struct fm_attention;
struct fm_router;
struct fm_expert_form;
struct fm_norm;
struct fm_gqa;
struct fm_mla;
struct fm_deltanet;
struct fm_shortconv;
struct fm_scored;
struct fm_sparsemix;
struct fm_limits;

#define FM_HEAD_DIM_MAX 1024

struct fm_config {
    const struct fm_model_family *family;
    const char *type; /* model_type: the family's name, or its alias */
    const struct fm_attention *attention;
    const struct fm_router *router;
    const struct fm_expert_form *expert;
    const struct fm_norm *norm;
    int L;                      /* decoder layers */
    int M;                      /* layers with experts: M <= L */
    int16_t moe[FM_LAYERS_MAX]; /* (M) their indices, ascending; all other layers are dense */
    int H, Q, G, C; /* hidden size, query heads, key/value heads, head width; if layers differ, the
                       largest number of heads */
    int E, K, I;    /* experts, experts per token, channels per expert */
    int dense, shared;        /* width of dense layers and of the shared expert; 0: none */
    bool shared_mix;          /* the shared expert's output is multiplied by sigmoid(w x) (mlp.h) */
    int V;                    /* vocabulary */
    int T_max;                /* max_position_embeddings */
    float eps;                /* epsilon of every norm */
    float alpha, limit;       /* parameters of the experts' activation, if it has them */
    struct fm_limits *limits; /* the same, if they differ between layers (limited.h); owned like the
                                 values of blocks below */
    float embed_scale;        /* embeddings are multiplied by it */
    float residual_scale;     /* the outputs of attention, and of experts and MLP together, are
                                 multiplied by it before they are added; 1 if they are normalised */
    float logit_scale;        /* logits are multiplied by it */
    float softcap;            /* logits z become softcap tanh(z / softcap); 0: they do not */
    bool apart;            /* in layers with experts and an MLP, each has its own norms (layer.c) */
    int T_exact;           /* longest sequence that is computed as in the model */
    const char *exact;     /* the reason for T_exact, for messages, or NULL */
    unsigned output_norms; /* bits of enum fm_output_norms */
    bool head_bias;        /* lm_head has a bias */
    bool tied;             /* lm_head is the embedding */
    bool fused;       /* experts are fused, in a family whose checkpoints have them either separate
                         or fused */
    bool part;        /* it is the text part of a wrapper (formats/tensor/hftext.h) */
    int extra_layers; /* layers for multi-token prediction, from config.json */
    struct fm_scheme scheme;    /* how weights are stored (formats/quant/quant.h); if modules are
                                   stored    in different ways, how experts are */
    struct fm_schemes *schemes; /* of a checkpoint that stores modules in different ways; else NULL.
                                   Owned like the values of blocks below. */
    bool mixed;                 /* experts' matrices in one layer have different schemes */
    /* Values that each block read from config.json; NULL: the model has no such block.  The block's
     * `read` allocates them and fm_config_release frees them; a copy of this struct borrows them.
     */
    struct fm_gqa *gqa;
    struct fm_mla *mla;
    struct fm_deltanet *deltanet;
    struct fm_shortconv *shortconv;
    struct fm_scored *scored;
    struct fm_sparsemix *sparsemix;
};

/* Norms of the output of a sublayer, applied before it is added to the residual stream. */
enum fm_output_norms {
    FM_NORMS_ATTENTION = 1 << 0,
    FM_NORMS_MLP = 1 << 1,    /* of the sum of experts and MLP */
    FM_NORMS_EXPERTS = 1 << 2 /* the same, only in layers with experts */
};

/* The output norms of layer l: FM_NORMS_ATTENTION and FM_NORMS_MLP. */
unsigned fm_config_output_norms(const struct fm_config *config, int l);

/* Free what the blocks' `read` allocated and zero *config; a zeroed struct is fine. */
void fm_config_release(struct fm_config *config);

/* Index of decoder layer l in config->moe; -1 if it is dense. */
int fm_config_moe(const struct fm_config *config, int l);

/* The scheme of the tensor of this name, if it is codes or belongs to codes; for lib/model/stored.h
 * and for reading config.json. */
struct fm_scheme fm_config_scheme(const struct fm_config *config, const char *name);

/* Return the number of channels of the MLP that every token of decoder layer l goes through: the
 * dense MLP or the shared expert.  0 for a MoE layer without a shared expert. */
int fm_config_mlp(const struct fm_config *config, int l);

/* ---- the blocks ---- */

/* Floating-point operations: of matrix products (gemm of struct fm_ops), and of all other loops
 * that are long enough to matter for plans. */
struct fm_flops {
    double products, others;
};

struct fm_pass;
struct fm_arena;

/*
 * Attention on the normalised input of a layer.  `options` are the family's options for the block:
 * a struct of the block's header.
 */
struct fm_attention {
    /* Read and check the block's keys of config.json; set Q, G and C, whose meaning depends on the
     * block. */
    int (*read)(struct fm_config *config, const void *options, const struct fm_keys *keys,
                struct fm_err *err);

    /* In a model that also has full attention layers: whether layer l is one of this block's
     * layers.  NULL: all layers are. */
    bool (*is_own)(const struct fm_config *config, int l);
    const struct fm_attention *full; /* block of the other layers, which has the rotary angles */

    /* In layer l, the size that a letter in the shapes of the block's tensors stands for. */
    uint64_t (*size)(const struct fm_config *config, int l, char letter);
    /* Bits FM_OWN and above: which of the block's tensors layer l has. */
    unsigned (*has)(const struct fm_config *config, int l);

    /* For a tensor with FM_PART_HEADS of layer l: row j in memory is row order[j] of the file.
     * NULL: the block has no such tensors. */
    void (*order)(int32_t *order, const struct fm_config *config, int l,
                  const struct fm_weight *weight);

    /* `angles`: number of rotary angles per position.  `fill_angles`: their cos and sin for T
     * positions, (T, angles); if layers differ in their rotation, several such tables, one after
     * another. */
    int (*angles)(const struct fm_config *config);
    void (*fill_angles)(float *cos, float *sin, const struct fm_config *config, int T);

    /* Count, in a counting arena, the memory for the inner values of N tokens of layer l, which the
     * forward keeps for the backward. */
    void (*inner)(const struct fm_config *config, int l, int N, struct fm_arena *count);
    /* y (N, H) += attention of x (N, H). */
    void (*forward)(const struct fm_pass *pass, float *inner, float *y, const float *x);
    /* dx (N, H), the gradient at x, from dy (N, H). */
    void (*backward)(const struct fm_pass *pass, float *inner, float *dx, const float *dy);

    /* Operations for one token of layer l, forward, in sequences of T.  The products for the
     * gradient at its input take as many operations as the forward's. */
    struct fm_flops (*flops)(const struct fm_config *config, int l, int T);
    /* Floats per token that a forward and backward pass uses at once. */
    uint64_t (*scratch)(const struct fm_config *config);
};

/* The block that computes the attention of layer l. */
const struct fm_attention *fm_attention_of(const struct fm_config *config, int l);

/* Which experts a token goes to, and with which weight. */
struct fm_router {
    int (*read)(struct fm_config *config, const void *options, const struct fm_keys *keys,
                struct fm_err *err);
    bool saves; /* p (N, E), values of all experts, is kept from the forward for the backward */
    /* ids, weights (N, K), p from x (N, H). */
    void (*forward)(const struct fm_pass *pass, int32_t *ids, float *weights, float *p,
                    const float *x);
    /* dx (N, H) and dlogits (N, E), the gradient at the logits, from dweights (N, K); the choice of
     * experts is treated as constant. */
    void (*backward)(const struct fm_pass *pass, float *dx, float *dlogits, const float *dweights,
                     const int32_t *ids, const float *weights, const float *p);
    /* Operations of the products for one token, forward; the gradient takes as many. */
    double (*flops)(const struct fm_config *config);
};

/* The rows of one expert, and its weights. */
struct fm_expert_rows {
    int e, n;                   /* the expert; its number of rows */
    int width, cap;             /* channels in use, channels in memory */
    struct fm_in gate_up, down; /* (r cap, H), (cap, H) */
    const float *gate_up_bias;  /* (r cap); this and down_bias are NULL if the form has no biases */
    const float *down_bias;     /* (H) */
    struct fm_out h; /* (n, width): receives the input of down; data NULL: scratch is used */
};

/* Inputs and outputs of the backward of an expert; arrays of n rows. */
struct fm_expert_back {
    struct fm_in x;  /* H wide */
    struct fm_in dy; /* H wide: the gradient at the output */
    int full;        /* width <= full <= cap: channels of gu, h and dh */
    float *gu; /* r full wide: the products of gate_up, from the forward if `known`, else computed
                  by the backward */
    bool known;
    struct fm_out h;   /* full wide: input of down */
    float *dh;         /* full wide: gradient at h, before any mask */
    struct fm_out dgu; /* r width wide: the gradient at gu */
    float *dx;         /* H wide; NULL: neither dx nor dot is computed */
    float *dot;        /* (n): <dy, expert(x)> */
};

/*
 * The structure of an expert's channel: `rows` rows of gate_up and one of down, each H wide, and
 * the activation between them (lib/block/experts.h: how they are stored).
 */
struct fm_expert_form {
    int rows;  /* r */
    bool bias; /* every row of gate_up has a bias, which belongs to its channel; down's bias belongs
                  to the expert and applies at any width, including 0 */
    int (*read)(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);
    /* h (n, I) = the activation of gu (n, r I), for an expert, or for the MLP that all tokens go
     * through (`mlp`), which need not have the same. */
    void (*activate)(const struct fm_pass *pass, bool mlp, struct fm_out h, const float *gu, int n,
                     int I);
    /* dgu (n, r k), packed, from dh (n, I) and gu (n, r I): only channels [0, k). */
    void (*activate_back)(const struct fm_pass *pass, bool mlp, struct fm_out dgu, const float *dh,
                          const float *gu, int n, int I, int k);
};

#endif
