/*
 * This room, lib/run: what the runs of all tools have in common: options, checks of output files,
 * tasks that can be stopped, and reports.  It does not depend on models or streams.  In reading
 * order: this header, inputs, machine, ranks (the beginning of a run of many processes), guard
 * (outputs), confine (what may be opened), taskgroup, report; child and ledger (runs of several
 * steps).
 *
 * The options that every tool has are in three groups: inputs, machine and outputs.  cmd/cli.c
 * fills them from the command line, and the library reads them; a function that needs one group
 * takes only that one.
 */
#ifndef FM_RUN_H
#define FM_RUN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/run/inputs.h"
#include "lib/run/machine.h"

/* Progress of a long run: `done` of `total` units ("layers", "steps", "bytes") of `stage`. */
struct fm_progress {
    void (*report)(void *self, const char *stage, uint64_t done, uint64_t total, const char *unit);
    /* `units` more of the stage that was reported last are done, a fraction of the unit that is
     * being worked on or of several. */
    void (*within)(void *self, double units);
    /* Called before a stage is reported: the stage does `work`, in FLOPs or a similar unit, and
     * `after` remains when it ends. */
    void (*phase)(void *self, double work, double after);
    /* A warning for the user, one line: "3 experts saw no token". */
    void (*warn)(void *self, const char *text);
    /* A note for the user that is not a warning: "--budget 0.4: the nearest member is ...". */
    void (*note)(void *self, const char *text);
    void *self;
};

/*
 * Called once, by the process that writes the result, to print the run's report, when the result is
 * complete on disk but not yet renamed to its final name.  If it fails, the result is discarded,
 * and the same run can be started again.
 */
struct fm_announce {
    int (*say)(void *self, struct fm_err *err); /* NULL: no messages */
    void *self;
};

/* Outputs of a run. */
struct fm_outputs {
    const char *path;  /* -o FILE, "-": standard output */
    bool force;        /* replace an existing output */
    const char *state; /* --state FILE, or NULL */
};

struct fm_run_options {
    struct fm_inputs inputs;
    struct fm_machine machine;
    struct fm_outputs outputs;
    struct fm_progress progress;
    struct fm_announce announce;
    const atomic_int *stop; /* set to nonzero by any thread: save and end with FM_ESAVED */
};

/* FM_EUSAGE if the result would go to a terminal; to be called before hours of work.  For files see
 * lib/run/guard.h. */
int fm_run_check_stream(const struct fm_outputs *outputs, struct fm_err *err);

/*
 * Set *free_bytes to the free space of the file system of `path`.  FM_ECREATE, naming `what`
 * ("bundle"), if `bytes` do not fit.
 */
int fm_run_space(const char *path, const char *what, uint64_t bytes, uint64_t *free_bytes,
                 struct fm_err *err);

/* Remove every unfinished output.  Called at the end and, since it is async-signal-safe, after a
 * second signal. */
void fm_run_abandon(void);

/* Call for a run that needs at least `least` bytes, more than its memory limit.  FM_EUSAGE if the
 * limit is firm; else a warning and FM_OK. */
int fm_run_memory(const struct fm_run_options *run, uint64_t least, struct fm_err *err);

/* Call run->announce, if it is set. */
int fm_run_announce(const struct fm_run_options *run, struct fm_err *err);

/* Report progress; does nothing if run->progress has no function for it. */
void fm_run_report(const struct fm_run_options *run, const char *stage, uint64_t done,
                   uint64_t total, const char *unit);
void fm_run_within(const struct fm_run_options *run, double units);
void fm_run_phase(const struct fm_run_options *run, double work, double after);
void fm_run_warn(const struct fm_run_options *run, const char *fmt, ...) FM_PRINTF(2, 3);
void fm_run_note(const struct fm_run_options *run, const char *fmt, ...) FM_PRINTF(2, 3);

#endif
