/*
 * The record of finished steps of a run of several steps: for each step its options, digests of its
 * inputs, and digests of its outputs.  A step whose options and inputs are the same, and whose
 * output is as it was, need not run again.
 *
 * It is a hidden JSON file in the folder of the run's stages, written whole or not at all:
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

#define FM_LEDGER_NAME ".fm-family"

struct fm_ledger {
    char *folder, *path;
    cJSON *json;
    struct fm_lock lock;
    bool made;                        /* the folder, and nothing in it is to be kept */
    const struct fm_run_options *run; /* for progress; borrowed */
};

/*
 * Read the record of `folder`, which need not exist; with `lock`, make the folder first, and lock
 * it until fm_ledger_close.  A child of a killed process may still hold the lock for a short time:
 * FM_ELOCKED after three seconds.  FM_ECREATE if a file of its name is not a
 * record, or not a regular file (links are not followed); FM_ECONFIG if it is of another version.
 */
int fm_ledger_open(struct fm_ledger *l, const char *folder, const struct fm_run_options *run,
                   bool lock, struct fm_err *err);
int fm_ledger_save(struct fm_ledger *l, struct fm_err *err);
/* Unlock.  A folder that was made for a run that saved no record is removed. */
void fm_ledger_close(struct fm_ledger *l); /* zeroed struct is fine */

/* A copy of a name or an option as the record holds it: JSON has no control characters in keys,
 * and no bytes that are not UTF-8, so in a text with such bytes, or with '%', whatever is not plain
 * ASCII is %XX.  Different texts give different words.  The caller frees it; NULL: out of memory.
 */
char *fm_ledger_word(const char *text);

/*
 * Add the digest of a file to the object `to`, under the key `what`; of a directory, that of every
 * regular file in it whose name does not begin with a dot, under "WHAT NAME".  FM_ESAVED if a
 * signal asks to stop (fm_signals_held); FM_ENOENT and other errors of fm_file_open.
 */
int fm_ledger_digest(struct fm_ledger *l, cJSON *to, const char *what, const char *path,
                     struct fm_err *err);

/* Add the strings of an object to another; what else it has is ignored. */
void fm_ledger_copy(cJSON *to, const cJSON *from);

/* The entry of a step, or NULL; `of` distinguishes steps with one name. */
cJSON *fm_ledger_step(const struct fm_ledger *l, const char *step, const char *of);
/* Replace the entry; takes ownership of `entry`, even on failure.  FM_ENOMEM. */
int fm_ledger_enter(struct fm_ledger *l, const char *step, const char *of, cJSON *entry,
                    struct fm_err *err);

/* Remove the lock that a killed process may have left next to a file. */
int fm_ledger_unlock(const char *path, struct fm_err *err);

/* The device and inode of a file or directory, or "" if it does not exist. */
#define FM_LEDGER_IDENTITY 64
void fm_ledger_identity(char text[FM_LEDGER_IDENTITY], const char *path);

/*
 * The first difference between two arrays of strings, or between two objects of strings, as a
 * phrase in `text`: "--seq-len was 64, now it is 32", "mine.txt has changed".  False if they are
 * equal. `kept`: members that only `now` has do not count.
 */
#define FM_LEDGER_TEXT 256
bool fm_ledger_differ(char text[FM_LEDGER_TEXT], const cJSON *was, const cJSON *now, bool kept);

#endif
