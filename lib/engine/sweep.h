/*
 * This room, lib/engine: forward and backward through a model that need not fit into memory, one
 * layer at a time, for the full model and subnets of it together.  It contains one decoder layer
 * (layer, which calls the blocks of lib/block), the loop over all layers (sweep with lm_head,
 * actcache and merge), and adapters.  Gradients are used by visitors, in lib/learn.  In reading
 * order: layer.h, layer.c; then this header, sweeping.h (what the parts of the sweep share),
 * sweep.c, share.c (micro-batches of each rank), lm_head.c, sweepwork.c (progress), actcache,
 * reduction, merge.c, adapter.
 *
 * A sweep: micro-batches go through the model one layer at a time, forward, then backward with
 * recomputation from the stored layer boundaries.  Each layer's weights are read once per direction
 * whatever the number of micro-batches.
 *
 * A sweep can compute several networks at once, as lanes over the same weights: the full model (the
 * teacher), subnets of it (students: a width per expert), and subnets with an adapter.  Rank,
 * train and recover are visitors of a sweep; they are called with each expert's rows, usually
 * in the backward, and do not depend on how layers are computed.  Quality uses only losses and
 * logits.
 *
 * Memory: the weights that the model keeps resident (lib/model/model.h), one boundary (N, H) per
 * lane and micro-batch, and for lanes with a gradient one per layer; boundaries that exceed
 * `memory` go to an unlinked temporary file.  For every adapter among the lanes, a merged copy of
 * one layer's experts.  Unless a lane has an adapter of experts, the rest of `memory` holds inner
 * values of the last layers, which the backward then need not compute again.
 *
 * Results are byte-identical for any number of threads and any memory limit: which micro-batches go
 * through a layer together depends only on their shapes, and visitors are committed in order of
 * micro-batch.  Callers therefore cut their data into sweeps by sizes, never by memory or threads.
 *
 * Ranks (lib/comm/comm.h) call fm_sweep_run with the same micro-batches.  Those that go through a
 * layer together are a leaf, and stay together: a rank computes only whole leaves, and a rank
 * without a leaf reads no weights.  All ranks get all measures and counts; visitors sum with
 * lib/engine/reduction.h.
 */
#ifndef FM_SWEEP_H
#define FM_SWEEP_H

#include <stdatomic.h>

#include "lib/engine/adapter.h"
#include "lib/model/model.h"
#include "lib/comm/comm.h"

#define FM_LANES_MAX 128

/* At most this many tokens go through a layer together, unless a single micro-batch has more: with
 * top-2 of 8 experts that is 512 rows per expert, enough for products to reach their full speed. */
#define FM_SWEEP_BLOCK_TOKENS 2048

/* Scratch of one task of the LM head for micro-batches of `rows` tokens in `lanes` lanes, and the
 * number of such tasks per micro-batch. */
uint64_t fm_sweep_head_bytes(const struct fm_config *config, int rows, int lanes, int *tasks);

/* S sequences of T tokens; each predicts its own next tokens, T - 1 of them.  ids are borrowed. */
struct fm_batch {
    const int32_t *ids; /* (S, T) */
    int S, T;
};

/* One network in the sweep. */
struct fm_lane {
    const uint32_t *widths; /* (M, E); NULL: all channels of the model */
    const struct fm_adapter
        *adapter;        /* NULL: none; merged into a copy of the weights, in float32 */
    bool round;          /* merged weights are rounded to the stored dtype */
    const float *closed; /* (M, E) 0, or FM_PASS_CLOSED for experts that get no tokens, as if router
                            and layer did not have them; NULL: all are open */
    bool backward;       /* compute gradients */
    int teacher; /* lane whose logits the KL compares with, with a lower index than this lane's; -1:
                    the sweep's options.teacher, if any */
    float ce, kl; /* loss = ce * CE + kl * KL, means over the micro-batch */
};

/* Measures of one lane on one micro-batch; sums over its positions. */
struct fm_measure {
    double ce, kl; /* sums; divide by n */
    int64_t agree; /* positions whose most probable token is the teacher's */
    int64_t n;     /* positions, S (T - 1) */
};

/* Some positions of a micro-batch in the LM head, for one lane; pointers are valid only during the
 * call. */
struct fm_head_rows {
    int batch, lane;       /* lane -1: that of options.teacher */
    int first, n;          /* rows of the micro-batch, numbered sequence by sequence */
    const int32_t *target; /* (n) the next token; -1: position not measured */
    const float *logits;   /* (n, V) */
    const double *ce;      /* (n) */
    const double *kl;      /* (n) relative to the teacher */
};

