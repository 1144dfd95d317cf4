/*
 * Rules for the files that a run may write.  Every output is checked at the start, before hours of
 * work; the last rule is checked again before a file gets its final name:
 *
 * - No file that the run reads is written, and no file is written twice.  Existing files are
 * compared by device and inode, so links do not matter; others by directory and name.  A token
 * file and its index count as one file.
 *
 * - No file is written into a directory that is read, at any depth, and no directory that contains
 * a file that is read is replaced.
 *
 * - No existing file is replaced without --force, except that a tool may replace a plot or state
 * that it made.
 *
 * The names come from the option table (cmd/options.c).  The content of a file identifies the tool
 * that made it: lib/state/journal.h, lib/bench/plot.h.
 */
#ifndef FM_GUARD_H
#define FM_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

#define FM_GUARD_READS_MAX 64
#define FM_GUARD_WRITES_MAX 8

/* True if the text (NUL-terminated) was written by `tool` ("fm-rank") for this purpose. */
typedef bool fm_guard_own(const char *text, size_t size, const char *tool);

/* FM_ECREATE if an existing file prevents creating a directory. */
typedef int fm_guard_directory(const char *path, bool force, struct fm_err *err);

enum fm_guard_kind {
    FM_GUARD_RESULT,    /* a file; "-" is standard output, as in the next two */
    FM_GUARD_DIRECTORY, /* an export, checked by `directory` */
    FM_GUARD_SIDE,      /* a plot; an earlier one of the same tool is replaced */
    FM_GUARD_STATE,     /* a state file, with the rule of lib/state/journal.h, and its lock next to
                           it */
    FM_GUARD_FOLDER,    /* a directory, existing or not, in which the run keeps files of its own
                           with others */
    FM_GUARD_LOCK
};

struct fm_guard_read {
    const char *what, *path; /* "--tokens"; borrowed */
};

struct fm_guard_write {
    const char *what, *path; /* "--plot", borrowed */
    enum fm_guard_kind kind;
    fm_guard_own *own;
};

/* Set tool, force and directory, zero the rest, then use the two functions below. */
struct fm_guard {
    const char *tool;
    bool force;
    fm_guard_directory *directory;
    struct fm_guard_read read[FM_GUARD_READS_MAX];
    int reads;
    struct fm_guard_write write[FM_GUARD_WRITES_MAX];
    int writes;
};

/* Add a file or directory that the run reads, "-" for standard input; NULL adds nothing. */
void fm_guard_reads(struct fm_guard *g, const char *what, const char *path);

/* Add a file that the run writes; NULL adds nothing.  `own` is for FM_GUARD_SIDE. */
void fm_guard_writes(struct fm_guard *g, const char *what, const char *path,
                     enum fm_guard_kind kind, fm_guard_own *own);

/*
 * Check the rules without reading the content of any input.  FM_EUSAGE if an output is also an
 * input, is in a directory that is read, or is written twice.  FM_ECREATE if an output exists or
 * its directory does not, FM_EPERM if the directory is not writable, FM_EIO if a directory that is
 * read cannot be listed completely.  If standard output is a regular file, it must not be one of
 * the inputs either.
 */
int fm_guard_check(const struct fm_guard *g, struct fm_err *err);

/*
 * Write a plot, completely or not at all, following the last rule above.  On failure an
 * earlier file of the tool is removed, so that it is not mistaken for the result of this run.
 */
int fm_guard_text(const char *path, const char *text, fm_guard_own *own, const char *tool,
                  bool force, struct fm_err *err);

#endif
