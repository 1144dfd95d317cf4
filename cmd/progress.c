/*
 * The work may report at any rate and from any thread; output is rate-limited, so that a terminal
 * is not flooded and a log stays short.  The time left is estimated only from this run, because a
 * resumed run begins with finished work.  If the run declares the work of a stage and the work
 * after it, the time to the end of the run is estimated from the stage's rate.
 */
#include "cmd/progress.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/printable.h"
#include "lib/base/units.h"

#define SECONDS_TERMINAL 0.1
#define SECONDS_PLAIN 5.0

/* The current line on the screen; threads of the pool may report, so it is guarded. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const char *tool;
    bool terminal, shown;
    char stage[48];
    uint64_t done_first; /* `done` at the stage's first report: a resumed run starts above 0 */
    uint64_t done, total;
    const char *unit; /* as in the last report; a literal */
    double began, last;
    double work, after; /* of the stage and after it; 0: unknown */
} now;
static struct {
    double work, after;
} next;

static void format_clock(char *text, size_t size, double left)
{
    long s = (long)(left + 0.5);
    if (s >= 3600)
        snprintf(text, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, size, "%ld:%02ld", s / 60, s % 60);
}

/* The time left in the stage, and if more follows, to the end of the run; `share` of the stage
 * was done by this process in `elapsed`. */
static void format_left(char *text, size_t size, double left, double share, double elapsed)
{
    char stage[24], run[24];
    format_clock(stage, sizeof stage, left);
    if (!(now.work > 0 && now.after > 0)) {
        snprintf(text, size, "%s left", stage);
        return;
    }
    format_clock(run, sizeof run, left + now.after / (now.work * share) * elapsed);
    snprintf(text, size, "%s left, %s to the end", stage, run);
}

/* `units` are done beyond now.done. */
static void format_line(char *text, size_t size, double units, double elapsed)
{
    bool bytes = strcmp(now.unit, "bytes") == 0;
    double done = (double)now.done + units, total = (double)now.total;
    double made = done - (double)now.done_first, rate = elapsed > 0 ? made / elapsed : 0;
    char a[32], b[32], r[32], left[80] = "";
    if (bytes) {
        fm_units_bytes(a, now.done);
        fm_units_bytes(b, now.total);
        fm_units_bytes(r, (uint64_t)rate);
    } else {
        snprintf(a, sizeof a, "%.*f", units > 0 && total < 1000 ? 1 : 0, done);
        snprintf(b, sizeof b, "%llu %s", (unsigned long long)now.total, now.unit);
        snprintf(r, sizeof r, "%.3g", rate);
    }
    if (rate > 0 && done < total)
        format_left(left, sizeof left, (total - done) / rate, made / total, elapsed);
    snprintf(text, size, "%s: %s of %s, %s/s%s%s", now.stage, a, b, r, *left ? ", " : "", left);
}

static void clear_line(void)
{
    if (now.shown && now.terminal)
        fputs("\r\033[K", stderr);
    now.shown = false;
}

static void enter_stage(const char *stage, uint64_t done, double t)
{
    snprintf(now.stage, sizeof now.stage, "%s", stage);
    now.began = now.last = t;
    now.done_first = done;
    now.work = next.work;
    now.after = next.after;
    next.work = next.after = 0;
}

static void plan(void *self, double work, double after)
{
    (void)self;
    pthread_mutex_lock(&lock);
    next.work = work;
    next.after = after;
    pthread_mutex_unlock(&lock);
}

/* Print the line if the last one is old enough; `units` are done beyond now.done. */
static void update(double units, double t)
{
    char line[256];
    if (t - now.last < (now.terminal ? SECONDS_TERMINAL : SECONDS_PLAIN))
        return;
    format_line(line, sizeof line, units, t - now.began);
    clear_line();
    fprintf(stderr, "%s: %s%s", now.tool, line, now.terminal ? "" : "\n");
    now.shown = now.terminal;
    now.last = t;
}

static void show(void *self, const char *stage, uint64_t done, uint64_t total, const char *unit)
{
    (void)self;
    pthread_mutex_lock(&lock);
    double t = fm_clock_now();
    if (next.work > 0 || strncmp(stage, now.stage, sizeof now.stage - 1) != 0 ||
        done < now.done_first)
        enter_stage(stage, done, t);
    now.done = done;
    now.total = total;
    now.unit = unit;
    update(0, t);
    pthread_mutex_unlock(&lock);
}

static void within(void *self, double units)
{
    (void)self;
    pthread_mutex_lock(&lock);
    if (now.unit)
        update(units, fm_clock_now());
    pthread_mutex_unlock(&lock);
}

static void say(const char *kind, const char *text)
{
    char sentence[FM_ERR_TEXT_BYTES];
    snprintf(sentence, sizeof sentence, "%s", text);
    fm_printable(sentence, false);
    pthread_mutex_lock(&lock);
    clear_line();
    fprintf(stderr, "%s: %s%s\n", now.tool, kind, sentence);
    pthread_mutex_unlock(&lock);
}

void fm_progress_warn(const char *text)
{
    say("warning: ", text);
}

static void warn(void *self, const char *text)
{
    (void)self;
    fm_progress_warn(text);
}

static void note(void *self, const char *text)
{
    (void)self;
    say("", text);
}

void fm_progress_begin(struct fm_progress *progress, const char *tool, bool quiet)
{
    const char *term = getenv("TERM");
    now.tool = tool;
    now.terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    *progress =
        quiet ? (struct fm_progress){0}
              : (struct fm_progress){
                    .report = show, .within = within, .phase = plan, .warn = warn, .note = note};
}

void fm_progress_end(void)
{
    pthread_mutex_lock(&lock);
    clear_line();
    pthread_mutex_unlock(&lock);
}