/* One expert of one lane and micro-batch in the backward or forward; pointers are valid only during
 * the call. */
struct fm_expert_view {
    int layer; /* the m-th layer with experts */
    int expert, lane, batch;
    int slot;  /* in [0, fm_sweep_slots), or in the forward [0, fm_sweep_slots_forward): private
                  scratch of this (batch, lane) */
    int n;     /* rows routed to the expert, > 0 */
    int parts; /* for a visitor with `spans`: number of micro-batches from `batch` on whose rows
                  these are; else 0 */
    const int32_t *first; /* (parts + 1): first row of each; subtract first[0] */
    const int32_t *rows;  /* (n) token index within the micro-batches that go through the layer
                             together, ascending */
    int width, cap;       /* channels the lane uses, channels in memory */
    int full; /* channels of h and dh: cap; width in the forward and for a visitor with `narrow` */
    struct fm_in gate_up, down; /* (2 cap, H), (cap, H): with the adapter merged, if any */
    const float *gate_up_bias;  /* (2 cap); NULL if experts have no bias */
    struct fm_in x;             /* (n, H) input of the expert */
    struct fm_in h;             /* (n, full) input of down */
    struct fm_in dy;  /* (n, H) gradient at the expert's output, times the router weight */
    const float *dh;  /* (n, full) dy down^T: gradient at the masked h */
    struct fm_in dgu; /* (n, 2 width) gradient at gate and up of the kept channels */
    /* In the forward there are no gradients, h is `width` wide, and these are set: */
    const float *y;      /* (n, H) output of the expert */
    const float *weight; /* (n) the router's weight of each row */
};

/* The router of one lane and micro-batch in the backward; pointers are valid only during the call.
 * The gradient of its weights (E, H) is dlogits^T x, and that of its bias (E) is the sum of
 * dlogits. */
struct fm_router_view {
    int slot;             /* as in struct fm_expert_view */
    int n;                /* tokens of the micro-batch */
    const float *x;       /* (n, H) input of the router */
    const float *dlogits; /* (n, E) gradient at its logits; the choice is constant */
};

struct fm_visitor {
    void *self;
    /* Call the visitor in the forward instead, for every lane; no lane has `backward`. */
    bool forward;
    /* If several micro-batches go through the backward together, `expert` gets all their rows at
     * once and puts its results into the slot of the first. */
    bool spans;
    /* `expert` reads no channels at or after the lane's width: products end there. */
    bool narrow;
    /*
     * Called when all losses of the sweep are known: measure is (batches, lanes).  May set scale
     * (lanes), initially 1, which multiplies that lane's gradient.  May be NULL.
     */
    void (*losses)(void *self, const struct fm_measure *measure, float *scale);
    /* Called when the sweep comes to the m-th layer with experts, before the calls below. */
    int (*layer_begin)(void *self, int m, struct fm_err *err);
    /* Called by many threads at once for different experts, batches and lanes; the expensive work
     * belongs here.  May write only what belongs to (view->slot, view->expert). */
    void (*expert)(void *self, const struct fm_expert_view *view);
    /* The same for the routers, in the backward only.  Then the gradient at the input of the lowest
     * layer with experts is computed, too.  May be NULL, as may `expert`. */
    void (*router)(void *self, const struct fm_router_view *view);
    /* After all experts of (m, batch, lane), one call at a time, in order of batch then lane:
     * add the slot to the total and clear the slot. */
    void (*commit)(void *self, int m, int batch, int lane, int slot);
    int (*layer_end)(void *self, int m, struct fm_err *err);
    /* Called after the backward of all layers.  All ranks call losses, layer_begin, layer_end and
     * this; only ranks with a leaf call the others.  So reductions end here or in layer_end. */
    int (*end)(void *self, struct fm_err *err);
};

/* Sequences of one micro-batch for steps of `batch` sequences: the largest divisor of batch that
 * keeps a micro-batch within 1024 tokens, else 1.  It depends on nothing else, because it affects
 * the bytes of results. */
int fm_sweep_micro(int batch, int T);

struct fm_sweep;

/*
 * For a sweep through a layer for multi-token prediction (lib/family/extra.h) only, of a model of
 * fm_model_open_draft.  Its micro-batches are those of the last run of `decoder`, without the first
 * token of each sequence: row t is made of token t + 1 and the decoder's output for token t, and
 * predicts token t + 2.
 */
