/*
 * Ranks for tests: threads of this process that communicate through shared memory, as many as are
 * requested, or the processes that MPI started (test_ranks.sh) if a test is linked with it.
 * cmocka's assertions call longjmp, which only the thread of the test may do: ranks use
 * RANKS_CHECK.
 */
#ifndef FM_TESTS_RANKS_H
#define FM_TESTS_RANKS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/comm/comm.h"

#define RANKS_MAX 8
#define RANKS_CHECK(cond)                                                                          \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                             \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static struct {
    int size;
    pthread_barrier_t all;
    const void *at[RANKS_MAX]; /* data that a rank exposes to the others */
    const struct fm_wire_part *send[RANKS_MAX];
} ranks_wire;
static _Thread_local int ranks_own;

static int ranks_open(int *rank, int *size, struct fm_err *err)
{
    (void)err;
    *rank = ranks_own;
    *size = ranks_wire.size;
    return FM_OK;
}

static void ranks_wait(void)
{
    pthread_barrier_wait(&ranks_wire.all);
}

static void ranks_collect(void *all, const void *mine, size_t bytes)
{
    ranks_wire.at[ranks_own] = mine;
    ranks_wait();
    for (int r = 0; r < ranks_wire.size; r++)
        memcpy((char *)all + (size_t)r * bytes, ranks_wire.at[r], bytes);
    ranks_wait();
}

static void ranks_tell(void *data, size_t bytes)
{
    ranks_wire.at[ranks_own] = data;
    ranks_wait();
    if (ranks_own > 0)
        memcpy(data, ranks_wire.at[0], bytes);
    ranks_wait();
}

static void ranks_exchange(const struct fm_wire_part *send, const struct fm_wire_part *recv)
{
    ranks_wire.send[ranks_own] = send;
    ranks_wait();
    for (int r = 0; r < ranks_wire.size; r++) {
        const struct fm_wire_part *from = &ranks_wire.send[r][ranks_own];
        RANKS_CHECK(from->size == recv[r].size);
        if (from->size > 0)
            memcpy(recv[r].data, from->data, from->size);
    }
    ranks_wait();
}

static const struct fm_wire ranks_threads = {.open = ranks_open,
                                             .collect = ranks_collect,
                                             .tell = ranks_tell,
                                             .exchange = ranks_exchange,
                                             .close = ranks_wait};

/* A part of every rank's work.  After each body all ranks agree that it succeeded; a body passed as
 * `last` ends the communication itself. */
typedef void ranks_body(struct fm_comm *comm);

struct ranks_job {
    const struct fm_wire *wire;
    ranks_body *const *body;
    int bodies;
    ranks_body *last; /* closes the communicator; may be NULL */
    int rank;
};

static void *ranks_run(void *arg)
{
    const struct ranks_job *job = arg;
    struct fm_comm *comm;
    struct fm_err err = {0};
    ranks_own = job->rank;
    RANKS_CHECK(fm_comm_open(&comm, job->wire, NULL, &err) == FM_OK);
    RANKS_CHECK(comm);
    for (int i = 0; i < job->bodies; i++) {
        job->body[i](comm);
        RANKS_CHECK(fm_comm_agree(comm, FM_OK, &err) == FM_OK);
    }
    if (job->last)
        job->last(comm);
    else
        RANKS_CHECK(fm_comm_close(comm, FM_OK, &err) == FM_OK);
    return NULL;
}

/* Run the bodies on that many threads. */
static inline void ranks_of_threads(int size, ranks_body *const *body, int bodies, ranks_body *last)
{
    pthread_t thread[RANKS_MAX];
    struct ranks_job job[RANKS_MAX];
    ranks_wire.size = size;
    pthread_barrier_init(&ranks_wire.all, NULL, (unsigned)size);
    for (int r = 0; r < size; r++) {
        job[r] = (struct ranks_job){&ranks_threads, body, bodies, last, r};
        RANKS_CHECK(pthread_create(&thread[r], NULL, ranks_run, &job[r]) == 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(thread[r], NULL);
    pthread_barrier_destroy(&ranks_wire.all);
}

/* Run the bodies on this process and the other processes. */
static inline int ranks_of_wire(ranks_body *const *body, int bodies, ranks_body *last)
{
    struct ranks_job job = {fm_wire_linked, body, bodies, last, 0};
    ranks_run(&job);
    return 0;
}

#endif
