/*
 * This room, lib/engine: forward and backward through a model that need not fit into memory, one
 * layer at a time, for the full model and subnets of it together.  It knows one decoder
 * layer (layer, which calls the blocks of lib/block), the way through all of them (sweep with
 * lm_head, keep and merge), and adapters.  What is done with a gradient is the visitor's business,
 * in lib/learn.  In reading order: layer.h, layer.c; then this header, sweeping.h (what the parts
 * of the sweep share), sweep.c, share.c (micro-batches of each rank), lm_head.c, actcache,
 * reduction, merge.c, adapter.
 *
 * The one sweep: micro-batches go through the model one layer at a time, forward,
 * then backward with recomputation from the stored layer boundaries.  Each layer's
 * weights are read once per direction whatever the number of micro-batches.
 *
 * Several networks ride in one sweep, as lanes over the same weights: the full
 * model (the teacher), subnets of it (students: a width per expert), a subnet with
 * an adapter.  Rank, train, walk, recover and quality are visitors of this sweep;
 * they see each expert's rows on the way back and know nothing about layers.
 *
 * Memory: two layers of weights, one boundary (N, H) per lane and micro-batch, and
 * for lanes with a gradient one per layer; the last go to an unlinked temporary file
 * beyond `memory`.  For every adapter among the lanes, its merged copy of one layer's experts.
 * What the boundaries leave of `memory` keeps inner values of the last layers, which the backward
 * then need not compute again, unless a lane has an adapter.
 *
 * Same bytes for any thread count and memory: what goes through a layer together depends
 * on the shapes of the micro-batches alone, visitors are committed in order of micro-batch.
 * Callers therefore cut their data into sweeps by sizes, never by memory or threads.
 *
 * Ranks (lib/comm/comm.h) call fm_sweep_run with the same micro-batches.  Those that go through a
 * layer together are a leaf, and stay together: a rank computes some leaves and nothing else, and
 * a rank without any reads no weights.  All get all measures and counts; what visitors sum goes
 * through lib/engine/reduction.h.
 */
#ifndef FM_SWEEP_H
#define FM_SWEEP_H

#include <stdatomic.h>

#include "lib/engine/adapter.h"
#include "lib/model/model.h"
#include "lib/comm/comm.h"

#define FM_LANES_MAX 128

/* Micro-batches go through a layer together up to this many tokens: with top-2 of 8 experts that
 * is 512 rows an expert, where products reach their full speed. */
#define FM_SWEEP_BLOCK_TOKENS 2048

/* S sequences of T tokens; each predicts its own next tokens from position `from` on, T - 1 - from
 * of them.  ids are borrowed. */
struct fm_batch {
    const int32_t *ids; /* (S, T) */
    int S, T;
    int from; /* 0 where a lane has `backward` */
};

/* One network in the sweep. */
struct fm_lane {
    const uint32_t *widths; /* (M, E), NULL: every channel the model has */
    const struct fm_adapter
        *adapter;        /* NULL: none; merged into the weights on the fly, in float32 */
    bool round;          /* merged weights rounded to the stored dtype */
    const float *closed; /* (M, E) 0, or FM_PASS_CLOSED for experts that no token gets,
                            as if router and layer had none of them; NULL: all are
                            open */
    bool backward;       /* gradients wanted */
    int teacher;         /* lane whose logits the KL compares with, a lower index than
                            this lane's; -1: none, or the sweep's options.teacher */
    float ce, kl;        /* loss = ce * CE + kl * KL, means over the micro-batch */
};

/* What the LM head measured for one lane on one micro-batch; sums over its positions. */
struct fm_measure {
    double ce, kl; /* sums; divide by n */
    int64_t agree; /* positions whose most probable token is the teacher's */
    int64_t n;     /* positions, S (T - 1 - from) */
};

/* A few positions of a micro-batch as the LM head has them for one lane; pointers die with the
 * call. */
struct fm_head_rows {
    int batch, lane;       /* lane -1: the one of options.teacher */
    int first, n;          /* rows of the micro-batch, numbered sequence by sequence */
    const int32_t *target; /* (n) the next token; -1: this position is not measured */
    const float *logits;   /* (n, V) */
    const double *ce;      /* (n) */
    double *kl;            /* (n) from the teacher; what is written here is added up instead */
};

/* One expert of one lane and micro-batch on the way back, or forward; pointers die with the call.
 */
struct fm_expert_view {
    int layer; /* the m-th of those that have experts */
    int expert, lane, batch;
    int slot;                   /* in [0, fm_sweep_slots): private scratch of this (batch, lane) */
    int n;                      /* rows routed here, > 0 */
    int parts;                  /* of a visitor with `spans`: micro-batches from `batch` on, whose
                                   rows these are; others: 0 */
    const int32_t *first;       /* (parts + 1): where their rows begin, less first[0] */
    const int32_t *rows;        /* (n) token index among the micro-batches that go through the layer
                                   together, ascending */
    int width, cap;             /* channels the lane uses, channels in memory */
    int full;                   /* channels of h and dh: cap; width on the way forward, and where a
                                   visitor with `narrow` sees bfloat16 products */
    struct fm_in gate_up, down; /* (2 cap, H), (cap, H): with the adapter merged, if any */
    const float *gate_up_bias;  /* (2 cap); NULL: the experts have none */
    struct fm_in x;             /* (n, H) input of the expert */
    struct fm_in h;             /* (n, full) what down is applied to */
    struct fm_in dy;            /* (n, H) gradient at the expert's output, router weight in it */
    const float *dh;            /* (n, full) dy down^T: gradient at the masked h */
    struct fm_in dgu;           /* (n, 2 width) gradient at gate and up of the kept channels */
    /* On the way forward there are no gradients, h is `width` wide, and there are: */
    const float *y;      /* (n, H) output of the expert */
    const float *weight; /* (n) the router's weight of each row */
};

