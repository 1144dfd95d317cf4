/*
 * The rows of the experts of one layer: inner activations of the full model, each multiplied by the
 * router's weight, for methods that need all rows of an expert at once (lib/methods/down.c).  A
 * visitor of a forward sweep adds them, micro-batch by micro-batch; then each expert's rows are
 * taken in order of micro-batch, in chunks whose sizes depend only on the number of rows.
 *
 * One record of a store has the rows of a micro-batch, in any order of experts, so rows that exceed
 * `memory` go to a temporary file.
 *
 * Ranks: each stores the rows of its own micro-batches.  Of the experts [first, first + ranks) the
 * r-th belongs to rank r, which receives all rows of it.  A reduction (lib/engine/reduction.h)
 * would send the second moments of every micro-batch instead, I / rows times as much.
 */
#ifndef FM_ROWS_H
#define FM_ROWS_H

#include "lib/engine/sweep.h"
#include "lib/state/store.h"

#define FM_ROWS_CHUNK 512

struct fm_rows {
    /* Private. */
    const struct fm_sweep *sweep;
    int E, batches;        /* experts; micro-batches of this rank, at most */
    size_t I, piece;       /* channels; rows of a message */
    struct fm_store store; /* one record for each micro-batch: (rows, I) */
    struct fm_rows_place {
        size_t at;
        int n;
    } * place;           /* (batches, E) rows in the record of a micro-batch */
    atomic_size_t *used; /* (batches) */
    atomic_int failed;   /* the code of the first error; its text is in `err` */
    struct fm_err err;
    int64_t *own, *all; /* (E), (ranks, E): rows of an expert */
    float *chunk;       /* (FM_ROWS_CHUNK, I) */
    int filled;
    float *out, *in;                  /* (ranks, piece, I), (piece, I) */
    struct fm_wire_part *send, *recv; /* (ranks) */
};

/* Bytes of a record, and the number of records, for a sweep of `batches` micro-batches of T tokens;
 * and what is needed in addition. */
uint64_t fm_rows_record(const struct fm_config *config, int T);
int fm_rows_records(struct fm_comm *comm, int batches, int T, int cut);
uint64_t fm_rows_beside(const struct fm_config *config, struct fm_comm *comm);

/* At most `memory` bytes of the records are in memory.  Borrows sweep and ops. */
int fm_rows_init(struct fm_rows *r, const struct fm_sweep *sweep, const struct fm_ops *ops,
                 const struct fm_config *config, int T, uint64_t memory, struct fm_err *err);
void fm_rows_release(struct fm_rows *r); /* a zeroed struct is fine */

/* Start a layer. */
void fm_rows_begin(struct fm_rows *r);
/* Add the rows of a view of the forward; threads may add different views at once. */
void fm_rows_add(struct fm_rows *r, const struct fm_expert_view *view);
/* All are added.  FM_EIO if one was not written.  All ranks must call it. */
int fm_rows_end(struct fm_rows *r, struct fm_err *err);

/* After that: rows of an expert, of all ranks. */
int64_t fm_rows_count(const struct fm_rows *r, int expert);

/*
 * Call `take` with the rows (n, I) of expert first + this rank, if there is such an expert, chunk
 * by chunk.  All ranks must call it.
 */
typedef void fm_rows_taker(void *self, const float *rows, int n);
int fm_rows_send(struct fm_rows *r, int first, fm_rows_taker *take, void *self, struct fm_err *err);

#endif
