/*
 * What tasks that run at once have in common: the first error, the bytes done so far,
 * and the wish of the user to stop.
 *
 *     struct fm_crew crew;
 *     fm_crew_init(&crew, run, "weights", total_bytes);
 *     fm_pool_for(n, task, &job);         a task begins with: if (!fm_crew_going(crew)) return;
 *     rc = fm_crew_end(&crew, err);
 */
#ifndef FM_CREW_H
#define FM_CREW_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/run/run.h"

struct fm_crew {
    const struct fm_run_options *run;
    const char *stage; /* for progress */
    uint64_t done, total;
    pthread_mutex_t lock;
    struct fm_err err; /* code 0: none yet */
};

void fm_crew_init(struct fm_crew *crew, const struct fm_run_options *run, const char *stage,
                  uint64_t total);

/* False once a task failed or the user wants to stop. */
bool fm_crew_going(struct fm_crew *crew);

/* Keep err, if it is the first. */
void fm_crew_fail(struct fm_crew *crew, const struct fm_err *err);

/* `bytes` more are done: tell the user. */
void fm_crew_add(struct fm_crew *crew, uint64_t bytes);

/* FM_OK, the first error, or FM_ESAVED after a stop. */
int fm_crew_end(struct fm_crew *crew, struct fm_err *err);

#endif
