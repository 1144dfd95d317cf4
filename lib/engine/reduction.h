/*
 * Sums over the micro-batches of a sweep: the one place where such a sum is made.
 *
 * The rule.  A sum begins at what its memory holds and takes the micro-batches' contributions one
 * after another, left to right, each multiplied by `share`: total = (((start + share c0) + share
 * c1) + ...), value by value, in the order in which the sweep commits them (by micro-batch, then by
 * lane).  That order is the same for any number of threads and of ranks, and so is every byte.
 *
 * One process adds a contribution as it is committed.  Ranks keep theirs until fm_reduction_end,
 * where each gets from all others what these have for its slice of the values (fm_comm_slice), and
 * adds it up; then the owner alone has the sum of its slice, and fm_reduction_whole gives it to
 * all.
 *
 *     fm_reduction_init(&f, sweep, ops, FM_F64, sums, values, lanes, err);
 *     for every sweep, or every layer of it:
 *         fm_reduction_begin(&f, share);       and zero or fill f.sum
 *         fm_reduction_layer(&f);              the visitor's layer_begin
 *         fm_reduction_add(&f, slot, at, n);   its commit
 *         fm_reduction_end(&f, n, err);        its layer_end, or its end: all ranks together
 *
 * Whoever adds a visitor that sums over micro-batches goes through here, whatever adds up measures
 * of micro-batches may do so on its own: fm_sweep_run gives every rank those of all.
 */
#ifndef FM_REDUCTION_H
#define FM_REDUCTION_H

#include "kernels/ops/kernels.h"
#include "lib/engine/sweep.h"

struct fm_reduction {
    /* (sums, values); between ranks, after the end, the own slice of each sum
     * is the total, and the rest is what it was. */
    void *sum;
    /* Private. */
    const struct fm_sweep *sweep;
    const struct fm_ops *ops;
    enum fm_dtype dtype;
    int sums, lanes;
    size_t values;
    double share;
    int turn;                         /* of the next contribution */
    char *kept;                       /* (contributions of this rank, values) */
    char *out, *in;                   /* a message each */
    struct fm_wire_part *send, *recv; /* (ranks) */
};

/*
 * `sums` sums of at most `values` values of F32 or F64 each.  `lanes` go back in the sweep; the
 * i-th contribution of a layer belongs to sum i mod `sums`, so that there are as many sums as
 * lanes, or one.  Borrows sweep and ops.  FM_ENOMEM.
 */
int fm_reduction_init(struct fm_reduction *f, const struct fm_sweep *sweep,
                      const struct fm_ops *ops, enum fm_dtype dtype, int sums, size_t values,
                      int lanes, struct fm_err *err);
void fm_reduction_release(struct fm_reduction *f); /* zeroed struct is fine */

/* New contributions follow. */
void fm_reduction_begin(struct fm_reduction *f, double share);

/* A layer begins: the next contribution is the first micro-batch's. */
void fm_reduction_layer(struct fm_reduction *f);

/* The next contribution to values [at, at + n) of its sum; slot (n) is zero then. */
void fm_reduction_add(struct fm_reduction *f, void *slot, size_t at, size_t n);

/* The first n values of all sums are complete, each at its owner.  All ranks call it. */
int fm_reduction_end(struct fm_reduction *f, size_t n, struct fm_err *err);

/* After it: they are everyone's.  All ranks call it. */
int fm_reduction_whole(struct fm_reduction *f, size_t n, struct fm_err *err);

#endif
