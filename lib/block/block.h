/*
 * This room, lib/block: what decoder layers are made of.
 *
 *     x1 = x  + attention(norm(x))
 *     y  = x1 + sum over the experts that the router chose of weight * expert(norm(x1))
 *             + MLP(norm(x1)), in dense layers, or for a shared expert
 *
 * A family (lib/family/family.h) names four blocks: attention, router, expert form, norm.  A block
 * is one file, and everything that is said of it is said there: what it reads of config.json, its
 * tensors (names, shapes, in which models they exist), its inner values, forward and backward, and
 * its cost in bytes and in floating-point operations.  Whoever needs a size derives it from the
 * blocks: budgets and bundles from the parameters of a channel, plans from the operations.
 *
 * Here are the sizes of a model (struct fm_config) and the weights of a layer in memory (struct
 * fm_layer, in layerweights.h), which all blocks share, and what a block of each kind says of
 * itself.  Blocks know nothing of files with weights, nor of what flows between layers: lib/model
 * reads what their tables list, and lib/engine calls them in model order (lib/block/pass.h).  Both
 * use this room, so a block need not be split into a part that is read and a part that computes.
 *
 * In reading order: this header, layerweights.h (weights in memory), weight.h and pass.h (what a
 * block is given), keys and config.c (sizes from config.json), arena.c; norm; attention: gqa with
 * rope, mla, deltanet; routers: router with softmax, scored, sparsemix; experts: experts with
 * swiglu and clamped, mlp; storage.h (weights in codes; the storages are in lib/block/storage);
 * cost.
 */
#ifndef FM_BLOCK_H
#define FM_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"
#include "lib/block/keys.h"
#include "lib/block/layerweights.h"
#include "lib/block/weight.h"

/* A family: one row of the list in lib/family/family.h. */
struct fm_model_family;
struct fm_attention;
struct fm_router;
struct fm_expert_form;
struct fm_norm;
struct fm_storage;
struct fm_gqa;
struct fm_mla;
struct fm_deltanet;
struct fm_scored;
struct fm_sparsemix;

#define FM_LAYERS_MAX 1024
#define FM_HEAD_DIM_MAX 1024

struct fm_config {
    const struct fm_model_family *family;
    const char *type; /* model_type: the family's name, or its alias */
    const struct fm_attention *attention;
    const struct fm_router *router;
    const struct fm_expert_form *expert;
    const struct fm_norm *norm;
    int L;                      /* decoder layers */
    int M;                      /* those that are mixtures of experts: M <= L */
    int16_t moe[FM_LAYERS_MAX]; /* (M) their numbers, increasing; the other layers are dense */
    int H, Q, G, C;             /* hidden, query heads, key/value heads, head width */
    int E, K, I;                /* experts, chosen per token, channels of an expert */
    int dense, shared;          /* width of dense layers, of the shared expert; 0: none */
    bool shared_mix;            /* the shared one is weighed by a sigmoid of the token */
    int V;                      /* vocabulary */
    int T_max;                  /* max_position_embeddings */
    float eps;                  /* of every norm */
    float alpha, limit;         /* of the experts' activation, where it has them */
    float embed_scale;          /* what embeddings are multiplied by */
    int T_exact;                /* the longest sequence that is computed as the model does */
    const char *exact;          /* why that is less than the positions; NULL: it is not */
    unsigned output_norms;      /* bits of enum fm_output_norms */
    bool head_bias;             /* of lm_head */
    bool tied;                  /* lm_head is the embedding */
    bool fused;                 /* of a family whose checkpoints have experts one by one or fused:
                                   these are fused */
    int extra_layers;           /* for multi-token prediction, as config.json has it */
    const struct fm_storage *storage; /* lib/block/storage.h; NULL: weights are plain numbers */
    int block_rows, block_columns;    /* that share a scale */
    /* What each block read of config.json for itself; NULL: the model has no such block.  The
     * block's `read` allocates it and fm_config_release frees it; a copy of this struct borrows
     * what the original owns. */
    struct fm_gqa *gqa;
    struct fm_mla *mla;
    struct fm_deltanet *deltanet;
    struct fm_scored *scored;
    struct fm_sparsemix *sparsemix;
};

/* Norms of what a part of a layer gives, before it is added to the residual stream. */
enum fm_output_norms {
    FM_NORMS_ATTENTION = 1 << 0,
    FM_NORMS_MLP = 1 << 1,    /* of experts and MLP together */
    FM_NORMS_EXPERTS = 1 << 2 /* the same in layers with experts only */
};

/* Those of layer l: FM_NORMS_ATTENTION and FM_NORMS_MLP. */
unsigned fm_config_output_norms(const struct fm_config *config, int l);

/* Free what the blocks' `read` allocated and zero *config; a zeroed struct is fine. */
void fm_config_release(struct fm_config *config);

/* Place of decoder layer l in config->moe, -1: it is dense. */
int fm_config_moe(const struct fm_config *config, int l);

/* Channels of the MLP that every token of decoder layer l goes through: a dense layer's own, or
 * the shared expert's; 0: there is none. */
int fm_config_mlp(const struct fm_config *config, int l);

/* ---- the blocks ---- */

/* Floating-point operations: of matrix products (gemm of struct fm_ops), and of what other
 * operations do in such numbers that plans must count them. */
