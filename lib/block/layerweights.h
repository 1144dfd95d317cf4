/*
 * The weights of a decoder layer in memory, and the weights outside the layers.  Weights that the
 * model or the layer does not have are NULL.  The rows of a family's table (weight.h) name these
 * fields; H, E, Q, C and the like are fields of struct fm_config, or of the block's struct in it.
 */
#ifndef FM_LAYERWEIGHTS_H
#define FM_LAYERWEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"

/* Attention block "gqa" (gqa.h). */
struct fm_gqa_weights {
    void *q, *k, *v, *o; /* projections (Q C, H), (G C, H), (G D, H), (H, Q D), where D is the width
                            of values; a gate without its own tensor, (Q C, H), follows q, and so
                            do k and v if they are NULL */
    void *gate;          /* (Q D, H), or (Q, H), if the gate has its own tensor */
    float *q_bias, *k_bias, *v_bias, *o_bias; /* (Q C), (G C), (G D), (H) */
    float *q_norm, *k_norm;                   /* (C), or (Q C) and (G C) */
    float *sinks;                             /* (Q) */
};

/* Attention block "mla" (mla.h): q, or q_a, q_norm and q_b. */
struct fm_mla_weights {
    void *q;                   /* (Q C, H); this, q_a, q_b, kv_a, kv_b and o are projections */
    void *q_a, *q_b;           /* (q_rank, H), (Q C, q_rank) */
    float *q_a_bias, *q_norm;  /* (q_rank) each */
    void *kv_a, *kv_b;         /* (c_rank + R, H), (Q (A + D), c_rank) */
    float *kv_a_bias, *c_norm; /* (c_rank + R), (c_rank) */
    void *o;                   /* (H, Q D) */
    float *o_bias;             /* (H) */
};

/* A DeltaNet layer (deltanet.h); layers with full attention have the weights of gqa. */
struct fm_deltanet_weights {
    void *qkv, *z; /* projections (2 G C + Q D, H), (Q D, H); packed: z follows qkv in one array */
    void *b, *a;   /* projections (Q, H) each; packed: a follows b */
    float *conv;   /* (2 G C + Q D, W) */
    float *rate, *bias; /* (Q) */
    float *norm;        /* (D) */
    void *out;          /* projection (H, Q D) */
};

/* A layer with a short convolution (shortconv.h); attention layers have the weights of gqa. */
struct fm_shortconv_weights {
    void *in;    /* (3 H, H): rows of b, then of c, then of u; this and out are projections */
    float *conv; /* (H, W) */
    void *out;   /* (H, H) */
};

/* Routers (router.h). */
struct fm_router_weights {
    float *w;           /* (E, H) */
    float *bias;        /* (E), bias of the logits; NULL: none */
    float *choice_bias; /* (E), only for the choice (scored.h); NULL: none */
    float *norm;        /* (H), of the router's own input, if config->apart */
    float *scale;       /* (E), factor of an expert's weight (softmax.h) */
};

/* One decoder layer in memory.  Expert e has cap[e] channels (I in a full model): with r rows of
 * gate_up per channel, it has rows [r row0[e], r (row0[e] + cap[e])) of gate_up and [row0[e],
 * row0[e] + cap[e]) of down. */
struct fm_layer {
    float *input_norm, *input_norm_bias; /* (H) */
    float *post_norm, *post_norm_bias;   /* (H) */
    float *attention_norm, *mlp_norm; /* (H), norms of the outputs of attention, and of experts and
                                         MLP together, before they are added; without biases */
    float *experts_norm, *experts_output_norm, *shared_output_norm; /* (H), if config->apart: norm
                          of the experts' input, and of the outputs of experts and MLP */
    float *scalar; /* (1): the layer's output is multiplied by it; NULL: it is not */
    struct fm_gqa_weights gqa;
    struct fm_mla_weights mla;
    struct fm_deltanet_weights deltanet;
    struct fm_shortconv_weights shortconv;
    struct fm_router_weights router;
    bool narrow; /* attention projections are bfloat16 (lib/block/pass.h) */
    struct fm_in mlp_gate_up,
        mlp_down;         /* (2 D, H), (D, H), D = fm_config_mlp; laid out like an expert */
    float *mlp_mix;       /* (H): the shared expert's weight is sigmoid(mlp_mix x); NULL: 1 */
    struct fm_in gate_up; /* (r sum cap, H) */
    struct fm_in down;    /* (sum cap, H) */
    float *gate_up_bias;  /* (r sum cap); NULL if experts have no biases */
    float *down_bias;     /* (E, H) */
    int64_t *row0;        /* (E) */
    int *cap;             /* (E) */
};

/* Weights outside the layers. */
struct fm_nonlayer {
    struct fm_in embed;      /* (V, H) */
    float *norm, *norm_bias; /* (H) */
    struct fm_in lm_head;    /* (V, H); the same memory as embed if tied */
    float *lm_head_bias;     /* (V) */
};

#endif
