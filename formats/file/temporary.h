/*
 * The temporary files of this process, in a table of fixed size that a signal handler can read.
 * Private to formats/.  An output enters a name before it creates the file, and removes the entry
 * when the name no longer exists.  Also steps that outputs and directories share.
 */
#ifndef FM_TEMPORARY_H
#define FM_TEMPORARY_H

#include <stdbool.h>

#include "lib/base/err.h"

#define FM_TEMPORARIES_MAX 64 /* limit of outputs open at once */

/*
 * A name for a temporary beside `path`: DIR/.NAME.KIND-HOST-PID-RAND, entered into the table;
 * free() it.  Temporaries of this path and kind that killed processes left are removed first: those
 * that no process holds locked (fm_temporary_own).  NULL with FM_ENOMEM, FM_ECREATE (the path ends
 * in no name, or is too long), FM_EBUG (table full).
 */
char *fm_temporary_new(const char *path, const char *kind, bool directory, int *slot,
                       struct fm_err *err);
/* Call `act` for each directory of this path and kind that a killed process left, which is locked
 * meanwhile; `home` is the directory that it is in. */
void fm_temporary_each_left(const char *path, const char *kind,
                            void (*act)(const char *home, const char *left));
/* Check that a temporary could be created beside `path`; creates nothing.  FM_ECREATE, FM_EPERM. */
int fm_temporary_check(const char *path, struct fm_err *err);
/*
 * Call these around each call that creates a temporary or gives it its final name, because
 * fm_file_remove_temporaries may run on another thread: once it has begun, no file may be created
 * or renamed.  FM_ESAVED after that; then do not call fm_temporary_leave.
 */
int fm_temporary_enter(struct fm_err *err);
void fm_temporary_leave(void);
/*
 * Lock a temporary that was just created, as long as `fd` or a copy of it is open.  False if
 * another process removed it before the lock; it must be created again.
 */
bool fm_temporary_own(int fd);
/* Remove the entry from the table; the file is kept.  Does nothing if slot is below 0. */
void fm_temporary_forget(int slot);
/* Remove a directory and the files in it (no directories inside); async-signal-safe, silent. `slot`
 * is the entry of a temporary directory, whose reserved descriptor is used, or -1. */
void fm_temporary_rmdir(int slot, const char *path);

/* Set the sentence and code for errno of a failed creation. */
int fm_temporary_fail(const char *path, struct fm_err *err);
/* fsync; pipes and filesystems that do not support it are not an error. */
int fm_temporary_flush(int fd, const char *name, struct fm_err *err);
/* fsync the directory of `path` after the rename; fd -1: nothing.  The error says that the file or
 * directory `path` is whole. */
int fm_temporary_flush_parent(int fd, const char *path, struct fm_err *err);
/* Open the directory of `path`, to flush it after a rename.  It is opened before the rename,
 * because the open may fail for lack of a descriptor.  *fd is -1 if the directory is writable but
 * not readable. */
int fm_temporary_open_parent(int *fd, const char *path, struct fm_err *err);
/* rename(2) that never replaces a file which appeared in the meantime (EEXIST). */
int fm_temporary_rename(const char *from, const char *to);

#endif
