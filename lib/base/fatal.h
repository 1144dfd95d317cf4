/*
 * The end of a process that cannot go on and cannot return an error: out of memory inside a loop of
 * the pool, or inside a library that does not report it.  Temporary files are removed first.
 */
#ifndef FM_BASE_FATAL_H
#define FM_BASE_FATAL_H

#include "lib/base/err.h"

#define FM_FATAL_CLEANERS_MAX 4

/* `clean` runs before such an end.  It may be called on any thread and in a signal handler, while
 * other threads run on: async-signal-safe, no locks.  The same function counts once; else at most
 * FM_FATAL_CLEANERS_MAX. */
void fm_fatal_clean_with(void (*clean)(void));

/* What a user can do about it: the end of each sentence of fm_fatal_memory.  A string constant. */
void fm_fatal_advise(const char *advice);

/* One sentence on standard error, "TOOL: ...", and the status FM_ENOMEM. */
_Noreturn void fm_fatal_memory(const char *fmt, ...) FM_PRINTF(1, 2);

/*
 * Around a call to a library that, when an allocation fails, writes through a null pointer or
 * throws an exception that is not caught.  If the calling thread crashes in between, the process
 * ends as by fm_fatal_memory when memory is indeed exhausted; otherwise the crash takes its course.
 * `what` begins the sentence.  Calls do not nest.
 */
void fm_fatal_watch(const char *what);
void fm_fatal_unwatch(void);

#endif
