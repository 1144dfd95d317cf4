/*
 * A file that appears whole: it is written under a hidden name in its final directory, so that
 * rename is atomic and free space is checked on the right filesystem; then it is flushed and
 * renamed, and the directory is flushed.  Standard output cannot give this guarantee, so streams
 * have an end mark.
 */
#include "formats/file/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "formats/file/temporary.h"
#include "lib/base/mem.h"
#include "lib/base/signals.h"
#include "lib/base/trace.h"

static const char *name_of(const struct fm_output *o)
{
    return o->path ? o->path : "standard output";
}

/* The sentence for errno of a failed write, with the free space if the disk is full. */
static int fail_write(const struct fm_output *o, uint64_t wanted, struct fm_err *err)
{
    uint64_t free_bytes = 0;
    if (errno == ENOSPC && o->temp) {
        struct fm_err unused = {0};
        fm_file_free_space(o->temp, &free_bytes, &unused);
        return fm_fail(err, FM_EIO,
                       "cannot write '%s': no space left for %" PRIu64 " bytes (%" PRIu64 " free)",
                       name_of(o), wanted, free_bytes);
    }
    return fm_fail_errno(err, "cannot write '%s'", name_of(o));
}

int fm_output_check(const char *path, bool force, struct fm_err *err)
{
    struct stat st;
    size_t len = strlen(path);
    assert(strcmp(path, "-") != 0);
    bool there = lstat(path, &st) == 0;
    if (there && !S_ISREG(st.st_mode))
        return fm_fail(err, FM_ECREATE,
                       "'%s' exists and is not a regular file; choose another name", path);
    if (there && !force) {
        fm_fail(err, FM_ECREATE, "'%s' exists", path);
        return fm_advise(err, FM_ADVISE_REPLACE);
    }
    if (len > 0 && path[len - 1] == '/')
        return fm_fail(err, FM_ECREATE,
                       "cannot create '%s': the name of a file cannot end in a slash", path);
    return fm_temporary_check(path, err);
}

/*
 * No signal interrupts a write(2) that waits for a slow reader (lib/base/signals.h), so writes to a
 * pipe must not block.  Blocking is a property of the open pipe, which other processes share, so we
 * open it again.  Where that is impossible, as for a socket, we write small pieces when poll(2)
 * reports room for one.
 */
static void wait_outside(struct fm_output *o, mode_t mode)
{
    char path[32];
    if (!S_ISFIFO(mode) && !S_ISSOCK(mode))
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", o->fd);
    int fd = S_ISFIFO(mode) ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    o->small = fd < 0;
    if (fd < 0)
        return;
    close(o->fd);
    o->fd = fd;
}

/*
 * Open MPI's daemon creates a pseudoterminal for the standard output of each process that it
 * starts, and forwards its data to mpirun, which writes it to its own standard output.  If our
 * process is a child of mpirun itself, /proc shows whether that output is a pipe or a file, which
 * take binary data.  With a daemon on another machine, or a shell in between, /proc does not show
 * it, and the pseudoterminal counts as a terminal.
 */
static bool is_passed_on(void)
{
    char path[40];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getppid(), STDOUT_FILENO);
    return getenv("OMPI_COMM_WORLD_SIZE") && stat(path, &st) == 0 &&
           (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode));
}

int fm_output_check_screen(struct fm_err *err)
{
    if (!isatty(STDOUT_FILENO) || is_passed_on())
        return FM_OK;
    return fm_fail(err, FM_EUSAGE,
                   "standard output is a terminal; name an output file or use a pipe");
}

/* If standard output is a terminal whose data is passed on, turn off its output processing. */
static void pass_bytes(void)
{
    struct termios t;
    if (tcgetattr(STDOUT_FILENO, &t) != 0 || !(t.c_oflag & OPOST))
        return;
    t.c_oflag &= ~(tcflag_t)OPOST;
    tcsetattr(STDOUT_FILENO, TCSADRAIN, &t);
}

