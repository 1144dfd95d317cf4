/*
 * Tasks cannot return an error, so the group keeps it.  After the first error, the other tasks stop
 * before their next piece of work; a request to stop counts as an error (FM_ESAVED).
 */
#include "lib/run/taskgroup.h"

void fm_taskgroup_init(struct fm_taskgroup *tasks, const struct fm_run_options *run,
                       const char *stage, uint64_t total)
{
    *tasks = (struct fm_taskgroup){.run = run, .stage = stage, .total = total};
    pthread_mutex_init(&tasks->lock, NULL);
}

bool fm_taskgroup_going(struct fm_taskgroup *tasks)
{
    pthread_mutex_lock(&tasks->lock);
    if (!tasks->err.code && tasks->run->stop && *tasks->run->stop)
        fm_fail(&tasks->err, FM_ESAVED, "stopped");
    bool going = !tasks->err.code;
    pthread_mutex_unlock(&tasks->lock);
    return going;
}

void fm_taskgroup_fail(struct fm_taskgroup *tasks, const struct fm_err *err)
{
    pthread_mutex_lock(&tasks->lock);
    if (!tasks->err.code)
        tasks->err = *err;
    pthread_mutex_unlock(&tasks->lock);
}

void fm_taskgroup_add(struct fm_taskgroup *tasks, uint64_t bytes)
{
    pthread_mutex_lock(&tasks->lock);
    tasks->done += bytes;
    fm_run_report(tasks->run, tasks->stage, tasks->done, tasks->total, "bytes");
    pthread_mutex_unlock(&tasks->lock);
}

int fm_taskgroup_end(struct fm_taskgroup *tasks, struct fm_err *err)
{
    pthread_mutex_destroy(&tasks->lock);
    if (tasks->err.code)
        *err = tasks->err;
    return tasks->err.code;
}
