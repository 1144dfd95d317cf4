/*
 * Sums over the micro-batches of a sweep.  All such sums are computed here.
 *
 * The rule.  A sum starts with the value in its memory.  The contributions of the micro-batches,
 * each multiplied by `share`, are added one after another in the order in which the sweep commits
 * them (by micro-batch, then by lane): total = (((start + share c0) + share c1) + ...) for every
 * value.  That order is the same for any number of threads and of ranks, and so is every byte.
 *
 * A single process adds a contribution as it is committed.  Ranks keep theirs until
 * fm_reduction_end, where each receives the contributions of all others to its slice of the values
 * (fm_comm_slice), and adds them.  Then only the owner has the sum of its slice; fm_reduction_whole
 * distributes it to all.
 *
 *     fm_reduction_init(&f, sweep, ops, FM_F64, sums, values, lanes, err);
 *     for every sweep, or every layer of it:
 *         fm_reduction_begin(&f, share);       and zero or fill f.sum
 *         fm_reduction_layer(&f);              the visitor's layer_begin
 *         fm_reduction_add(&f, slot, at, n);   its commit
 *         fm_reduction_end(&f, n, err);        its layer_end, or its end: all ranks together
 *
 * Every visitor that sums over micro-batches must use this.  Code that adds up measures of
 * micro-batches need not: fm_sweep_run gives every rank the measures of all.
 */
#ifndef FM_REDUCTION_H
#define FM_REDUCTION_H

#include "kernels/ops/kernels.h"
#include "lib/engine/sweep.h"

struct fm_reduction {
    /* (sums, values); with several ranks, after the end only this rank's slice of each sum is the
     * total, and the rest is unchanged. */
    void *sum;
    /* Private. */
    const struct fm_sweep *sweep;
    const struct fm_ops *ops;
    enum fm_dtype dtype;
    int sums, lanes;
    size_t values;
    double share;
    int turn;                         /* index of the next contribution */
    char *kept;                       /* (contributions of this rank, values) */
    char *out, *in;                   /* one message each */
    struct fm_wire_part *send, *recv; /* (ranks) */
};

/*
 * `sums` sums of at most `values` values of F32 or F64 each.  `lanes` lanes of the sweep have
 * gradients; the i-th contribution of a layer belongs to sum i mod `sums`, so there is one sum, or
 * one for each lane.  Borrows sweep and ops.  FM_ENOMEM.
 */
int fm_reduction_init(struct fm_reduction *f, const struct fm_sweep *sweep,
                      const struct fm_ops *ops, enum fm_dtype dtype, int sums, size_t values,
                      int lanes, struct fm_err *err);
void fm_reduction_release(struct fm_reduction *f); /* zeroed struct is fine */

/* Start a sweep or a layer whose contributions are multiplied by `share`.  Sums keep their values.
 */
void fm_reduction_begin(struct fm_reduction *f, double share);

/* Start a layer: the next contribution is from the first micro-batch. */
void fm_reduction_layer(struct fm_reduction *f);

/* Add the next contribution to values [at, at + n) of its sum, and set slot (n) to zero. */
void fm_reduction_add(struct fm_reduction *f, void *slot, size_t at, size_t n);

/* Complete the first n values of all sums, each on its owner.  All ranks must call it. */
int fm_reduction_end(struct fm_reduction *f, size_t n, struct fm_err *err);

/* After fm_reduction_end: distribute the sums to all ranks.  All ranks must call it. */
int fm_reduction_whole(struct fm_reduction *f, size_t n, struct fm_err *err);

#endif
