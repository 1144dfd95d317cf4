/*
 * Tasks cannot return: they write into the parallel.  The first error stops the others before their
 * next piece of work, and a signal counts as an error whose name is `stopped`; so each loop over
 * tasks has one question to ask and one place to look afterwards.
 */
#include "lib/run/parallel.h"

void fm_parallel_init(struct fm_parallel *parallel, const struct fm_run_options *run,
                      const char *stage, uint64_t total)
{
    *parallel = (struct fm_parallel){.run = run, .stage = stage, .total = total};
    pthread_mutex_init(&parallel->lock, NULL);
}

static bool asked_to_stop(const struct fm_parallel *parallel)
{
    return parallel->run->stop && *parallel->run->stop;
}

bool fm_parallel_going(struct fm_parallel *parallel)
{
    pthread_mutex_lock(&parallel->lock);
    if (!parallel->err.code && asked_to_stop(parallel))
        fm_fail(&parallel->err, FM_ESAVED, "stopped");
    bool going = !parallel->err.code;
    pthread_mutex_unlock(&parallel->lock);
    return going;
}

void fm_parallel_fail(struct fm_parallel *parallel, const struct fm_err *err)
{
    pthread_mutex_lock(&parallel->lock);
    if (!parallel->err.code)
        parallel->err = *err;
    pthread_mutex_unlock(&parallel->lock);
}

void fm_parallel_add(struct fm_parallel *parallel, uint64_t bytes)
{
    pthread_mutex_lock(&parallel->lock);
    parallel->done += bytes;
    fm_run_report(parallel->run, parallel->stage, parallel->done, parallel->total, "bytes");
    pthread_mutex_unlock(&parallel->lock);
}

int fm_parallel_end(struct fm_parallel *parallel, struct fm_err *err)
{
    pthread_mutex_destroy(&parallel->lock);
    if (parallel->err.code)
        *err = parallel->err;
    return parallel->err.code;
}