struct fm_flops {
    double products, others;
};

struct fm_pass;

/*
 * Attention of a normalised layer input.  `options` is what a family says of its block: a struct of
 * the block's header.
 */
struct fm_attention {
    const char *name;
    /* Read and check its keys of config.json; Q, G and C are set, whatever they mean to it. */
    int (*read)(struct fm_config *config, const void *options, const struct fm_keys *keys,
                struct fm_err *err);

    /* What a letter of its own means in shapes. */
    uint64_t (*size)(const struct fm_config *config, char letter);
    /* Bits FM_OWN and above: which of its tensors layer l has. */
    unsigned (*has)(const struct fm_config *config, int l);

    /* Of a tensor with FM_PART_HEADS: its row j in memory is row order[j] of the file.  NULL: the
     * block has none such. */
    void (*order)(int32_t *order, const struct fm_config *config, const struct fm_weight *weight);

    /* Angles of a position, and cos and sin (T, angles) of them. */
    int (*angles)(const struct fm_config *config);
    void (*fill_angles)(float *cos, float *sin, const struct fm_config *config, int T);

    /* Floats of memory for the inner values of N tokens of layer l, which the forward leaves to the
     * backward; the block divides that memory among its arrays. */
    size_t (*inner)(const struct fm_config *config, int l, int N);
    /* y (N, H) += attention of x (N, H). */
    void (*forward)(const struct fm_pass *pass, float *inner, float *y, const float *x);
    /* dx (N, H), the gradient at x, from dy (N, H). */
    void (*backward)(const struct fm_pass *pass, float *inner, float *dx, const float *dy);

    /* Of one token of layer l, forward, in sequences of T; the gradient at its input takes as many
     * products again. */
    struct fm_flops (*flops)(const struct fm_config *config, int l, int T);
    /* Floats per token that a pass forward and backward has in use at once. */
    uint64_t (*scratch)(const struct fm_config *config);
};

/* Which experts a token goes to, and with which weight. */
struct fm_router {
    const char *name;
    int (*read)(struct fm_config *config, const void *options, const struct fm_keys *keys,
                struct fm_err *err);
    bool saves; /* p (N, E), something of all experts, goes from forward to backward */
    /* ids, weights (N, K), p from x (N, H). */
    void (*forward)(const struct fm_pass *pass, int32_t *ids, float *weights, float *p,
                    const float *x);
    /* dx (N, H) from dweights (N, K); what was chosen is constant. */
    void (*backward)(const struct fm_pass *pass, float *dx, const float *dweights,
                     const int32_t *ids, const float *weights, const float *p);
    /* Of one token, forward; its gradient takes as many products. */
    double (*flops)(const struct fm_config *config);
};

/* Rows of one expert on their way through it. */
struct fm_expert_rows {
    int e, n;                   /* which; how many rows */
    int width, cap;             /* channels in use, channels in memory */
    struct fm_in gate_up, down; /* (r cap, H), (cap, H) */
    const float *gate_up_bias;  /* (r cap); NULL where the form has none, and so is the next */
    const float *down_bias;     /* (H) */
    struct fm_out h;            /* (n, width): where the forward leaves what down is applied to; at
                                   NULL, in scratch */
};

/* What the backward of an expert reads and makes; arrays of n rows. */
struct fm_expert_back {
    struct fm_in x;  /* H wide */
    struct fm_in dy; /* H wide: the gradient at the output */
    int full;        /* width <= full <= cap: channels of gu, h and dh */
    float *gu;       /* r full wide: products of gate_up; known from the forward, or made here */
    bool known;
    struct fm_out h;   /* full wide: what down is applied to, */
    float *dh;         /* and the gradient at it before any mask */
    struct fm_out dgu; /* r width wide: the gradient at gu */
    float *dx;         /* H wide; NULL: not wanted, nor is dot */
    float *dot;        /* (n): <dy, expert(x)> */
};

/*
 * What a channel of an expert is: `rows` rows of gate_up, one of down, each H wide, and what lies
 * between them (lib/block/experts.h: how they are stored).
 */
struct fm_expert_form {
    const char *name;
    int rows;  /* r */
    bool bias; /* every row of gate_up has one, which goes with its channel; down's is the expert's
                  and stays whatever its width, also at 0 */
    int (*read)(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);
    /* z (n, H) = expert(x), x (n, H); gu (n, r width) is used, and serves the backward.  Width 0 is
     * an expert too. */
    void (*forward)(const struct fm_pass *pass, const struct fm_expert_rows *rows, float *z,
                    float *gu, struct fm_in x);
    void (*backward)(const struct fm_pass *pass, const struct fm_expert_rows *rows,
                     const struct fm_expert_back *back);
};

/* Norm over rows of H, weights w and b (H); b NULL where `bias` is false. */
struct fm_norm {
    const char *name;
    bool bias;
    /* y (N, H), rstd (N), kept for the backward. */
    void (*forward)(const struct fm_ops *ops, float *y, float *rstd, const float *x, const float *w,
                    const float *b, int N, int H, float eps);
    /* Adds into dx (N, H). */
    void (*backward)(const struct fm_ops *ops, float *dx, const float *dy, const float *x,
                     const float *w, const float *b, const float *rstd, int N, int H);
};

#endif
