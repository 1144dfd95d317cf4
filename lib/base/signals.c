/*
 * All threads block signals except one, which pauses forever and runs the handlers, so the kernel
 * puts signal frames only on its stack (lib/base/signals.h says why).
 */
#include "lib/base/signals.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10 };

static const int stopping[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
static const int ignored[] = {
    SIGPIPE, /* write reports a closed pipe, so that outputs are cleaned up */
    SIGXFSZ, /* write also reports a file larger than `ulimit -f` allows */
};
enum { STOPPING = sizeof stopping / sizeof *stopping, IGNORED = sizeof ignored / sizeof *ignored };

static atomic_int stop_signal;
static atomic_bool ending;
static int stop_event = -1; /* readable once stop_signal is set */
static void (*before_end)(void);

_Noreturn void fm_signals_end(int sig)
{
    sigset_t set;
    signal(sig, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, sig);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(sig);
    _exit(128 + sig); /* process 1 of a container has no default actions */
}

void fm_signals_settle(void)
{
    while (atomic_load(&ending))
        pause();
}

/* SIGUSR1, a batch system's warning, only requests a stop: the system may send several, and the
 * signal that ends the process may follow while the state is being saved. */
static bool is_second(int sig)
{
    int none = 0, warned = SIGUSR1;
    return !atomic_compare_exchange_strong(&stop_signal, &none, sig) && sig != SIGUSR1 &&
           !atomic_compare_exchange_strong(&stop_signal, &warned, sig);
}

static void on_signal(int sig)
{
    if (is_second(sig)) { /* end at once */
        atomic_store(&ending, true);
        before_end();
        fm_signals_end(sig);
    }
    uint64_t one = 1;
    (void)!write(stop_event, &one, sizeof one); /* cannot fail: 8 bytes, a few times */
}

/* The signals that computing threads block: all but these.  The first seven come from a thread's
 * own instructions and the last two from its own use of a terminal.  Of these the suite handles
 * only SIGSEGV and SIGABRT, to report a lack of memory (lib/base/fatal.c). */
static void fill_blocked(sigset_t *set)
{
    static const int own[] = {SIGSEGV, SIGBUS,  SIGFPE,  SIGILL, SIGTRAP,
                              SIGSYS,  SIGABRT, SIGTTIN, SIGTTOU};
    sigfillset(set);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(set, own[i]);
}

/* The stop signals, without SIGHUP if it is ignored, as by nohup(1). */
static void fill_stopping(sigset_t *set)
{
    struct sigaction old;
    sigemptyset(set);
    for (int i = 0; i < STOPPING; i++)
        if (stopping[i] != SIGHUP || sigaction(SIGHUP, NULL, &old) != 0 ||
            old.sa_handler != SIG_IGN)
            sigaddset(set, stopping[i]);
}

int fm_signals_thread(pthread_t *thread, void *(*body)(void *arg), void *arg)
{
    sigset_t set, old;
    fill_blocked(&set);
    pthread_sigmask(SIG_BLOCK, &set, &old);
    int failed = pthread_create(thread, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return failed;
}

static void *take(void *unused)
{
    sigset_t none;
    (void)unused;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    for (;;)
        pause();
    return NULL;
}

static int start_taker(void)
{
    pthread_t thread;
    pthread_attr_t attr;
    int failed = pthread_attr_init(&attr);
    if (failed)
        return failed;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    failed = pthread_create(&thread, &attr, take, NULL);
    pthread_attr_destroy(&attr);
    return failed;
}

int fm_signals_install(void (*abandon)(void), struct fm_err *err)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t set;
    before_end = abandon;
    stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_event < 0)
        return fm_fail_errno(err, "cannot prepare for signals");
    fill_blocked(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigfillset(&action.sa_mask);
    fill_stopping(&set);
    for (int i = 0; i < STOPPING; i++)
        if (sigismember(&set, stopping[i]))
            sigaction(stopping[i], &action, NULL);
    for (int i = 0; i < IGNORED; i++)
        signal(ignored[i], SIG_IGN);
    int failed = start_taker();
    return failed ? fm_fail(err, FM_ENOMEM, "cannot start the thread that takes signals: %s",
                            strerror(failed))
                  : FM_OK;
}

const atomic_int *fm_signals_stop(void)
{
    return &stop_signal;
}

bool fm_signals_await(int fd, short events)
{
    struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = stop_event, .events = POLLIN}};
    int n;
    do
        n = poll(p, 2, -1);
    while (n < 0 && errno == EINTR);
    return p[1].revents == 0;
}

static int held; /* of a process with one thread: the first stop signal */

void fm_signals_hold(void)
{
    sigset_t set;
    fill_stopping(&set);
    sigaddset(&set, SIGCHLD);
    signal(SIGCHLD, SIG_DFL);
    for (int i = 0; i < IGNORED; i++)
        signal(ignored[i], SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

int fm_signals_held(void)
{
    const struct timespec now = {0};
    sigset_t set;
    int sig;
    fill_stopping(&set);
    while ((sig = sigtimedwait(&set, NULL, &now)) > 0)
        held = held ? held : sig;
    return held;
}

int fm_signals_follow(pid_t child)
{
    int status = 0, sig;
    sigset_t set;
    fill_stopping(&set);
    sigaddset(&set, SIGCHLD);
    while (waitpid(child, &status, WNOHANG) == 0) {
        if ((sig = sigwaitinfo(&set, NULL)) <= 0 || sig == SIGCHLD)
            continue;
        kill(child, held ? sig : SIGUSR1);
        held = held ? held : sig;
    }
    return status;
}

bool fm_signals_stops(int sig)
{
    for (int i = 0; i < STOPPING; i++)
        if (stopping[i] == sig)
            return true;
    return false;
}

void fm_signals_forked(void)
{
    struct sigaction now;
    sigset_t none;
    for (int i = 0; i < STOPPING; i++)
        if (sigaction(stopping[i], NULL, &now) == 0 && now.sa_handler == on_signal)
            signal(stopping[i], SIG_DFL); /* before the signals are unblocked */
    for (int i = 0; i < IGNORED; i++)
        signal(ignored[i], SIG_DFL);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}
