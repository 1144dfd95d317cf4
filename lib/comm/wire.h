/*
 * How bytes go from rank to rank: what an implementation of lib/comm/comm.h provides, and nobody
 * else sees.  There are two.  wire_alone.c has none: a process is alone.  wire_mpi.c is the one
 * place in the tree that knows MPI; a tool that is linked with it gets it instead of the other.
 *
 * Calls come from one thread, the one that opened the wire, and all but `open`, `abort` and `close`
 * are made by all ranks, in the same order.
 */
#ifndef FM_WIRE_H
#define FM_WIRE_H

#include <stddef.h>

#include "lib/base/err.h"

/* Bytes for one other rank, or from it. */
struct fm_wire_part {
    void *data;
    size_t size;
};

struct fm_wire {
    const char *name; /* "MPI" */
    /* Start, once per process; other threads that it makes inherit the caller's blocked signals. */
    int (*open)(int *rank, int *size, struct fm_err *err);
    /* all (size of them): what each rank has at mine. */
    void (*collect)(void *all, const void *mine, size_t bytes);
    /* data becomes rank 0's. */
    void (*tell)(void *data, size_t bytes);
    /* Part r of send goes to rank r, part r of recv comes from it; sizes agree. */
    void (*exchange)(const struct fm_wire_part *send, const struct fm_wire_part *recv);
    /* All are here and nothing is under way. */
    void (*close)(void);
};

/* The one that was linked; NULL: this build has none. */
extern const struct fm_wire *const fm_wire_linked;

#endif
