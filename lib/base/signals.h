/*
 * Signals: threads that compute must not receive them.
 *
 * The kernels of oneDNN use the stack pointer as a pointer into a matrix.  Linux writes the
 * frame of a signal handler below the stack pointer: a handler that runs during a product
 * overwrites numbers, or malloc's headers.  So every thread blocks all signals except synchronous
 * ones (SIGSEGV and the like), and one thread, which does nothing else, receives them all.  Because
 * it blocks none, signals without a handler have their default action: Ctrl-Z stops, SIGQUIT kills.
 *
 *     fm_signals_install(abandon, &err);   the main thread, before it makes any other
 *     fm_signals_thread(&t, body, arg);    instead of pthread_create
 *     fm_signals_await(fd, POLLIN);        before a read that may block for long, because no signal
 *                                          interrupts it
 */
#ifndef FM_BASE_SIGNALS_H
#define FM_BASE_SIGNALS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "lib/base/err.h"

/*
 * After this call SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless it is ignored, as by nohup(1)) ask
 * the process to stop.  A second one calls `abandon`, on a different thread from the caller's, and
 * ends the process, unless one of the two is SIGUSR1, the warning of a batch system.  Call it once
 * per process, before any other thread exists.  FM_ENOMEM, FM_EIO.
 */
int fm_signals_install(void (*abandon)(void), struct fm_err *err);

/* The stop signal that was received, or 0; for run->stop. */
const atomic_int *fm_signals_stop(void);

/* End the process as this signal would; process 1 of a container exits with 128 + sig. */
_Noreturn void fm_signals_end(int sig);

/* Call before printing an error and exiting.  Does not return if a second signal is ending the
 * process: then the error is only a consequence of that. */
void fm_signals_settle(void);

/* pthread_create with no attributes; in the new thread the signals are blocked.  Returns 0 or an
 * error number. */
int fm_signals_thread(pthread_t *thread, void *(*body)(void *arg), void *arg);

/* Wait until poll(2) has an event for `fd`; false if the process was asked to stop. */
bool fm_signals_await(int fd, short events);

/*
 * For a process with one thread that waits for children (lib/run/child.h).  After fm_signals_hold
 * the stop signals, and SIGCHLD, stay pending until one of the other two takes them, so that none
 * is lost; SIGPIPE and SIGXFSZ are ignored.  fm_signals_held returns the first stop signal so far,
 * or 0.  fm_signals_follow waits for the end of a child and returns its status (waitpid(2)); it
 * passes the first stop signal on as SIGUSR1, because a terminal may have sent the original to the
 * child, too, and later ones unchanged.
 */
void fm_signals_hold(void);
int fm_signals_held(void);
int fm_signals_follow(pid_t child);
/* True for the stop signals. */
bool fm_signals_stops(int sig);

/* Between fork and exec: unblock all signals and restore the default action of those that we catch
 * or ignore. */
void fm_signals_forked(void);

#endif
