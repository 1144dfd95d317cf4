/*
 * State shared by tasks that run concurrently: the first error, the number of bytes done, and the
 * user's request to stop.
 *
 *     struct fm_taskgroup tasks;
 *     fm_taskgroup_init(&tasks, run, "weights", total_bytes);
 *     fm_pool_for(n, task, &job);
 *     rc = fm_taskgroup_end(&tasks, err);
 *
 * A task returns at once if fm_taskgroup_going() is false.
 */
#ifndef FM_TASKGROUP_H
#define FM_TASKGROUP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/run/run.h"

struct fm_taskgroup {
    const struct fm_run_options *run;
    const char *stage; /* for progress */
    uint64_t done, total;
    pthread_mutex_t lock;
    struct fm_err err; /* code 0: none yet */
};

void fm_taskgroup_init(struct fm_taskgroup *tasks, const struct fm_run_options *run,
                       const char *stage, uint64_t total);

/* False once a task has failed or the user has asked to stop. */
bool fm_taskgroup_going(struct fm_taskgroup *tasks);

/* Store err, if it is the first. */
void fm_taskgroup_fail(struct fm_taskgroup *tasks, const struct fm_err *err);

/* Report progress: `bytes` more are done. */
void fm_taskgroup_add(struct fm_taskgroup *tasks, uint64_t bytes);

/* FM_OK, the first error, or FM_ESAVED after a stop. */
int fm_taskgroup_end(struct fm_taskgroup *tasks, struct fm_err *err);

#endif
