/*
 * The end of a process that cannot go on where no error can be returned: no memory inside a loop of
 * the pool, or inside a library that does not say so.  What must not be left behind is removed
 * first.
 */
#ifndef FM_BASE_FATAL_H
#define FM_BASE_FATAL_H

#include "lib/base/err.h"

#define FM_FATAL_CLEANERS_MAX 4

/* `clean` runs before such an end.  It may be called on any thread and in a signal handler, while
 * other threads run on: async-signal-safe, no locks.  The same function counts once; else at most
 * FM_FATAL_CLEANERS_MAX. */
void fm_fatal_clean_with(void (*clean)(void));

/* What a user can do about it; ends each sentence of fm_fatal_memory.  A string that stays. */
void fm_fatal_advise(const char *advice);

/* One sentence on standard error, "TOOL: ...", and the status FM_ENOMEM. */
_Noreturn void fm_fatal_memory(const char *fmt, ...) FM_PRINTF(1, 2);

/*
 * Around a call to a library that has no other word for "no memory" than a write through a null
 * pointer or an exception that nobody catches: such a crash of the calling thread in between is
 * fm_fatal_memory's end where memory is out indeed, and stays the crash it is where there is some.
 * `what` begins the sentence.  Not nested.
 */
void fm_fatal_watch(const char *what);
void fm_fatal_unwatch(void);

#endif
