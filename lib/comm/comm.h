/*
 * This room, lib/comm: communication between the processes of one run.  It handles bytes and
 * errors, and does not depend on what is computed.  In reading order: this header, wire.h (what an
 * implementation provides), comm.c, wire_alone.c (a build without MPI), wire_mpi.c.
 *
 * Ranks are processes, on any number of machines, that make one result together.  Every rank runs
 * the same program on the same inputs with the same control flow.  Ranks differ only in the
 * micro-batches of a sweep that they compute (lib/engine/sweep.h) and in the values whose sums they
 * keep (lib/engine/reduction.h).  Only rank 0 reads standard input, writes files and prints.
 *
 * The rules that make results byte-identical for any number of ranks:
 *   - no message is summed in transit: a rank receives what another sent;
 *   - lib/engine/reduction.h computes every sum over micro-batches; any other sum is computed on
 *     every rank, from the same numbers in the same order;
 *   - values that are not sent (draws, masks, logits) are computed on every rank from shared
 *     values.
 *
 * The rule that keeps ranks in step: all ranks make every call below that takes an error, in the
 * same order, and each call begins with an agreement.  A rank that fails elsewhere calls
 * fm_comm_agree with its error in place of its next call, whichever that would be, so all ranks
 * return that error.  FM_ESAVED is agreed on in the same way but does not end communication: ranks
 * may go on to save their state.
 *
 * A NULL communicator belongs to a single process.  Of the calls that take an error, fm_comm_agree
 * and fm_comm_close then return the error that they are given, fm_comm_collect copies, and the
 * others do nothing and return FM_OK.  fm_comm_exchange and fm_comm_host must not be called.  Calls
 * come from the thread that opened the communicator.
 */
#ifndef FM_COMM_H
#define FM_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/comm/wire.h"

struct fm_comm;

/*
 * Begin.  *comm is NULL for a single process: this build has no wire (NULL), or the launcher
 * started one process.  FM_EUSAGE if the launcher's environment indicates several processes but
 * there is no wire or it reports only this process, because each would write the same output.  If
 * only WORLD_SIZE suggests it, *warning (may be NULL) is set to a message.
 */
int fm_comm_open(struct fm_comm **comm, const struct fm_wire *wire, const char **warning,
                 struct fm_err *err);

/*
 * End communication, at the end of the process: all ranks return the code and text of the lowest
 * rank that failed.  NULL is fine.
 */
int fm_comm_close(struct fm_comm *comm, int code, struct fm_err *err);

int fm_comm_rank(const struct fm_comm *comm); /* 0 in a single process */
int fm_comm_size(const struct fm_comm *comm); /* 1 in a single process */
/* The name of a rank's machine; and the number of ranks on this machine, with the index of this
 * rank among them in *nth. */
const char *fm_comm_host(const struct fm_comm *comm, int rank);
int fm_comm_beside(const struct fm_comm *comm, int *nth);

/* The counters of this rank; in a single process, a shared dummy. */
struct fm_tally {
    uint64_t leaves; /* blocks of micro-batches computed */
    /* Seconds of computing in sweeps, of waiting for other ranks, and of reading weights. */
    double computing, waiting, reading;
};
struct fm_tally *fm_comm_tally(struct fm_comm *comm);
/* Exchange the counters.  After that, fm_comm_tallies returns the counters of all ranks (size);
 * before, and in a single process, NULL. */
int fm_comm_share_tallies(struct fm_comm *comm, struct fm_err *err);
const struct fm_tally *fm_comm_tallies(const struct fm_comm *comm);

/* The pieces [*first, *first + *count) of n that belong to a rank.  Shares are as even as possible
 * and in order of rank; if n is above 0, rank 0 has at least one piece. */
void fm_comm_share(const struct fm_comm *comm, int rank, int n, int *first, int *count);
/* The slice of an array of n values that belongs to a rank.  Slices are whole vectors, except at
 * the end of the array. */
void fm_comm_slice(const struct fm_comm *comm, int rank, size_t n, size_t *first, size_t *count);

/* FM_OK if rc is FM_OK on all ranks, else the error of the lowest rank that has one, or FM_ESAVED
 * if no rank has a different one.  An error that all ranks have agreed on before is not exchanged
 * again, so every level of a program may agree on what it returns. */
int fm_comm_agree(struct fm_comm *comm, int rc, struct fm_err *err);

/* The smallest of all ranks' values, for limits that differ between machines. */
int fm_comm_least(struct fm_comm *comm, int *value, struct fm_err *err);

/* Broadcast rank 0's data to all ranks. */
int fm_comm_tell(struct fm_comm *comm, void *data, size_t bytes, struct fm_err *err);

/* All-gather: `all` gets every rank's `mine` (`bytes` each), in order of rank; in a single process
 * only its own. */
int fm_comm_collect(struct fm_comm *comm, void *all, const void *mine, size_t bytes,
                    struct fm_err *err);

/* Send each rank's slice of data, n values of `value` bytes each, to rank 0, or to all ranks. */
int fm_comm_gather(struct fm_comm *comm, void *data, size_t value, size_t n, struct fm_err *err);
int fm_comm_spread(struct fm_comm *comm, void *data, size_t value, size_t n, struct fm_err *err);

/* Send part r of send (size) to rank r, and receive part r of recv from it.  Not to be called in a
 * single process. */
int fm_comm_exchange(struct fm_comm *comm, const struct fm_wire_part *send,
                     const struct fm_wire_part *recv, struct fm_err *err);

/* A value that must be the same on all ranks, and its name for messages: "the version", "0.1.0".
 * If a value of several words differs, the message has the first different word and the word before
 * it: "batch 8 steps 3". */
struct fm_comm_fact {
    const char *what, *value;
};
#define FM_COMM_FACTS_MAX 16

/* FM_ECONFIG if a value differs; the message names the first rank that differs from rank 0, its
 * machine, and both values.  The first 511 bytes of a value are compared. */
int fm_comm_same(struct fm_comm *comm, const struct fm_comm_fact *fact, int facts,
                 struct fm_err *err);

#endif
