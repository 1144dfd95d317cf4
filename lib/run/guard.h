/*
 * What a run may write: one rule for every file that a tool makes, asked before hours of work and
 * again where a file appears.
 *
 *   - Nothing that the run reads is written, and nothing twice: files are compared by device and
 *     inode, so that links and detours lead nowhere, and by directory and name where they are not
 *     there yet.  Index and words of token files belong together.
 *   - Nothing is written into a directory that is read, at any depth, and no directory is replaced
 *     that holds what is read.
 *   - Nothing that exists is replaced without --force, but a report, plot or state by the tool that
 *     made it.
 *
 * The names come from the option table (cmd/options.c).  The content of a file says which tool made
 * it: lib/run/report.h, lib/state/journal.h, lib/bench/plot.h.
 */
#ifndef FM_GUARD_H
#define FM_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

#define FM_GUARD_READS_MAX 64
#define FM_GUARD_WRITES_MAX 8

/* The text (NUL-terminated) is what `tool` ("fm-rank") writes for this purpose. */
typedef bool fm_guard_own(const char *text, size_t size, const char *tool);

/* FM_ECREATE where something is in the way of a directory that is to be made. */
typedef int fm_guard_directory(const char *path, bool force, struct fm_err *err);

enum fm_guard_kind {
    FM_GUARD_RESULT,    /* a file; "-" is standard output, as in the next two */
    FM_GUARD_DIRECTORY, /* an export, by the rule of `directory` */
    FM_GUARD_SIDE,      /* a report or plot; its own earlier one is replaced */
    FM_GUARD_STATE, /* a state file, by lib/state/journal.h's own rule, and its lock beside it */
    FM_GUARD_LOCK
};

struct fm_guard_read {
    const char *what, *path; /* "--tokens"; path is borrowed, not always terminated */
    size_t length;
};

struct fm_guard_write {
    const char *what, *path; /* "--report", borrowed */
    enum fm_guard_kind kind;
    fm_guard_own *own;
};

/* Zeroed but for tool, force, replaces and directory, then filled by the two verbs below. */
struct fm_guard {
    const char *tool;
    bool force;
    bool replaces; /* as with force, but the result alone */
    fm_guard_directory *directory;
    struct fm_guard_read read[FM_GUARD_READS_MAX];
    int reads;
    struct fm_guard_write write[FM_GUARD_WRITES_MAX];
    int writes;
};

/* A file or directory that the run reads, "-" for standard input; NULL is nothing.  `weighted`:
 * FILE[:WEIGHT]. */
void fm_guard_reads(struct fm_guard *g, const char *what, const char *path, bool weighted);

/* What the run writes; NULL is nothing.  `own` is for FM_GUARD_SIDE. */
void fm_guard_writes(struct fm_guard *g, const char *what, const char *path,
                     enum fm_guard_kind kind, fm_guard_own *own);

/*
 * The rule, with nothing read but names and the beginnings of files.  FM_EUSAGE where the
 * command line is wrong about files: an input, a file in a directory that is read, one file twice.
 * FM_ECREATE where a file is in the way or its directory is not there, FM_EPERM where that must
 * not be written.  Standard output, where it is a regular file, is not one of the inputs either.
 */
int fm_guard_check(const struct fm_guard *g, struct fm_err *err);

/*
 * Write a report or plot, whole or not at all, by the last part of the rule.  Where that fails, its
 * own earlier one is removed: nobody shall take it for what this run found.
 */
int fm_guard_text(const char *path, const char *text, fm_guard_own *own, const char *tool,
                  bool force, struct fm_err *err);

#endif
