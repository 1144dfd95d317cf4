/*
 * The end of a process is detected before it is reaped: until then its id, and the id of the group
 * that it leads, cannot be reused.
 */
#include "lib/base/process.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "lib/base/clock.h"

enum { NAP_NS = 5000000 };
#define GRACE 1.0 /* seconds between SIGTERM and SIGKILL */

static void send(const struct fm_process *p, int sig)
{
    kill(p->group ? -p->pid : p->pid, sig);
}

bool fm_process_over(const struct fm_process *p)
{
    siginfo_t info = {0};
    if (p->pid <= 0 || waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != p->pid)
        return false;
    if (p->group)
        send(p, SIGKILL);
    return true;
}

static void take_status(struct fm_process *p)
{
    while (waitpid(p->pid, &p->status, 0) < 0 && errno == EINTR)
        ;
    p->pid = 0;
}

bool fm_process_wait(struct fm_process *p, double seconds, const atomic_int *stop)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    double began = fm_clock_now();
    while (p->pid > 0) {
        if (fm_process_over(p))
            take_status(p);
        else if (fm_clock_now() - began > seconds || (stop && *stop))
            return false;
        else
            nanosleep(&nap, NULL);
    }
    return true;
}

void fm_process_end(struct fm_process *p)
{
    if (p->pid <= 0)
        return;
    send(p, SIGTERM);
    if (!fm_process_wait(p, GRACE, NULL))
        fm_process_kill(p);
}

void fm_process_kill(struct fm_process *p)
{
    if (p->pid <= 0)
        return;
    send(p, SIGKILL);
    take_status(p);
}

int fm_process_status(const struct fm_process *p)
{
    return WIFSIGNALED(p->status) ? 128 + WTERMSIG(p->status) : WEXITSTATUS(p->status);
}
