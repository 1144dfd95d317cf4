/*
 * The temporaries of this process, in a table of fixed size that a signal handler
 * can walk.  Private to formats/: outputs enter their names here before they make
 * them and leave when the name is gone.  Also the steps that outputs and directories share.
 */
#ifndef FM_TEMPORARY_H
#define FM_TEMPORARY_H

#include <stdbool.h>

#include "lib/base/err.h"

#define FM_TEMPORARIES_MAX 64 /* outputs open at once */

/*
 * A name for a temporary beside `path`: DIR/.NAME.KIND-PID-RAND, entered into the table; free()
 * it.  NULL with FM_ENOMEM, FM_ECREATE (the path ends in no name, or is too long), FM_EBUG (table
 * full).
 */
char *fm_temporary_new(const char *path, const char *kind, bool directory, int *slot,
                       struct fm_err *err);
/* Whether a temporary could be made beside `path`, with nothing made: FM_ECREATE, FM_EPERM. */
int fm_temporary_check(const char *path, struct fm_err *err);
/*
 * Around each call that makes a temporary or gives one its final name: fm_file_remove_temporaries
 * may run on another thread, and nothing may come, or be seen half removed, behind its back.
 * FM_ESAVED, with nothing to leave, once that has begun.
 */
int fm_temporary_enter(struct fm_err *err);
void fm_temporary_leave(void);
/* Leave the table; the file stays.  A slot below 0 is fine. */
void fm_temporary_forget(int slot);
/* Remove a directory and the files in it (no directories inside); async-signal-safe, silent. `slot`
 * is that of a directory, which holds the descriptor that this needs. */
void fm_temporary_rmdir(int slot, const char *path);

/* The sentence and code for errno of a creation that failed. */
int fm_temporary_fail(const char *path, struct fm_err *err);
/* fsync, which pipes and some filesystems do not know. */
int fm_temporary_flush(int fd, const char *name, struct fm_err *err);
/* The directory of `path`, to be flushed once something in it was renamed.  It is opened before, as
 * that may fail for want of a descriptor.  *fd is -1 where it may be written and not read. */
int fm_temporary_open_parent(int *fd, const char *path, struct fm_err *err);
/* rename(2), never over something that came into being meanwhile (EEXIST). */
int fm_temporary_rename(const char *from, const char *to);

#endif
