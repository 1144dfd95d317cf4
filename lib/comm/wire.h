/*
 * The transport between ranks: the functions that lib/comm/comm.h needs, private to this room.
 * There are two implementations.  wire_alone.c, for a single process, has no transport.  wire_mpi.c
 * is the only file in the tree that uses MPI; a tool that is linked with wire_mpi.c uses MPI.
 *
 * All calls come from the thread that opened the wire.  All ranks make the same calls in the same
 * order.
 */
#ifndef FM_WIRE_H
#define FM_WIRE_H

#include <stddef.h>

#include "lib/base/err.h"

/* Bytes that are sent to one rank or received from it. */
struct fm_wire_part {
    void *data;
    size_t size;
};

struct fm_wire {
    /* Start, once per process; threads that it creates inherit the caller's blocked signals. */
    int (*open)(int *rank, int *size, struct fm_err *err);
    /* All-gather: all[r] becomes rank r's `mine`, on every rank. */
    void (*collect)(void *all, const void *mine, size_t bytes);
    /* Broadcast rank 0's data. */
    void (*tell)(void *data, size_t bytes);
    /* Part r of send goes to rank r, and part r of recv comes from it; sizes agree. */
    void (*exchange)(const struct fm_wire_part *send, const struct fm_wire_part *recv);
    /* Barrier; all messages have arrived. */
    void (*close)(void);
};

/* The implementation that was linked; NULL: this build has none. */
extern const struct fm_wire *const fm_wire_linked;

#endif