struct fm_visitor {
    void *self;
    /* The visitor is called on the way forward instead, with every lane; no lane has `backward`. */
    bool forward;
    /* Of several micro-batches that go back together `expert` sees all rows at once, and puts what
     * it keeps of them into the slot of the first. */
    bool spans;
    /* `expert` reads no channels behind the lane's width.  Products in bfloat16 then end there; in
     * float32 they do not, where sums have other last bits in a product of another width. */
    bool narrow;
    /*
     * All losses of the sweep are known: measure is (batches, lanes).  May set
     * scale (lanes), 1 before, which multiplies that lane's gradient.  NULL: not wanted.
     */
    void (*losses)(void *self, const struct fm_measure *measure, float *scale);
    /* The sweep comes to the m-th layer of experts; the last call before these. */
    int (*layer_begin)(void *self, int m, struct fm_err *err);
    /* Called by many threads at once for different experts, batches and lanes; heavy work here.
     * Writes only to what belongs to (view->slot, view->expert). */
    void (*expert)(void *self, const struct fm_expert_view *view);
    /* After all experts of (m, batch, lane), one call at a time, in order of batch then lane:
     * add the slot to the total and clear the slot. */
    void (*commit)(void *self, int m, int batch, int lane, int slot);
    int (*layer_end)(void *self, int m, struct fm_err *err);
    /* All layers have been gone back through.  Of ranks, all call layer_begin, layer_end and this,
     * and only those with a leaf the others; so reductions end here or in layer_end. */
    int (*end)(void *self, struct fm_err *err);
};

/* Sequences in one micro-batch when `batch` are in a step: the largest divisor of batch that keeps
 * a micro-batch within 1024 tokens, else 1.  Depends on nothing else, since it shapes the bytes. */
int fm_sweep_micro(int batch, int T);

struct fm_sweep;

struct fm_sweep_options {
    uint64_t memory;                                   /* bytes for boundaries, then inner values */
    void (*progress)(void *self, int done, int total); /* one unit per (layer, direction) */
    void *progress_self;
    const atomic_int *stop; /* not NULL: nonzero ends with FM_ESAVED, within a layer too: between
                               experts, tiles of a product, heads, tensors that are read */
    struct fm_comm *comm;   /* NULL: alone */
    int cut;                /* not 0: no leaf goes across a multiple of so many micro-batches */
    /* NULL, or called for every lane without a gradient of every row, and before them for
     * options.teacher, by many threads at once for different rows; for one row in order of lanes.
     */
    void (*rows)(void *self, const struct fm_head_rows *rows);
    void *rows_self;
    /* NULL, or a sweep of another model with as large a vocabulary, made for the same
     * micro-batches, whose last run had these and one lane, without a gradient. Lanes without a
     * teacher are compared with that lane. */
    const struct fm_sweep *teacher;
};

/* Buffers for up to `batches` micro-batches of up to `rows` tokens and T positions, `lanes` lanes.
 * Borrows model and ops; ops convert the model's weights from then on (fm_model_use). */
int fm_sweep_new(struct fm_sweep **sweep, struct fm_model *model, const struct fm_ops *ops,
                 int batches, int rows, int T, int lanes, const struct fm_sweep_options *options,
                 struct fm_err *err);
void fm_sweep_free(struct fm_sweep *sweep);

/* Slots that visitors need scratch for: constant over the life of the sweep.  And those of visitors
 * on the way forward: one for every micro-batch and lane. */
int fm_sweep_slots(const struct fm_sweep *sweep);
int fm_sweep_slots_forward(const struct fm_sweep *sweep);

/* For reductions: its communicator; micro-batches of a rank in the run at hand; the most that one
 * may have in any run, where all have one shape. */
struct fm_comm *fm_sweep_comm(const struct fm_sweep *sweep);
int fm_sweep_own(const struct fm_sweep *sweep, int rank);
int fm_sweep_own_most(const struct fm_sweep *sweep);

/* Leaves of a run of so many micro-batches of so many tokens. */
int fm_sweep_leaves(int batches, int rows, int cut);

/*
 * Run.  measure (batches, lanes) is filled.  counts (lanes, M, E), where not NULL, receives the
 * token slots routed to each expert, summed over batches.  Without a lane that has `backward`
 * only the forward runs.  visitor may be NULL.
 * FM_EFORMAT where an activation or loss is not finite: the sentence names layer and lane.
 * Ranks end with the same code.
 */
int fm_sweep_run(struct fm_sweep *sweep, const struct fm_batch *batch, int batches,
                 const struct fm_lane *lane, int lanes, const struct fm_visitor *visitor,
                 struct fm_measure *measure, int64_t *counts, struct fm_err *err);

/* For tests and tools that need them: per-token log-probabilities of the next token, one lane,
 * logprob (S, T-1) of batch 0, and/or logits (S, T, V), and dx at every boundary
 * ((L + 1), N, H) of a lane with backward.  Any pointer may be NULL. */
struct fm_sweep_taps {
    int lane;
    float *logprob;
    float *logits;
    float *dx;
};
void fm_sweep_tap(struct fm_sweep *sweep, const struct fm_sweep_taps *taps);

#endif
