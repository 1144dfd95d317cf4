/*
 * Kept bytes are in the file at their offset in the stream, and the file has disk blocks only for
 * them.  So code that reads by offset (the tar reader, the index of a safetensors file) works on a
 * pipe unchanged.
 */
#include "formats/file/spool.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/signals.h"

#define PIECE_BYTES ((size_t)1 << 20)

bool fm_spool_needed(const char *path)
{
    struct stat st;
    if (strcmp(path, "-") != 0 || fstat(STDIN_FILENO, &st) != 0)
        return false;
    /* A file that is not at its beginning is treated as a pipe. */
    return S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) ||
           (S_ISREG(st.st_mode) && lseek(STDIN_FILENO, 0, SEEK_CUR) != 0);
}

int fm_spool_begin(struct fm_spool *s, struct fm_err *err)
{
    *s = (struct fm_spool){.file = {.fd = -1}};
    int fd = -1, rc = fm_file_temp(&fd, err);
    if (!rc && !(s->file.path = fm_strdup("standard input", err))) {
        close(fd);
        return err->code;
    }
    s->file.fd = fd;
    return rc;
}

void fm_spool_end(struct fm_spool *s)
{
    fm_file_close(&s->file);
}

/* Read the next bytes of the stream, at most size; *got is 0 at its end. */
static int receive(struct fm_spool *s, void *dst, size_t size, size_t *got, struct fm_err *err)
{
    *got = 0;
    while (!s->ended) {
        if (!fm_signals_await(STDIN_FILENO, POLLIN))
            return fm_fail(err, FM_ESAVED, "stopped while it waited for standard input");
        ssize_t n = read(STDIN_FILENO, dst, size);
        if (n >= 0) {
            s->ended = n == 0;
            *got = (size_t)n;
            return FM_OK;
        }
        if (errno != EAGAIN && errno != EINTR)
            return fm_fail_errno(err, "cannot read standard input");
    }
    return FM_OK;
}

int fm_spool_keep(struct fm_spool *s, uint64_t until, struct fm_err *err)
{
    if (s->ended || s->file.size >= until)
        return FM_OK;
    char *piece = malloc(PIECE_BYTES);
    if (!piece)
        return fm_fail(err, FM_ENOMEM, "no memory to read standard input");
    int rc = FM_OK;
    while (!rc && !s->ended && s->file.size < until) {
        uint64_t left = until - s->file.size;
        size_t got = 0;
        rc = receive(s, piece, left < PIECE_BYTES ? (size_t)left : PIECE_BYTES, &got, err);
        if (!rc && (rc = fm_file_temp_write(s->file.fd, s->file.size, piece, got, err)))
            fm_within(err, "copy of standard input");
        s->file.size += !rc ? got : 0;
    }
    free(piece);
    return rc;
}

int fm_spool_read(struct fm_spool *s, uint64_t offset, void *dst, size_t size, struct fm_err *err)
{
    assert(offset <= s->file.size || s->ended);
    uint64_t there = offset < s->file.size ? s->file.size - offset : 0;
    size_t done = there < size ? (size_t)there : size;
    int rc = done ? fm_file_read(&s->file, offset, dst, done, err) : FM_OK;
    while (!rc && done < size) {
        size_t got = 0;
        rc = receive(s, (char *)dst + done, size - done, &got, err);
        if (!rc && got == 0)
            rc = fm_fail(err, FM_EFORMAT, "standard input ends at byte %" PRIu64, s->file.size);
        done += got;
        s->file.size += got;
    }
    return rc;
}

/* All of standard input, in an unlinked temporary file. */
static int open_spooled(struct fm_file *f, struct fm_err *err)
{
    struct fm_spool s;
    int rc = fm_spool_begin(&s, err);
    if (!rc)
        rc = fm_spool_keep(&s, UINT64_MAX, err);
    if (!rc) {
        rc = fm_file_adopt(f, s.file.fd, s.file.path, err);
        s.file.fd = -1;
    }
    fm_spool_end(&s);
    return rc;
}

int fm_spool_open(struct fm_file *f, const char *path, struct fm_err *err)
{
    if (strcmp(path, "-") != 0)
        return fm_file_open(f, path, err);
    struct stat st;
    *f = (struct fm_file){.fd = -1};
    if (fstat(STDIN_FILENO, &st) != 0 && errno != EBADF)
        return fm_fail_errno(err, "cannot examine standard input");
    if (fcntl(STDIN_FILENO, F_GETFD) < 0)
        return fm_fail(err, FM_EUSAGE, "standard input is closed; name an input file");
    if (isatty(STDIN_FILENO))
        return fm_fail(err, FM_EUSAGE,
                       "standard input is a terminal; name an input file or use a pipe");
    if (S_ISCHR(st.st_mode))
        return fm_fail(err, FM_EUSAGE,
                       "standard input is a device; name an input file or use a pipe");
    if (fm_spool_needed(path))
        return open_spooled(f, err);
    return fm_file_adopt(f, fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1),
                         "standard input", err);
}
