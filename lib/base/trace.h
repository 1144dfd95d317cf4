/*
 * For debugging: FM_TRACE=sweep,load,io,pool in the environment of a tool built by `make DEBUG=1`
 * prints a line for each event of these kinds to standard error, with the seconds of the clock:
 *
 *     8131.204518 sweep: layer 3 of 4 forward, 2 tasks
 *
 * In every other build the calls are type-checked and compiled to nothing.
 */
#ifndef FM_BASE_TRACE_H
#define FM_BASE_TRACE_H

#include <stdbool.h>

#include "lib/base/err.h"

enum fm_trace { FM_TRACE_SWEEP, FM_TRACE_LOAD, FM_TRACE_IO, FM_TRACE_POOL, FM_TRACES };

#ifdef FM_DEBUG
#define FM_DEBUGGING 1
#else
#define FM_DEBUGGING 0
#endif

#define FM_TRACE(kind, ...)                                                                        \
    do {                                                                                           \
        if (FM_DEBUGGING && fm_trace_wanted(kind))                                                 \
            fm_trace_print(kind, __VA_ARGS__);                                                     \
    } while (0)

/* True if FM_TRACE names this kind.  An unknown word is reported once. */
bool fm_trace_wanted(enum fm_trace kind);
/* Print one line, which is not interleaved with the lines of other threads. */
void fm_trace_print(enum fm_trace kind, const char *fmt, ...) FM_PRINTF(2, 3);

#endif
