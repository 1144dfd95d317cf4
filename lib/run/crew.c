/*
 * Tasks cannot return: they write into the crew.  The first error stops the others before their
 * next piece of work, and a signal counts as an error whose name is `stopped`; so each loop over
 * tasks has one question to ask and one place to look afterwards.
 */
#include "lib/run/crew.h"

void fm_crew_init(struct fm_crew *crew, const struct fm_run_options *run, const char *stage,
                  uint64_t total)
{
    *crew = (struct fm_crew){.run = run, .stage = stage, .total = total};
    pthread_mutex_init(&crew->lock, NULL);
}

static bool asked_to_stop(const struct fm_crew *crew)
{
    return crew->run->stop && *crew->run->stop;
}

bool fm_crew_going(struct fm_crew *crew)
{
    pthread_mutex_lock(&crew->lock);
    if (!crew->err.code && asked_to_stop(crew))
        fm_fail(&crew->err, FM_ESAVED, "stopped");
    bool going = !crew->err.code;
    pthread_mutex_unlock(&crew->lock);
    return going;
}

void fm_crew_fail(struct fm_crew *crew, const struct fm_err *err)
{
    pthread_mutex_lock(&crew->lock);
    if (!crew->err.code)
        crew->err = *err;
    pthread_mutex_unlock(&crew->lock);
}

void fm_crew_add(struct fm_crew *crew, uint64_t bytes)
{
    pthread_mutex_lock(&crew->lock);
    crew->done += bytes;
    fm_run_report(crew->run, crew->stage, crew->done, crew->total, "bytes");
    pthread_mutex_unlock(&crew->lock);
}

int fm_crew_end(struct fm_crew *crew, struct fm_err *err)
{
    pthread_mutex_destroy(&crew->lock);
    if (crew->err.code)
        *err = crew->err;
    return crew->err.code;
}
