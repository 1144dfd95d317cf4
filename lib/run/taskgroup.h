/*
 * What tasks that run at once have in common: the first error, the bytes done so far,
 * and the wish of the user to stop.
 *
 *     struct fm_taskgroup tasks;
 *     fm_taskgroup_init(&tasks, run, "weights", total_bytes);
 *     fm_pool_for(n, task, &job);         a task begins with: if (!fm_taskgroup_going(tasks))
 * return; rc = fm_taskgroup_end(&tasks, err);
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

/* False once a task failed or the user wants to stop. */
bool fm_taskgroup_going(struct fm_taskgroup *tasks);

/* Keep err, if it is the first. */
void fm_taskgroup_fail(struct fm_taskgroup *tasks, const struct fm_err *err);

/* `bytes` more are done: tell the user. */
void fm_taskgroup_add(struct fm_taskgroup *tasks, uint64_t bytes);

/* FM_OK, the first error, or FM_ESAVED after a stop. */
int fm_taskgroup_end(struct fm_taskgroup *tasks, struct fm_err *err);

#endif
