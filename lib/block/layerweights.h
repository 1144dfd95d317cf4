/*
 * The weights of a decoder layer in memory, and those outside the layers.  What the model or the
 * layer does not have is NULL.  The rows of a family's table (weight.h) name these fields; H, E, Q,
 * C and the like are struct fm_config's, or those of the block's struct in it.
 */
#ifndef FM_LAYERWEIGHTS_H
#define FM_LAYERWEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"

/* Of attention block "gqa" (gqa.h). */
struct fm_gqa_weights {
    void *q, *k, *v, *o;                      /* (Q C, H), (G C, H), (G C, H), (H, Q C); gated: the
                                                 gate's (Q C, H) are behind q; projections */
    void *gate;                               /* the same where it has a tensor of its own */
    float *q_bias, *k_bias, *v_bias, *o_bias; /* (Q C), (G C), (G C), (H) */
    float *q_norm, *k_norm;                   /* (C), or (Q C) and (G C) */
    float *sinks;                             /* (Q) */
};

/* Of attention block "mla" (mla.h): q, or q_a, q_norm and q_b. */
struct fm_mla_weights {
    void *q;                   /* (Q C, H); projections, and so are q_a, q_b, kv_a, kv_b and o */
    void *q_a, *q_b;           /* (q_rank, H), (Q C, q_rank) */
    float *q_a_bias, *q_norm;  /* (q_rank) twice */
    void *kv_a, *kv_b;         /* (c_rank + R, H), (Q (A + D), c_rank) */
    float *kv_a_bias, *c_norm; /* (c_rank + R), (c_rank) */
    void *o;                   /* (H, Q D) */
    float *o_bias;             /* (H) */
};

/* Of a DeltaNet layer (deltanet.h); layers of full attention have those of gqa. */
struct fm_deltanet_weights {
    void *qkv, *z;      /* (2 G C + Q D, H), (Q D, H); packed: z is behind qkv in one array */
    void *b, *a;        /* (Q, H) twice; packed: a is behind b; projections, as the two above */
    float *conv;        /* (2 G C + Q D, W) */
    float *rate, *bias; /* (Q) */
    float *norm;        /* (D) */
    void *out;          /* (H, Q D): a projection */
};

/* Of routers (router.h). */
struct fm_router_weights {
    float *w;           /* (E, H) */
    float *bias;        /* (E), of the logits; NULL: none */
    float *choice_bias; /* (E), of the choice only (scored.h); NULL: none */
};

/* One decoder layer in memory.  Expert e has cap[e] channels (I in a full model): with r rows of
 * gate_up a channel, rows [r row0[e], r (row0[e] + cap[e])) of gate_up and [row0[e], row0[e] +
 * cap[e]) of down.  What the model or this layer does not have is NULL. */
struct fm_layer {
    float *input_norm, *input_norm_bias; /* (H) */
    float *post_norm, *post_norm_bias;   /* (H) */
    float *attention_norm, *mlp_norm;    /* (H), of what attention, and experts and MLP together,
                                            give, before it is added; without biases */
    struct fm_gqa_weights gqa;
    struct fm_mla_weights mla;
    struct fm_deltanet_weights deltanet;
    struct fm_router_weights router;
    bool narrow; /* the attention's projections are bfloat16 (lib/block/pass.h) */
    struct fm_in mlp_gate_up, mlp_down; /* (2 D, H), (D, H): fm_config_mlp, as an expert's */
    float *mlp_mix;       /* (H) logit of the shared expert's share, NULL: all of it */
    struct fm_in gate_up; /* (r sum cap, H) */
    struct fm_in down;    /* (sum cap, H) */
    float *gate_up_bias;  /* (r sum cap), NULL: experts have no biases */
    float *down_bias;     /* (E, H) */
    int64_t *row0;        /* (E) */
    int *cap;             /* (E) */
};

/* What lies outside the layers. */
struct fm_nonlayer {
    struct fm_in embed;      /* (V, H) */
    float *norm, *norm_bias; /* (H) */
    struct fm_in lm_head;    /* (V, H); the same block as embed where tied */
    float *lm_head_bias;     /* (V) */
};

#endif
