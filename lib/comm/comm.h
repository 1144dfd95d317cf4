/*
 * This room, lib/comm: many processes that make one result.  It knows bytes and errors, and not
 * what is computed.  In reading order: this header, wire.h (what an implementation provides),
 * comm.c, wire_alone.c (a build without MPI), wire_mpi.c.
 *
 * Ranks: processes, on as many machines as there are, that make one result together.  Every rank
 * runs the same program on the same inputs and goes the same way through it; what differs is which
 * micro-batches of a sweep it computes (lib/engine/sweep.h) and of which values it keeps the sum
 * (lib/engine/reduction.h).  Rank 0 alone reads standard input, writes files and speaks.
 *
 * The rules that keep results the same bytes for any number of ranks:
 *   - nothing is ever summed under way: what one rank sends, another one gets;
 *   - a sum over micro-batches is made by lib/engine/reduction.h, a sum of anything else on every
 * rank, from the same numbers in the same order;
 *   - what is not sent is computed on every rank, from what all have: draws, masks, logits.
 *
 * And the rule that keeps ranks in step: every call below that takes an error is made by all ranks,
 * in the same order, and begins with an agreement.  A rank that failed elsewhere calls
 * fm_comm_agree with its error in place of the next call that it would have made, whichever that
 * was; so all leave with that error.  FM_ESAVED is agreed in the same way, and does not end the
 * run: ranks may talk on, to save.
 *
 * A communicator of NULL is that of a process that is alone: every call does nothing, and gives
 * back the error it was given.  Calls come from the thread that opened the communicator.
 */
#ifndef FM_COMM_H
#define FM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/comm/wire.h"

struct fm_comm;

/*
 * Begin.  *comm is NULL where the process is alone: this build has no wire (NULL), `alone` is
 * wanted, or the launcher started one process.  FM_EUSAGE where the launcher's environment says
 * that this process is one of many and the wire that it is alone, which would write one output as
 * often; `alone` says that this is meant.  *warning (may be NULL) is a sentence where only a hint
 * says so.
 */
int fm_comm_open(struct fm_comm **comm, const struct fm_wire *wire, bool alone,
                 const char **warning, struct fm_err *err);

/*
 * End, at the end of the process: all ranks end with the same code and sentence, which are those of
 * the lowest rank that failed.  NULL is fine.
 */
int fm_comm_close(struct fm_comm *comm, int code, struct fm_err *err);

int fm_comm_rank(const struct fm_comm *comm); /* 0 */
int fm_comm_size(const struct fm_comm *comm); /* 1 */
/* Name of the machine of a rank; and how many ranks are on this one, of which this is the *nth. */
const char *fm_comm_host(const struct fm_comm *comm, int rank);
int fm_comm_beside(const struct fm_comm *comm, int *nth);

/* What this rank did so far; a struct of nobody's where alone. */
struct fm_tally {
    uint64_t leaves;                    /* blocks of micro-batches taken through the model */
    double computing, waiting, reading; /* seconds: in sweeps; for other ranks; for weights */
};
struct fm_tally *fm_comm_tally(struct fm_comm *comm);
/* Every rank has every rank's from now on, (size); NULL before, and where alone. */
int fm_comm_share_tallies(struct fm_comm *comm, struct fm_err *err);
const struct fm_tally *fm_comm_tallies(const struct fm_comm *comm);

/* The pieces [*first, *first + *count) of n that are a rank's: as even as can be, in order of rank;
 * rank 0 has one before any other has. */
void fm_comm_share(const struct fm_comm *comm, int rank, int n, int *first, int *count);
/* The same of an array of n values of which ranks own slices: at whole vectors. */
void fm_comm_slice(const struct fm_comm *comm, int rank, size_t n, size_t *first, size_t *count);

/* FM_OK where rc is that on all ranks.  Else the error of the lowest rank that has one, or
 * FM_ESAVED where that is all that any has.  An error that all know already is not told again, so
 * that every level of a program may settle what it returns. */
int fm_comm_agree(struct fm_comm *comm, int rc, struct fm_err *err);

/* The smallest of all ranks' values: where machines differ, and all must do the same. */
int fm_comm_least(struct fm_comm *comm, int *value, struct fm_err *err);

/* data becomes rank 0's. */
int fm_comm_tell(struct fm_comm *comm, void *data, size_t bytes, struct fm_err *err);

/* all (size of them) becomes what each rank has at mine; where alone, mine. */
int fm_comm_collect(struct fm_comm *comm, void *all, const void *mine, size_t bytes,
                    struct fm_err *err);

/* Each rank's own slice of data, n values of so many bytes, becomes rank 0's, or everyone's. */
int fm_comm_gather(struct fm_comm *comm, void *data, size_t value, size_t n, struct fm_err *err);
int fm_comm_spread(struct fm_comm *comm, void *data, size_t value, size_t n, struct fm_err *err);

/* Part r of send (size) goes to rank r; not where alone. */
int fm_comm_exchange(struct fm_comm *comm, const struct fm_wire_part *send,
                     const struct fm_wire_part *recv, struct fm_err *err);

/* Something that must be the same on all ranks, for people: "the version", "0.1.0".  Of a value of
 * several words the one that differs is named with the one before: "batch 8 steps 3". */
struct fm_comm_fact {
    const char *what, *value;
};
#define FM_COMM_FACTS_MAX 16

/* FM_ECONFIG that names the first rank that differs from rank 0, its machine and in what; the first
 * 511 bytes of a value are compared. */
int fm_comm_same(struct fm_comm *comm, const struct fm_comm_fact *fact, int facts,
                 struct fm_err *err);

#endif
