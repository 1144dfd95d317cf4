/*
 * One process at a time on a file: a lock beside it, PATH.lock, that the kernel lets go when its
 * process ends, however it ends.
 */
#ifndef FM_LOCK_H
#define FM_LOCK_H

#include "lib/base/err.h"

#define FM_LOCK_SUFFIX ".lock"

struct fm_lock {
    int fd;
    char *path; /* of the lock; NULL: nothing is locked */
};

/*
 * Lock `path` (NULL: nothing) for this process, whose number is written into the lock.  FM_ELOCKED
 * where another has it, FM_ECREATE, FM_EPERM, FM_EIO where no lock can be made, or a file that is
 * no lock (poetry.lock of a project) has its name: that one stays as it is.  A filesystem
 * without flock(2) locks nothing: two runs then only waste each other's time, since files appear
 * whole.
 */
int fm_lock_acquire(struct fm_lock *lock, const char *path, struct fm_err *err);

/* Remove the lock; a zeroed struct is fine. */
void fm_lock_drop(struct fm_lock *lock);

#endif
