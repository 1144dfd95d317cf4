/*
 * The steps of a run, and the record of those that are finished: for each its options, digests of
 * its inputs, and digests of its outputs.  A step whose options and inputs are the same, and whose
 * output is as it was, need not run again.
 *
 * The record is a hidden JSON file in the folder of the run's stages, written whole or not at all:
 *
 *     {"fm_family": "0.1.0",              version of the suite
 *      "files": {"mine.txt": "801 4711 1234 ...", ...},
 *      "steps": {"rank": {"options": ["--seq-len=512", ...], "inputs": {"--text 1": DIGEST, ...},
 *                "before": "801 4712", "output": {"ranked.fm": DIGEST}}, ...}}
 *
 * "files" avoids reading unchanged files again: a file with the device, inode, size, mtime and
 * ctime that it had when its digest was computed still has that digest.  A step without "output"
 * has begun and not ended; "before" is the file that its output had replaced ("" for none).
 */
#ifndef FM_LEDGER_H
#define FM_LEDGER_H

#include <stdbool.h>

#include "formats/file/lock.h"
#include "formats/json/json.h"
#include "lib/run/run.h"

/* A step reads the output of the one before it.  Pointers are borrowed. */
struct fm_ledger_step {
    const char *name, *of; /* key of its record; `of` is "" if its output is in the folder */
    const char *doing;     /* "packing" */
    const char *output;    /* name under which its output is recorded, or NULL */
    char *path, *state;    /* output, and saved state while unfinished; or NULL */
    char **options;        /* NULL-terminated, sorted: those that affect the output; or NULL */
    const cJSON *inputs;   /* digests of its other input files, or NULL */
    bool skip;             /* not part of this run */
};

struct fm_ledger {
    const struct fm_ledger_step *step; /* in order; set before fm_ledger_open */
    int steps;
    const struct fm_run_options *run; /* for notes and progress; set likewise */
    char *folder, *path;
    cJSON *json;
    struct fm_lock lock;
    bool made; /* this run created the folder, and it holds nothing worth keeping */
};

/*
 * Read the record of `folder`, which need not exist; with `lock`, make the folder first, and lock
 * it until fm_ledger_close.  A child of a killed process may still hold the lock for a short time:
 * FM_ELOCKED after three seconds.  FM_ECREATE if a file of its name is not a record, or not a
 * regular file (links are not followed); FM_ECONFIG if it is of another version.
 */
int fm_ledger_open(struct fm_ledger *l, const char *folder, bool lock, struct fm_err *err);
/* Unlock.  A folder that was made for a run that saved no record is removed. */
void fm_ledger_close(struct fm_ledger *l); /* zeroed struct is fine */

/*
 * Add the digest of a file to the object `to`, under the key `what`; of a directory, that of every
 * regular file in it whose name does not begin with a dot, under "WHAT NAME".  FM_ESAVED if a
 * signal asks to stop (fm_signals_held); FM_ENOENT and other errors of fm_file_open.
 */
int fm_ledger_digest(struct fm_ledger *l, cJSON *to, const char *what, const char *path,
                     struct fm_err *err);

/*
 * Set *first to the first step that is not finished, or whose options or inputs have changed; or to
 * an earlier one whose output is needed and gone; or to l->steps.  Notes say why a step runs again.
 * FM_ECONFIG rather than throw away what may be hours of work: a finished first step, or one with
 * a state file.  FM_ECREATE if a step would replace a file that it did not make.
 */
int fm_ledger_first(int *first, struct fm_ledger *l, struct fm_err *err);
/* The step before step i, or -1. */
int fm_ledger_before(const struct fm_ledger_step *step, int i);
/* Whether step i may replace its output: this run, or an earlier one, made it. */
bool fm_ledger_made(const struct fm_ledger *l, int i);
/* Save that step i begins, or that it has ended. */
int fm_ledger_begin(struct fm_ledger *l, int i, struct fm_err *err);
int fm_ledger_end(struct fm_ledger *l, int i, struct fm_err *err);

#endif