struct fm_sweep_draft {
    const struct fm_sweep *decoder; /* with options.keep_last, one lane, and the same `batches`,
                                       `rows` and `cut` as this sweep */
    const struct fm_model_joint *joint;
};

struct fm_sweep_options {
    uint64_t memory; /* bytes for boundaries, then inner values */
    /* Called by any thread, one at a time, when a task is done: `share` of the run's operations. */
    void (*progress)(void *self, double share);
    void *progress_self;
    const atomic_int
        *stop; /* if not NULL, a nonzero value ends the run with FM_ESAVED, even within a layer:
                  between experts, tiles of a product, heads, or tensors that are read */
    struct fm_comm *comm; /* NULL: a single process */
    int cut;              /* if nonzero, leaves do not cross multiples of this many micro-batches */
    /* If not NULL, called for every row of every lane without a gradient, and before that for the
     * row of options.teacher; by many threads at once for different rows, for one row in order of
     * lanes.
     */
    void (*rows)(void *self, const struct fm_head_rows *rows);
    void *rows_self;
    /* NULL, or a sweep of another model with the same vocabulary size, made for the same
     * micro-batches, whose last run had the same micro-batches and one lane, without a gradient.
     * Lanes without a teacher are compared with that lane. */
    const struct fm_sweep *teacher;
    bool keep_last; /* keep the last boundary after the run, for fm_sweep_draft */
    const struct fm_sweep_draft *draft; /* NULL: a sweep through all layers */
};

/* Buffers for up to `batches` micro-batches of up to `rows` tokens and T positions, `lanes` lanes.
 * Borrows model and ops; ops convert the model's weights from then on (fm_model_use). */
int fm_sweep_new(struct fm_sweep **sweep, struct fm_model *model, const struct fm_ops *ops,
                 int batches, int rows, int T, int lanes, const struct fm_sweep_options *options,
                 struct fm_err *err);
void fm_sweep_free(struct fm_sweep *sweep);

/* Slots for which visitors need scratch: constant for the life of the sweep; and the same for
 * visitors in the forward: one for every micro-batch and lane. */
int fm_sweep_slots(const struct fm_sweep *sweep);
int fm_sweep_slots_forward(const struct fm_sweep *sweep);
/* The first of these, for a sweep that does not exist yet. */
int fm_sweep_turns(int batches, int rows, int cut, int lanes);

/* Scratch of all threads in a sweep with these arguments. */
uint64_t fm_sweep_scratch_bytes(const struct fm_config *config, int batches, int rows, int cut,
                                int lanes);

/* For reductions: the sweep's communicator; the micro-batches of a rank in the current run; the
 * most that a rank may have in any run whose micro-batches have one shape. */
struct fm_comm *fm_sweep_comm(const struct fm_sweep *sweep);
int fm_sweep_own(const struct fm_sweep *sweep, int rank);
int fm_sweep_own_most(const struct fm_sweep *sweep);

/* For a run of `batches` micro-batches of `rows` tokens, with the option `cut`: the most that go
 * through a layer together, and the number of leaves. */
int fm_sweep_together(int batches, int rows, int cut);
int fm_sweep_leaves(int batches, int rows, int cut);

/*
 * Run. measure (batches, lanes) is filled. counts (lanes, M, E), if not NULL, receives the number
 * of token slots routed to each expert, summed over batches.  Without a lane that has `backward`
 * only the forward runs. visitor may be NULL.  FM_EFORMAT, naming the lane, if an activation, a
 * loss or a gradient is not finite.  All ranks return the same code.
 */
int fm_sweep_run(struct fm_sweep *sweep, const struct fm_batch *batch, int batches,
                 const struct fm_lane *lane, int lanes, const struct fm_visitor *visitor,
                 struct fm_measure *measure, int64_t *counts, struct fm_err *err);

/* For tests and tools that need them: for one lane of batch 0, the log-probabilities of the next
 * tokens, logprob (S, T-1), and logits (S, T, V); and dx at every boundary ((L + 1), N, H) of a
 * lane with backward.  Any pointer may be NULL. */
struct fm_sweep_taps {
    int lane;
    float *logprob;
    float *logits;
    float *dx;
};
void fm_sweep_tap(struct fm_sweep *sweep, const struct fm_sweep_taps *taps);

#endif
