/*
 * What tasks that run at once have in common: the first error, the bytes done so far,
 * and the wish of the user to stop.
 *
 *     struct fm_parallel parallel;
 *     fm_parallel_init(&parallel, run, "weights", total_bytes);
 *     fm_pool_for(n, task, &job);         a task begins with: if (!fm_parallel_going(parallel))
 * return; rc = fm_parallel_end(&parallel, err);
 */
#ifndef FM_PARALLEL_H
#define FM_PARALLEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/run/run.h"

struct fm_parallel {
    const struct fm_run_options *run;
    const char *stage; /* for progress */
    uint64_t done, total;
    pthread_mutex_t lock;
    struct fm_err err; /* code 0: none yet */
};

void fm_parallel_init(struct fm_parallel *parallel, const struct fm_run_options *run,
                      const char *stage, uint64_t total);

/* False once a task failed or the user wants to stop. */
bool fm_parallel_going(struct fm_parallel *parallel);

/* Keep err, if it is the first. */
void fm_parallel_fail(struct fm_parallel *parallel, const struct fm_err *err);

/* `bytes` more are done: tell the user. */
void fm_parallel_add(struct fm_parallel *parallel, uint64_t bytes);

/* FM_OK, the first error, or FM_ESAVED after a stop. */
int fm_parallel_end(struct fm_parallel *parallel, struct fm_err *err);

#endif
