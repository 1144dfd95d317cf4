/*
 * Structures shared by the parts of the sweep; private to lib/engine/sweep.c, lib/engine/share.c,
 * lib/engine/actcache.c, lib/engine/lm_head.c and lib/engine/merge.c.
 *
 * A block is a few consecutive micro-batches of one shape that go through a layer together, because
 * products with more rows run faster.  The number of micro-batches in a block depends only on
 * sizes.
 */
#ifndef FM_SWEEPING_H
#define FM_SWEEPING_H

#include <pthread.h>

#include "lib/engine/sweep.h"
#include "lib/state/store.h"

/*
 * Inner values of layers, kept from the forward to the backward if memory is left, so that they
 * need not be computed again.  There is one record, always of the same size, for each combination
 * of a block of micro-batches, a lane with a gradient and a layer.  If not all fit, the last layers
 * get them, because the backward starts with these.
 */
struct fm_actcache {
    size_t record; /* bytes of a record, a multiple of FM_ALIGN */
    size_t count;  /* records that this run may use */
    size_t held;   /* records that fit into block */
    char *block;
    int32_t *first; /* (held, E P + 1), P micro-batches in a block: first row of each expert and
                       micro-batch */
    size_t firsts;  /* entries per record */
};

struct fm_block {
    int first, count; /* micro-batches [first, first + count) */
};

/* A layer whose experts or router have an adapter merged in, shared by all lanes with that adapter
 * and rounding. */
struct fm_merged {
    const struct fm_adapter *adapter;
    bool round;
    float *gate_up, *down;
    float *router; /* (E, H), and (E) the bias of its logits, if it has one */
    struct fm_layer layer;
};

struct fm_sweep {
    struct fm_model *model;
    const struct fm_ops *ops;
    const struct fm_config *config;
    struct fm_sweep_options options;
    struct fm_sweep_taps taps;
    int batches, rows, T, lanes, slots;
    int first, end;   /* the layers it goes through: [first, end) */
    int together;     /* largest number of micro-batches in a block */
    float *cos, *sin; /* (T, angles) */
    struct fm_store store;
    struct fm_actcache cache;
    int *share;                 /* (ranks + 1): first micro-batch of each rank */
    struct fm_block *block;     /* (batches) */
    int *block_of;              /* (batches) */
    int64_t *routed;            /* (blocks, lanes, E) of one layer */
    struct fm_measure *partial; /* (batches, chunks, lanes) */
    float *scale;               /* (lanes) */
    bool *computed;             /* (batches, lanes with a gradient): computed, by turn */
    struct fm_merged *merged;   /* (lanes) */
    int merges;
};

/* One fm_sweep_run, shared by all its tasks. */
struct fm_sweeping {
    struct fm_sweep *sweep;
    const struct fm_batch *batch; /* this rank's micro-batches */
    int batches, blocks;          /* number of these, and of their blocks */
    int base;                     /* number of micro-batches of lower ranks */
    const struct fm_lane *lane;
    int lanes;
    const struct fm_visitor *visitor;
    const struct fm_nonlayer *nonlayer, *taught; /* of this model; of the model of options.teacher
                                                    or the decoder of options.draft */
    const struct fm_layer *layer;
    int l, m;            /* the current layer; its index among those with experts, or -1 */
    int lowest;          /* last layer of the backward: gradients below it are not needed */
    double work, worked; /* operations of this rank's tasks, and of those that are done */
    pthread_mutex_t watching;
    int chunks;                 /* chunks of the largest batch */
    int back[FM_LANES_MAX];     /* lanes with a gradient */
    int nth[FM_LANES_MAX];      /* index of a lane in back, or -1 */
    bool teaches[FM_LANES_MAX]; /* another lane names it as teacher */
    int backs;
    pthread_mutex_t lock;
    pthread_cond_t committed;
    int commits; /* turns [0, commits) of this layer are committed */
    bool committing;
    int failed; /* lowest task that failed, INT_MAX: none */
    struct fm_err err;
};

/* Rows of one task of the LM head: constant, so that results depend on nothing else. */
#define FM_HEAD_ROWS 128

/*
 * Cut r->batch into blocks, consecutive micro-batches of one shape, and keep only this rank's.  Its
 * micro-batches are then numbered from 0, except for the visitor.
 */
void fm_sweeping_share(struct fm_sweeping *r);

/* Give all ranks the measures (all micro-batches, lanes) of all ranks, and the sum of their counts
 * (may be NULL). */
int fm_sweeping_collect(struct fm_sweeping *r, struct fm_measure *measure, int64_t *counts,
                        struct fm_err *err);

/* Record the error of a task, keeping the error of the lowest task; afterwards, return it or
 * FM_OK. */
void fm_sweeping_fail(struct fm_sweeping *r, int task, const struct fm_err *err);
int fm_sweeping_settle(const struct fm_sweeping *r, struct fm_err *err);

/*
 * Record of boundary l (the input of layer l; `end` of the sweep: of the LM head) of a block and
 * lane, rows of its micro-batches one after another.  Lanes without a gradient need only the newest
 * boundary.  For the others, the gradient replaces boundary `end`, unless that is kept.
 */
size_t fm_sweeping_record(const struct fm_sweeping *r, int block, int lane, int l);
size_t fm_sweeping_gradient(const struct fm_sweeping *r, int block, int lane);

/*
 * Progress: set r->work, when the blocks and the activation cache are known; count a task, of a
 * block and lane in the current layer or of `rows` rows in the LM head.
 */
void fm_sweeping_plan(struct fm_sweeping *r);
void fm_sweeping_did_layer(struct fm_sweeping *r, int block, int lane, bool backward);
void fm_sweeping_did_head(struct fm_sweeping *r, int rows);

/* Allocate memory for inner values of this run, in the memory that the boundaries do not use; find
 * the record of a block and lane in the current layer (none if the values are not kept). */
void fm_actcache_prepare(struct fm_sweeping *r);
void fm_actcache_release(struct fm_actcache *cache); /* zeroed struct is fine */
void fm_actcache_find(const struct fm_sweeping *r, int block, int lane, struct fm_pass *pass);

/* Final norm, logits and losses of every batch and lane; gradients go to fm_sweeping_gradient. */
int fm_lm_head_run(struct fm_sweeping *r, struct fm_measure *measure, struct fm_err *err);

/* Allocate one merged copy for each adapter and rounding that the lanes name, to be reused by the
 * next run.  fm_merge_layer merges the weights of the resident layer, and fm_merge_find returns the
 * layer that a lane computes with. */
int fm_merge_prepare(struct fm_sweeping *r, struct fm_err *err);
void fm_merge_layer(struct fm_sweeping *r);
const struct fm_layer *fm_merge_find(const struct fm_sweeping *r, int lane);
void fm_merge_release(struct fm_sweep *s);

#endif
