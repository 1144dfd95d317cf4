/*
 * Messages of a run to its caller: progress, warnings, notes, and errors for an output or a run
 * that would not fit.
 */
#include "lib/run/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "formats/file/file.h"
#include "lib/base/units.h"

int fm_run_check_stream(const struct fm_outputs *outputs, struct fm_err *err)
{
    return strcmp(outputs->path, "-") == 0 ? fm_output_check_screen(err) : FM_OK;
}

int fm_run_space(const char *path, const char *what, uint64_t bytes, uint64_t *free_bytes,
                 struct fm_err *err)
{
    char needed[32], has[32];
    int rc = fm_file_free_space(path, free_bytes, err);
    if (rc || *free_bytes >= bytes)
        return rc;
    fm_units_bytes(needed, bytes);
    fm_units_bytes(has, *free_bytes);
    return fm_fail(err, FM_ECREATE, "%s: the %s takes %s, but only %s are free there", path, what,
                   needed, has);
}

int fm_run_announce(const struct fm_run_options *run, struct fm_err *err)
{
    return run->announce.say ? run->announce.say(run->announce.self, err) : FM_OK;
}

void fm_run_abandon(void)
{
    fm_file_remove_temporaries();
}

void fm_run_report(const struct fm_run_options *run, const char *stage, uint64_t done,
                   uint64_t total, const char *unit)
{
    if (run->progress.report)
        run->progress.report(run->progress.self, stage, done, total, unit);
}

void fm_run_within(const struct fm_run_options *run, double units)
{
    if (run->progress.within)
        run->progress.within(run->progress.self, units);
}

void fm_run_phase(const struct fm_run_options *run, double work, double after)
{
    if (run->progress.phase)
        run->progress.phase(run->progress.self, work, after);
}

static void tell(void (*to)(void *self, const char *text), void *self, const char *fmt, va_list ap)
{
    char text[FM_ERR_TEXT_BYTES];
    if (!to)
        return;
    vsnprintf(text, sizeof text, fmt, ap);
    to(self, text);
}

void fm_run_warn(const struct fm_run_options *run, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tell(run->progress.warn, run->progress.self, fmt, ap);
    va_end(ap);
}

void fm_run_note(const struct fm_run_options *run, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tell(run->progress.note, run->progress.self, fmt, ap);
    va_end(ap);
}

int fm_run_memory(const struct fm_run_options *run, uint64_t least, struct fm_err *err)
{
    char limit[32], needed[32];
    fm_units_bytes(limit, fm_machine_memory(&run->machine));
    fm_units_option(needed, least);
    if (run->machine.memory_firm)
        return fm_fail(err, FM_EUSAGE,
                       "--memory of %s is less than this run needs; use --memory %s or more", limit,
                       needed);
    fm_run_warn(run, "this run is planned for %s of memory, but needs %s (see --memory)", limit,
                needed);
    return FM_OK;
}
