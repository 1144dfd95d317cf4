/*
 * A function of this program in a child process, without exec: for a program of one thread that
 * runs several steps, each of which starts threads or confines itself (lib/run/confine.h).
 */
#ifndef FM_CHILD_H
#define FM_CHILD_H

#include <stdbool.h>

#include "lib/base/err.h"

/*
 * Run body(self) in a child and wait for its end.  The caller has called fm_signals_hold; a signal
 * that asks this process to stop is passed to the child (fm_signals_follow).  If this process
 * ends first, the child is asked to stop if it `saves` its state, and else killed.
 *
 * Returns the status with which the child ended.  It printed the reason itself, so err is not set,
 * except: FM_ESAVED if the child was ended by a stop signal, FM_ENOMEM by SIGKILL, and FM_EBUG by
 * any other signal; FM_ENOMEM or FM_EIO if no child could be made.  FM_EPIPE if its output pipe was
 * closed.
 *
 * If `said` is not NULL, it receives what the child wrote to standard output, at most 16 MiB, which
 * is otherwise this process's; free() it.
 */
int fm_child_run(int (*body)(void *self), void *self, bool saves, char **said, struct fm_err *err);

#endif
