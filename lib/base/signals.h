/*
 * Signals, and why no thread that computes may see one.
 *
 * The kernels of oneDNN use the stack pointer as a pointer into a matrix.  Linux writes what it
 * saves for a handler below the stack pointer: a handler that runs during a product overwrites
 * numbers, or malloc's headers.  So every thread blocks all signals, except those that its own
 * instruction causes, and one thread, which does nothing else, takes them all.  As it blocks none,
 * those without a handler do what they always do: Ctrl-Z stops, SIGQUIT kills.
 *
 *     fm_signals_install(abandon, &err);      the main thread, before it makes any other
 *     fm_signals_thread(&t, body, arg);    instead of pthread_create
 *     fm_signals_spawn(&pid, ...);         instead of posix_spawnp
 *     fm_signals_await(fd, POLLIN, -1);    before a read that may wait for long: nothing
 *                                          interrupts that any more
 */
#ifndef FM_BASE_SIGNALS_H
#define FM_BASE_SIGNALS_H

#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "lib/base/err.h"

/*
 * From now on SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless it is ignored, as nohup(1) does) ask the
 * process to stop; the second one calls `abandon`, on another thread than the caller's, and ends
 * the process, where neither is SIGUSR1, the warning of a batch system.  Once per process; the
 * caller is the only thread there is.  FM_ENOMEM.
 */
int fm_signals_install(void (*abandon)(void), struct fm_err *err);

/* The first signal that asked to stop, or 0; for run->stop. */
const atomic_int *fm_signals_stop(void);

/* End the process as this signal does; as process 1 of a container, with 128 + sig. */
_Noreturn void fm_signals_end(int sig);

/* Before a sentence and a status: returns at once, or never where a second signal is ending the
 * process, which makes whatever is still at work fail. */
void fm_signals_settle(void);

/* pthread_create with no attributes; in the new thread the signals are blocked.  0 or an error. */
int fm_signals_thread(pthread_t *thread, void *(*body)(void *arg), void *arg);

/*
 * Wait until poll(2) has an answer for `fd`, at most so many milliseconds (-1: for ever).  False
 * where there is none in time, or the process was asked to stop.
 */
bool fm_signals_await(int fd, short events, int milliseconds);

/* Between fork and exec: no signal is blocked, none is caught, and of those that we ignore none is
 * ignored.  fm_signals_spawn is posix_spawnp with the same. */
void fm_signals_forked(void);
int fm_signals_spawn(pid_t *pid, const posix_spawn_file_actions_t *actions, char *const argv[]);

#endif
