/* FM_TRACE is read once, at the first event; after that, each event only tests a flag. */
#include "lib/base/trace.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/printable.h"

static const char *const names[FM_TRACES] = {"sweep", "load", "io", "pool"};
static bool wanted[FM_TRACES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_environment(void)
{
    const char *at = getenv("FM_TRACE");
    while (at && *at) {
        size_t len = strcspn(at, ",");
        int kind = 0;
        while (kind < FM_TRACES && (strlen(names[kind]) != len || strncmp(at, names[kind], len)))
            kind++;
        if (kind < FM_TRACES)
            wanted[kind] = true;
        else
            fprintf(stderr, "%s: FM_TRACE: no events '%.*s'; use sweep, load, io or pool\n",
                    program_invocation_short_name, (int)len, at);
        at += len + (at[len] == ',');
    }
}

bool fm_trace_wanted(enum fm_trace kind)
{
    assert((unsigned)kind < FM_TRACES);
    pthread_once(&once, read_environment);
    return wanted[kind];
}

void fm_trace_print(enum fm_trace kind, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    int at = snprintf(line, sizeof line, "%.6f %s: ", fm_clock_now(), names[kind]);
    va_start(ap, fmt);
    vsnprintf(line + at, sizeof line - (size_t)at, fmt, ap);
    va_end(ap);
    fm_printable(line, false);
    fprintf(stderr, "%s\n", line);
}
