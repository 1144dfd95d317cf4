/*
 * The lock is a flock on PATH.lock, not the existence of that file: the kernel releases a flock
 * when the process ends, so a killed run leaves no lock, only a file that the next run reuses.  The
 * file is removed while it is still locked, and a new holder checks that the name still refers to
 * the file that it locked. Otherwise two processes could hold locks on two files that had the same
 * name at different times.
 */
#include "formats/file/lock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/file/file.h"
#include "formats/file/temporary.h"

/* True if `path` still names the file that we opened; its previous holder may have removed it. */
static bool is_there(int fd, const char *path)
{
    struct stat mine, its;
    return fstat(fd, &mine) == 0 && stat(path, &its) == 0 && mine.st_dev == its.st_dev &&
           mine.st_ino == its.st_ino;
}

/* Read the file as a string; false with errno if it cannot be read. */
static bool read_lock(int fd, char *text, size_t size)
{
    ssize_t n;
    do
        n = pread(fd, text, size - 1, 0);
    while (n < 0 && errno == EINTR);
    text[n > 0 ? n : 0] = '\0';
    return n >= 0;
}

/* FM_ECREATE unless it is empty or contains a process id: any other file is not a lock of ours. */
static int check_lock(const struct fm_lock *lock, struct fm_err *err)
{
    struct stat st;
    char text[32] = "";
    bool small =
        fstat(lock->fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size < (off_t)sizeof text;
    if (small && !read_lock(lock->fd, text, sizeof text))
        return fm_fail_errno(err, "cannot read '%s'", lock->path);
    size_t digits = strspn(text, "0123456789");
    if (small && (!*text || (digits > 0 && strcmp(text + digits, "\n") == 0)))
        return FM_OK;
    return fm_fail(err, FM_ECREATE, "'%s' is not a lock of a run; choose another name", lock->path);
}

static int refuse(const struct fm_lock *lock, const char *path, struct fm_err *err)
{
    char who[24] = "";
    size_t digits = read_lock(lock->fd, who, sizeof who) ? strspn(who, "0123456789") : 0;
    who[digits] = '\0';
    return fm_fail(err, FM_ELOCKED,
                   "'%s' is in use by another run%s%s; wait for it to end, or stop it", path,
                   digits ? ", process " : "", who);
}

int fm_lock_acquire(struct fm_lock *lock, const char *path, struct fm_err *err)
{
    *lock = (struct fm_lock){.fd = -1};
    if (!path)
        return FM_OK;
    if (asprintf(&lock->path, "%s" FM_LOCK_SUFFIX, path) < 0) {
        lock->path = NULL;
        return fm_fail(err, FM_ENOMEM, "no memory for the name '%s" FM_LOCK_SUFFIX "'", path);
    }
    int rc = FM_OK;
    while (!rc) {
        int fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
        if ((lock->fd = fm_file_above_standard(fd)) < 0)
            rc = fm_temporary_fail(lock->path, err);
        else if (check_lock(lock, err))
            rc = err->code;
        else if (flock(lock->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
            rc = refuse(lock, path, err);
        else if (is_there(lock->fd, lock->path))
            break;
        if (lock->fd >= 0)
            close(lock->fd);
    }
    if (!rc) {
        /* The process, for people: without it the lock is as good. */
        char text[24];
        int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
        if (ftruncate(lock->fd, 0) != 0 || pwrite(lock->fd, text, (size_t)n, 0) != n)
            errno = 0;
        return FM_OK;
    }
    free(lock->path);
    *lock = (struct fm_lock){.fd = -1};
    return rc;
}

void fm_lock_drop(struct fm_lock *lock)
{
    if (!lock->path)
        return;
    assert(lock->fd >= 0);
    unlink(lock->path); /* while we still hold the lock */
    close(lock->fd);
    free(lock->path);
    *lock = (struct fm_lock){.fd = -1};
}