static int open_stdout(struct fm_output *o, bool binary, struct fm_err *err)
{
    struct stat st;
    int flags = fcntl(STDOUT_FILENO, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
        return fm_fail(err, FM_EUSAGE, "standard output is closed; name an output file");
    if (binary && fm_output_check_screen(err))
        return err->code;
    if (binary)
        pass_bytes();
    o->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (o->fd < 0 || fstat(o->fd, &st) != 0)
        return fm_fail_errno(err, "cannot use standard output");
    o->seekable = S_ISREG(st.st_mode) && st.st_size == 0 && !(flags & O_APPEND) &&
                  lseek(o->fd, 0, SEEK_CUR) == 0;
    wait_outside(o, st.st_mode);
    return FM_OK;
}

/* Create o->temp in the directory of o->path. */
static int make_temporary(struct fm_output *o, struct fm_err *err)
{
    o->temp = fm_temporary_new(o->path, "fm", false, &o->slot, err);
    if (!o->temp)
        return err->code;
    if (fm_temporary_enter(err))
        return err->code;
    int fd = open(o->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    fm_temporary_leave();
    o->fd = fm_file_above_standard(fd);
    if (o->fd < 0)
        return fm_temporary_fail(o->path, err);
    o->seekable = true;
    if (fm_temporary_own(o->fd))
        return FM_OK;
    close(o->fd);
    o->fd = -1;
    fm_temporary_forget(o->slot);
    free(o->temp);
    return make_temporary(o, err);
}

int fm_output_open(struct fm_output *o, const char *path, bool binary, bool force,
                   struct fm_err *err)
{
    *o = (struct fm_output){.fd = -1, .slot = -1, .force = force};
    int rc;
    if (strcmp(path, "-") == 0)
        rc = open_stdout(o, binary, err);
    else if (!(rc = fm_output_check(path, force, err)))
        rc = (o->path = fm_strdup(path, err)) ? make_temporary(o, err) : err->code;
    if (rc)
        fm_output_abandon(o);
    return rc;
}

int fm_output_reserve(struct fm_output *o, uint64_t size, struct fm_err *err)
{
    if (!o->temp || size == 0)
        return FM_OK;
    if (size > INT64_MAX)
        return fm_fail(err, FM_EIO, "cannot write '%s': %" PRIu64 " bytes are too many", name_of(o),
                       size);
    int rc;
    do
        rc = fallocate(o->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size);
    while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return FM_OK;
    if (errno != EOPNOTSUPP && errno != ENOSYS)
        return fail_write(o, size, err);
    uint64_t free_bytes = 0;
    rc = fm_file_free_space(o->temp, &free_bytes, err);
    if (!rc && free_bytes < size) {
        errno = ENOSPC;
        return fail_write(o, size, err);
    }
    return rc;
}

/* Wait until at least PIPE_BUF bytes can be written, or the reader has closed the pipe. */
static int await_reader(const struct fm_output *o, struct fm_err *err)
{
    if (fm_signals_await(o->fd, POLLOUT))
        return FM_OK;
    return fm_fail(err, FM_ESAVED, "stopped while it waited for the reader of %s", name_of(o));
}

int fm_output_write(struct fm_output *o, const void *src, size_t size, struct fm_err *err)
{
    size_t done = 0;
    int rc = FM_OK;
    assert(o->fd >= 0);
    FM_TRACE(FM_TRACE_IO, "write %zu bytes at %" PRIu64 " of %s", size, o->at, name_of(o));
    while (done < size && !rc) {
        size_t piece = size - done;
        if (o->small && (rc = await_reader(o, err)))
            return rc;
        if (o->small && piece > PIPE_BUF)
            piece = PIPE_BUF;
        ssize_t put = write(o->fd, (const char *)src + done, piece);
        if (put == 0)
            errno = ENOSPC;
        if (put > 0) {
            done += (size_t)put;
            o->at += (uint64_t)put;
        } else if (put < 0 && errno == EAGAIN) {
            rc = await_reader(o, err);
        } else if (put == 0 || errno != EINTR) {
            rc = fail_write(o, size - done, err);
        }
    }
    return rc;
}

int fm_output_write_at(struct fm_output *o, uint64_t offset, const void *src, size_t size,
                       struct fm_err *err)
{
    assert(o->seekable && offset <= INT64_MAX && size <= INT64_MAX - offset);
    size_t done = fm_file_write(o->fd, offset, src, size);
    return done == size ? FM_OK : fail_write(o, size - done, err);
}

/* Rename the flushed and closed temporary. */
static int appear(struct fm_output *o, struct fm_err *err)
{
    int parent = -1, failed;
    assert(o->temp && o->path && o->fd < 0);
    if (!o->inside && fm_temporary_open_parent(&parent, o->path, err))
        return err->code;
    int rc = fm_temporary_enter(err);
    if (rc)
        goto out;
    failed = o->force ? rename(o->temp, o->path) : fm_temporary_rename(o->temp, o->path);
    fm_temporary_leave();
    if (failed) {
        rc = fm_temporary_fail(o->path, err);
        goto out;
    }
    free(o->temp);
    o->temp = NULL;
    /* With force it may have replaced a file, so it is kept even if the flush fails. */
    if (o->force)
        rc = fm_temporary_flush_parent(parent, o->path, err);
    else if (parent >= 0 && (rc = fm_temporary_flush(parent, o->path, err)))
        unlink(o->path);
out:
    if (parent >= 0)
        close(parent);
    return rc;
}

int fm_output_flush(const struct fm_output *o, struct fm_err *err)
{
    return fm_temporary_flush(o->fd, name_of(o), err);
}

int fm_output_commit(struct fm_output *o, struct fm_err *err)
{
    assert(o->fd >= 0);
    int rc = fm_output_flush(o, err);
    int fd = o->fd;
    /* Another descriptor keeps the file locked from the close until the rename: a process that
     * writes the same output would take it for one that a killed process left, and remove it. */
    int lock = o->temp && !o->inside ? fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
    o->fd = -1;
    if (close(fd) != 0 && !rc)
        rc = fm_fail_errno(err, "cannot close '%s'", name_of(o));
    if (!rc && o->path)
        rc = appear(o, err);
    if (lock >= 0)
        close(lock);
    fm_output_abandon(o);
    return rc;
}

void fm_output_abandon(struct fm_output *o)
{
    if (!o->path && !o->temp && o->fd <= STDERR_FILENO)
        return; /* zeroed, closed or never opened */
    if (o->fd >= 0)
        close(o->fd);
    if (o->temp)
        unlink(o->temp);
    fm_temporary_forget(o->slot);
    free(o->temp);
    free(o->path);
    *o = (struct fm_output){.fd = -1, .slot = -1};
}

int fm_output_end(struct fm_output *o, int rc, struct fm_err *err)
{
    if (!rc)
        return fm_output_commit(o, err);
    fm_output_abandon(o);
    return rc;
}

int fm_output_text(const char *path, const char *text, bool force, struct fm_err *err)
{
    struct fm_output o;
    int rc = fm_output_open(&o, path, false, force, err);
    return rc ? rc : fm_output_end(&o, fm_output_write(&o, text, strlen(text), err), err);
}
