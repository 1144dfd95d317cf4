/*
 * Private to lib/bench/servecase.c, serveloop.c and servebench.c: a decoder with random weights
 * that serves a batch of sequences.
 *
 *     x = x + attention(norm(x)),  x = x + experts(norm(x)),     layer by layer
 *
 * Attention is grouped-query with rotary positions and a cache of keys and values, the router is
 * Mixtral's, the experts are libfm_clip's with their weights resident: c->budget is the one number
 * that all layers read, and writing it is all that switching takes.  What goes in are random
 * tokens through a table; what comes out are hidden states (no last norm, head or sampling).
 *
 * On a GPU (kernels/serve/serve_gpu.h) layers are made here one at a time and copied; c->last stays
 * as it is, and the experts' work is not counted.
 */
#ifndef FM_SERVECASE_H
#define FM_SERVECASE_H

#include "kernels/clip/clip.h"
#include "kernels/serve/serve.h"
#include "kernels/serve/serve_gpu.h"
#include "lib/bench/serveoptions.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

struct fm_serve_layer {
    float *input_norm, *post_norm; /* (H) */
    char *qkv;                     /* ((Q + 2 G) C, H): q, k, v one after another; of c->dtype */
    char *o;                       /* (H, Q C) */
    float *router;                 /* (E, H) */
    char *gate_up, *down;          /* (2 E I, H), (E I, H) */
    int32_t *widths;               /* (B, E) */
    struct fm_serve_cache cache;   /* (batch, prompt + decode) */
    struct fm_clip_layer shape;
    struct fm_clip *clip;
};

/* What the experts did since it was zeroed. */
struct fm_serve_work {
    double seconds;  /* inside libfm_clip */
    double channels; /* of all routed rows: each row's width */
    double touched;  /* channels of all experts that had a row, per call: what was read */
};

struct fm_servecase {
    struct fm_config config; /* L is the number of layers that are here */
    int model_layers;        /* of the whole model; 0: unknown */
    int batch, prompt, decode, threads;
    enum fm_dtype dtype; /* F32 or BF16: weights, cache, what goes through the experts */
    uint64_t seed;
    const struct fm_ops *ops;
    int B;
    double share[FM_KERNELBENCH_BUDGETS_MAX]; /* of all channels, removed */
    int32_t budget;                           /* in force */
    int32_t *cap;                             /* (E): I */
    int64_t *row0;                            /* (E) */
    struct fm_serve_layer *layer;             /* (L) */
    float *table;                             /* (V, H) */
    int32_t *tokens;                          /* (batch, prompt + decode) */
    float *cos, *sin;                         /* (prompt + decode, C / 2) */
    int rows;                                 /* at most so many at a time go through */
    float *x, *xn, *q, *k, *v, *out, *logits; /* (rows, ...) */
    float *rstd, *weights;
    int32_t *ids, *now; /* (rows, K), (rows) */
    char *narrow;       /* (2 rows, H) of c->dtype where that is not F32: into and out of experts */
    void *workspace;
    uint64_t workspace_bytes;
    float *last; /* (batch, H): hidden state of each sequence's newest position */
    struct fm_serve_work work;
    bool on_gpu;              /* then layers lie there, and only widths here */
    struct fm_serve_gpu *gpu; /* once filled */
};

/* Sizes, the number of layers, masks.  Then memory and numbers.  Release in any case. */
int fm_servecase_shape(struct fm_servecase *c, const struct fm_servebench_options *options,
                       const struct fm_run_options *run, struct fm_err *err);
int fm_servecase_fill(struct fm_servecase *c, struct fm_err *err);
void fm_servecase_release(struct fm_servecase *c); /* zeroed struct is fine */

/* Bytes of one layer's experts, of all its weights, of its cache for one token. */
uint64_t fm_servecase_expert_bytes(const struct fm_servecase *c);
uint64_t fm_servecase_layer_bytes(const struct fm_servecase *c);
uint64_t fm_servecase_cache_bytes(const struct fm_servecase *c);

/* Every sequence's prompt through all layers; then one more position of each, position `at`
 * (prompt <= at < prompt + decode).  They fill c->last. */
int fm_servecase_prefill(struct fm_servecase *c, struct fm_err *err);
int fm_servecase_step(struct fm_servecase *c, int at, struct fm_err *err);

#endif
