/*
 * Ends a process that is out of memory.  Inside nested loops an error cannot be returned to a
 * caller, and a library may crash or exit when an allocation fails.  In all cases temporary files
 * are removed, one sentence is written without allocating, and the exit status indicates that a
 * retry may help.
 */
#include "lib/base/fatal.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"

#define PROBE_BYTES                                                                                \
    ((size_t)64 << 20) /* with less free memory than this, a crash is attributed to lack of        \
                          memory */

static const int crashes[] = {SIGSEGV, SIGABRT};
#define CRASHES (sizeof crashes / sizeof *crashes)

static struct sigaction before[CRASHES];
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;
static _Thread_local const char *watched;
static const char *_Atomic advice;
static _Atomic(void (*)(void)) cleaner;

void fm_fatal_clean_with(void (*clean)(void))
{
    void (*there)(void) = atomic_exchange(&cleaner, clean);
    assert(!there || there == clean);
    (void)there;
}

void fm_fatal_advise(const char *text)
{
    advice = text;
}

/* Uses a buffer on the stack and write(2), because stdio may allocate. */
_Noreturn void fm_fatal_memory(const char *fmt, ...)
{
    static atomic_flag begun = ATOMIC_FLAG_INIT;
    char line[512];
    const char *then = advice;
    va_list ap;
    while (atomic_flag_test_and_set(&begun))
        pause(); /* another thread is ending the process */
    int at = snprintf(line, sizeof line, "%s: ", program_invocation_short_name);
    va_start(ap, fmt);
    vsnprintf(line + at, sizeof line - (size_t)at, fmt, ap);
    va_end(ap);
    at = (int)strlen(line);
    snprintf(line + at, sizeof line - (size_t)at - 1, "%s%s", then ? "; " : "", then ? then : "");
    at = (int)strlen(line);
    line[at++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)at) < 0) { /* standard error is closed */
    }
    void (*clean)(void) = atomic_load(&cleaner);
    if (clean)
        clean();
    _exit(FM_ENOMEM);
}

/*
 * If a crash has another cause, the previous handler is restored and the signal recurs.  A faulting
 * instruction faults again when this returns; a signal that was sent, by abort(3) or by another
 * process, has to be raised again.
 */
static void judge_crash(int sig, siginfo_t *info, void *context)
{
    bool sent = info->si_code <= 0, aborted = sig == SIGABRT && info->si_pid == getpid();
    (void)context;
    if (watched && (!sent || aborted) && !fm_memory_left(PROBE_BYTES))
        fm_fatal_memory("%s: no memory", watched);
    for (size_t i = 0; i < CRASHES; i++)
        if (crashes[i] == sig)
            sigaction(sig, &before[i], NULL);
    if (sent)
        raise(sig);
}

/* libgomp calls exit(3), on the thread that asked for memory.  It has no other reason here, so the
 * memory that another thread may have freed since is not looked at. */
static void judge_exit(void)
{
    if (watched)
        fm_fatal_memory("%s: no memory", watched);
}

static void catch_crashes(void)
{
    struct sigaction action = {.sa_sigaction = judge_crash, .sa_flags = SA_NODEFER | SA_SIGINFO};
    for (size_t i = 0; i < CRASHES; i++)
        sigaction(crashes[i], &action, &before[i]);
    if (atexit(judge_exit) != 0) /* no memory */
        judge_exit();
}

void fm_fatal_watch(const char *what)
{
    watched = what;
    pthread_once(&watch_once, catch_crashes);
}

void fm_fatal_unwatch(void)
{
    watched = NULL;
}
