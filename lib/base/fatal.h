/*
 * Ends the process when it can neither continue nor return an error: out of memory inside a loop of
 * the pool, or inside a library that does not report it.  Temporary files are removed first.
 */
#ifndef FM_BASE_FATAL_H
#define FM_BASE_FATAL_H

#include "lib/base/err.h"

/* Set the function that runs before the process ends for lack of memory; there is only one.  It may
 * be called on any thread and in a signal handler while other threads are running, so it must be
 * async-signal-safe and take no locks. */
void fm_fatal_clean_with(void (*clean)(void));

/* Set the advice to the user that ends each sentence of fm_fatal_memory: a string constant. */
void fm_fatal_advise(const char *advice);

/* Print one sentence, "TOOL: ...", on standard error and exit with status FM_ENOMEM. */
_Noreturn void fm_fatal_memory(const char *fmt, ...) FM_PRINTF(1, 2);

/*
 * Call these around a call to a library that, when an allocation fails, writes through a null
 * pointer, throws an exception that is not caught, or calls exit(3).  If the calling thread calls
 * exit(3) in between, or crashes and memory is exhausted, the process ends as by fm_fatal_memory;
 * any other crash has its usual effect.  `what` begins the sentence.  Calls do not nest.
 */
void fm_fatal_watch(const char *what);
void fm_fatal_unwatch(void);

#endif
