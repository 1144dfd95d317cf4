/*
 * Exclusive use of a file: a lock file next to it, PATH.lock, which the kernel unlocks when the
 * process ends for any reason.
 */
#ifndef FM_LOCK_H
#define FM_LOCK_H

#include "lib/base/err.h"

#define FM_LOCK_SUFFIX ".lock"

struct fm_lock {
    int fd;
    char *path; /* descriptor and path of the lock; path NULL: nothing is locked */
};

/*
 * Lock `path` (NULL: nothing) for this process, whose id is written into the lock file.  FM_ELOCKED
 * if another process has it; FM_ECREATE, FM_EPERM or FM_EIO if no lock file can be created, or if a
 * file of that name is not a lock (such as poetry.lock), which is not changed.  On a filesystem
 * without flock(2) nothing is locked: two runs then only duplicate work, because files appear
 * whole.
 */
int fm_lock_acquire(struct fm_lock *lock, const char *path, struct fm_err *err);

/* Remove the lock; a zeroed struct is fine. */
void fm_lock_drop(struct fm_lock *lock);

#endif
