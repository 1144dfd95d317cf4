/*
 * Ranks over MPI.  Only a few functions are used, all of them in MPI 3.0: an all-gather of small
 * records of equal size, a broadcast, and point-to-point messages.  MPI never computes a sum,
 * because the order of its terms would depend on the number of ranks and on the network.
 *
 * A waiting rank polls for a moment and then sleeps between polls, because it may share cores with
 * the threads of a working rank.  If a rank dies, MPI's own error handler ends the job.
 */
#include "lib/comm/wire.h"

#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/fatal.h"

#define PIECE ((size_t)1 << 30) /* MPI counts are ints */
#define SPIN 0.0002             /* seconds of polling without sleep */
#define NAP_NS 50000

static int ranks, own;

/* For tests/measure: simulates a slow network. */
static void delay(void)
{
#ifdef FM_WIRE_DELAY_US
    nanosleep(&(struct timespec){.tv_nsec = FM_WIRE_DELAY_US * 1000L}, NULL);
#endif
}

static void await(MPI_Request *request, int count)
{
    double began = fm_clock_now();
    while (count > 0) {
        int done = 0;
        MPI_Test(&request[count - 1], &done, MPI_STATUS_IGNORE); /* tests one request; all of
                                                                    them make progress */
        if (done)
            count--;
        else if (fm_clock_now() - began < SPIN)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

static int start(int *rank, int *size, struct fm_err *err)
{
    int level;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
        return fm_fail(err, FM_EDEVICE, "cannot start MPI");
    MPI_Comm_rank(MPI_COMM_WORLD, &own);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    *rank = own;
    *size = ranks;
    if (level < MPI_THREAD_FUNNELED)
        return fm_fail(err, FM_EDEVICE, "this MPI does not support multithreaded processes");
    return FM_OK;
}

static void collect(void *all, const void *mine, size_t bytes)
{
    MPI_Request request;
    delay();
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    await(&request, 1);
}

static void tell(void *data, size_t bytes)
{
    for (size_t at = 0, n; at < bytes; at += n) {
        MPI_Request request;
        n = bytes - at < PIECE ? bytes - at : PIECE;
        delay();
        MPI_Ibcast((char *)data + at, (int)n, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
        await(&request, 1);
    }
}

/* The size of the piece of a part that begins at byte `at`; 0: none. */
static int piece_of(const struct fm_wire_part *part, size_t at)
{
    size_t left = part->size > at ? part->size - at : 0;
    return (int)(left < PIECE ? left : PIECE);
}

/* Each rank starts with a different partner, so that not all send to the same one.  Pieces between
 * two ranks arrive in the order in which they were sent. */
static void exchange(const struct fm_wire_part *send, const struct fm_wire_part *recv)
{
    MPI_Request *request = malloc(2 * (size_t)ranks * sizeof(MPI_Request));
    bool more = true;
    if (!request)
        fm_fatal_memory("no memory for messages between %d ranks", ranks);
    delay();
    for (size_t at = 0; more; at += PIECE) {
        int count = 0;
        more = false;
        for (int i = 0; i < ranks; i++) {
            int from = (own + ranks - i) % ranks, to = (own + i) % ranks;
            int take = piece_of(&recv[from], at), give = piece_of(&send[to], at);
            if (take)
                MPI_Irecv((char *)recv[from].data + at, take, MPI_BYTE, from, 0, MPI_COMM_WORLD,
                          &request[count++]);
            if (give)
                MPI_Isend((char *)send[to].data + at, give, MPI_BYTE, to, 0, MPI_COMM_WORLD,
                          &request[count++]);
            more = more || recv[from].size > at + PIECE || send[to].size > at + PIECE;
        }
        await(request, count);
    }
    free(request);
}

static void finish(void)
{
    MPI_Finalize();
}

static const struct fm_wire mpi = {
    .open = start, .collect = collect, .tell = tell, .exchange = exchange, .close = finish};
const struct fm_wire *const fm_wire_linked = &mpi;
