/*
 * Inputs.  If another process truncates a mapped file, reading it kills our process with SIGBUS; if
 * it rewrites the file, data changes after our checks.  So inputs are opened once and read with
 * pread, and their size and modification time are compared at the end of a run.  Temporary files
 * are unlinked, so nothing has to be removed however a run ends.
 */
#include "formats/file/file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/trace.h"

int fm_file_above_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int saved = errno;
    close(fd);
    errno = saved;
    return high;
}

static const char *kind_of(mode_t mode)
{
    if (S_ISDIR(mode))
        return "a directory";
    if (S_ISFIFO(mode))
        return "a FIFO";
    if (S_ISSOCK(mode))
        return "a socket";
    return "a device";
}

static void note_identity(struct fm_file *f, const struct stat *st)
{
    f->size = (uint64_t)st->st_size;
    f->dev = (uint64_t)st->st_dev;
    f->ino = (uint64_t)st->st_ino;
    f->mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

int fm_file_adopt(struct fm_file *f, int fd, const char *path, struct fm_err *err)
{
    struct stat st;
    *f = (struct fm_file){.fd = -1};
    int rc = FM_OK;
    if (fd < 0 && (errno == ELOOP || errno == ENXIO))
        return fm_fail(err, FM_EFORMAT, "'%s' is %s; a regular file is needed", path,
                       errno == ELOOP ? "a symbolic link that is not followed" : "a socket");
    if (fd < 0)
        return fm_fail_errno(err, "cannot open '%s'", path);
    if (fstat(fd, &st) != 0)
        rc = fm_fail_errno(err, "cannot examine '%s'", path);
    else if (!S_ISREG(st.st_mode))
        rc = fm_fail(err, FM_EFORMAT, "'%s' is %s; a regular file is needed", path,
                     kind_of(st.st_mode));
    else if (!(f->path = fm_strdup(path, err)))
        rc = err->code;
    if (rc) {
        close(fd);
        return rc;
    }
    f->fd = fd;
    note_identity(f, &st);
    return FM_OK;
}

/* O_NONBLOCK: a FIFO without a writer would block the open. */
#define INPUT_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

int fm_file_open(struct fm_file *f, const char *path, struct fm_err *err)
{
    return fm_file_adopt(f, fm_file_above_standard(open(path, INPUT_FLAGS)), path, err);
}

int fm_file_open_at(struct fm_file *f, int dirfd, const char *name, bool follow, struct fm_err *err)
{
    *f = (struct fm_file){.fd = -1};
    if (!*name || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
        return fm_fail(err, FM_EFORMAT, "'%s' is not the name of a file in this directory", name);
    int flags = INPUT_FLAGS | (follow ? 0 : O_NOFOLLOW);
    return fm_file_adopt(f, fm_file_above_standard(openat(dirfd, name, flags)), name, err);
}

int fm_file_open_directory(int *fd, const char *path, struct fm_err *err)
{
    *fd = fm_file_above_standard(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return *fd < 0 ? fm_fail_errno(err, "cannot open the directory '%s'", path) : FM_OK;
}

int fm_file_same_directory(int dirfd, const char *path, struct fm_err *err)
{
    struct stat held, now;
    if (fstat(dirfd, &held) != 0)
        return fm_fail_errno(err, "cannot examine '%s'", path);
    if (stat(path, &now) == 0 && now.st_dev == held.st_dev && now.st_ino == held.st_ino)
        return FM_OK;
    return fm_fail(err, FM_EIO, "'%s' was replaced while it was read; run the command again", path);
}

/* Add the names from `dir`, in its order. */
static int read_names(struct fm_file_list *list, DIR *dir, const char *path, struct fm_err *err)
{
    const struct dirent *d;
    size_t room = 0;
    while ((errno = 0, d = readdir(dir))) {
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        if (FM_GROW(list->name, room, list->count + 1, "the names in a directory", err) ||
            !(list->name[list->count] = fm_strdup(d->d_name, err)))
            return err->code;
        list->count++;
    }
    return errno == 0 ? FM_OK : fm_fail_errno(err, "cannot list '%s'", path);
}

int fm_file_list(struct fm_file_list *list, int dirfd, const char *path, struct fm_err *err)
{
    /* Opened again, to begin with the first name whatever other readers do. */
    int fd = fm_file_above_standard(openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    *list = (struct fm_file_list){0};
    int rc = dir ? read_names(list, dir, path, err) : fm_fail_errno(err, "cannot list '%s'", path);
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    if (rc)
        fm_file_list_release(list);
    fm_names_sort(list->name, list->count, sizeof *list->name);
    return rc;
}

void fm_file_list_release(struct fm_file_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->name[i]);
    free(list->name);
    *list = (struct fm_file_list){0};
}

int fm_file_share(struct fm_file *f, const struct fm_file *from, struct fm_err *err)
{
    *f = *from;
    f->more = NULL;
    f->mores = 0;
    f->size = from->mores ? from->own : from->size;
    f->path = fm_strdup(from->path, err);
    f->fd = f->path ? fcntl(from->fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
    if (f->path && f->fd < 0)
        fm_fail_errno(err, "cannot open '%s' again", from->path);
    int rc = f->fd < 0 ? err->code : FM_OK;
    for (size_t i = 0; i < from->mores && !rc; i++) {
        struct fm_file more;
        rc = fm_file_share(&more, &from->more[i], err);
        if (!rc)
            rc = fm_file_append(f, &more, err);
    }
    if (rc)
        fm_file_close(f);
    return rc;
}

int fm_file_append(struct fm_file *f, struct fm_file *more, struct fm_err *err)
{
    size_t room = f->mores;
    assert(more->mores == 0); /* find_file looks at one level */
    if (FM_GROW(f->more, room, f->mores + 1, "a list of files", err)) {
        fm_file_close(more);
        return err->code;
    }
    f->own = f->mores ? f->own : f->size;
    f->more[f->mores++] = *more;
    f->size += more->size;
    *more = (struct fm_file){.fd = -1};
    return FM_OK;
}

/* The file that has the byte at *offset, which is changed to the offset in that file. */
static const struct fm_file *find_file(const struct fm_file *f, uint64_t *offset)
{
    if (!f->mores || *offset < f->own)
        return f;
    *offset -= f->own;
    size_t i = 0;
    for (; i + 1 < f->mores && *offset >= f->more[i].size; i++)
        *offset -= f->more[i].size;
    return &f->more[i];
}

const char *fm_file_path_at(const struct fm_file *f, uint64_t offset)
{
    return find_file(f, &offset)->path;
}

void fm_file_close(struct fm_file *f)
{
    for (size_t i = 0; i < f->mores; i++)
        fm_file_close(&f->more[i]);
    free(f->more);
    if (f->path && f->fd >= 0)
        close(f->fd);
    free(f->path);
    *f = (struct fm_file){.fd = -1};
}

/* Read with pread until size bytes or the end; returns the bytes read, or -1 with errno. */
static ssize_t read_fully(int fd, uint64_t offset, void *dst, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t got = pread(fd, (char *)dst + done, size - done, (off_t)(offset + done));
        if (got == 0)
            break;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

int fm_file_read(const struct fm_file *all, uint64_t offset, void *dst, size_t size,
                 struct fm_err *err)
{
    const struct fm_file *f = find_file(all, &offset);
    if (offset > INT64_MAX || size > INT64_MAX - offset || f->begin > INT64_MAX - offset - size)
        return fm_fail(err, FM_EFORMAT,
                       "'%s' ends at byte %" PRIu64 ", but %zu bytes at %" PRIu64 " are needed",
                       f->path, f->size, size, offset);
    FM_TRACE(FM_TRACE_IO, "read %zu bytes at %" PRIu64 " of %s", size, offset, f->path);
    ssize_t got = read_fully(f->fd, f->begin + offset, dst, size);
    if (got < 0)
        return fm_fail_errno(err, "cannot read '%s' at byte %" PRIu64, f->path, offset);
    if ((size_t)got == size)
        return FM_OK;
    if (offset + size <= f->size)
        return fm_fail(err, FM_EIO,
                       "'%s' became shorter while it was read (%" PRIu64 " of %" PRIu64 " bytes)",
                       f->path, offset + (uint64_t)got, f->size);
    return fm_fail(err, FM_EFORMAT,
                   "'%s' ends at byte %" PRIu64 ", but %zu bytes at %" PRIu64 " are needed",
                   f->path, f->size, size, offset);
}

/* Linux reads ahead at most the device's maximum request in each call. */
#define EXPECTED_BYTES ((uint64_t)128 << 10)

void fm_file_expect(const struct fm_file *all, uint64_t offset, uint64_t size,
                    const atomic_bool *enough)
{
    const struct fm_file *f = find_file(all, &offset);
    offset += f->begin;
    uint64_t end = offset + size;
    for (uint64_t at = offset; at < end && !atomic_load(enough); at += EXPECTED_BYTES)
        if (posix_fadvise(f->fd, (off_t)at, EXPECTED_BYTES, POSIX_FADV_WILLNEED) != 0)
            return;
}

int fm_file_slurp(const struct fm_file *f, size_t limit, char **text, size_t *size,
                  struct fm_err *err)
{
    *text = NULL;
    *size = 0;
    if (f->size > limit)
        return fm_fail(err, FM_EFORMAT, "'%s' has %" PRIu64 " bytes (limit %zu)", f->path, f->size,
                       limit);
    char *t = malloc((size_t)f->size + 1);
    if (!t)
        return fm_fail(err, FM_ENOMEM, "no memory for the %" PRIu64 " bytes of '%s'", f->size,
                       f->path);
    int rc = fm_file_read(f, 0, t, (size_t)f->size, err);
    if (rc) {
        free(t);
        return rc;
    }
    t[f->size] = 0;
    *text = t;
    *size = (size_t)f->size;
    return FM_OK;
}

int fm_file_slurp_path(const char *path, size_t limit, char **text, size_t *size,
                       struct fm_err *err)
{
    struct fm_file f;
    int rc = fm_file_open(&f, path, err);
    if (!rc)
        rc = fm_file_slurp(&f, limit, text, size, err);
    fm_file_close(&f);
    return rc;
}

int fm_file_slurp_in(const char *dir, const char *name, size_t limit, char **text, size_t *size,
                     struct fm_err *err)
{
    char *path = fm_file_join(dir, name, err);
    int rc = path ? fm_file_slurp_path(path, limit, text, size, err) : err->code;
    free(path);
    return rc;
}

int fm_file_slurp_at(int dirfd, const char *name, size_t limit, char **text, size_t *size,
                     struct fm_err *err)
{
    struct fm_file f;
    int rc = fm_file_open_at(&f, dirfd, name, true, err);
    if (!rc)
        rc = fm_file_slurp(&f, limit, text, size, err);
    fm_file_close(&f);
    return rc;
}

const char *fm_file_last(const char *path, size_t *length)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    *length = end - begin;
    return path + begin;
}

char *fm_file_home(const char *path, struct fm_err *err)
{
    size_t length;
    const char *end = fm_file_last(path, &length);
    while (end > path + 1 && end[-1] == '/')
        end--;
    char *home = end > path ? strndup(path, (size_t)(end - path)) : strdup(".");
    if (!home)
        fm_fail(err, FM_ENOMEM, "no memory for the name '%s'", path);
    return home;
}

char *fm_file_join(const char *dir, const char *name, struct fm_err *err)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = fm_alloc(size, 1, "a path", err);
    if (path)
        snprintf(path, size, "%s/%s", dir, name);
    return path;
}

int fm_file_unchanged(const struct fm_file *f, struct fm_err *err)
{
    struct stat st;
    struct fm_file now = {0};
    uint64_t size = f->mores ? f->own : f->size;
    if (fstat(f->fd, &st) != 0)
        return fm_fail_errno(err, "cannot examine '%s'", f->path);
    note_identity(&now, &st);
    if (now.size != size || now.mtime_ns != f->mtime_ns)
        return fm_fail(err, FM_EIO,
                       "'%s' was changed while it was read (%" PRIu64 " bytes, now %" PRIu64 ")",
                       f->path, size, now.size);
    int rc = FM_OK;
    for (size_t i = 0; i < f->mores && !rc; i++)
        rc = fm_file_unchanged(&f->more[i], err);
    return rc;
}

const char *fm_file_temp_directory(void)
{
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/var/tmp";
}

int fm_file_temp(int *fd, struct fm_err *err)
{
    const char *dir = fm_file_temp_directory();
    *fd = fm_file_above_standard(open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (*fd >= 0)
        return FM_OK;
    char *name = NULL; /* a filesystem without O_TMPFILE */
    if (asprintf(&name, "%s/fm-XXXXXX", dir) < 0)
        return fm_fail(err, FM_ENOMEM, "no memory for the name of a temporary file");
    int made = mkostemp(name, O_CLOEXEC);
    if (made >= 0)
        unlink(name);
    free(name);
    *fd = fm_file_above_standard(made);
    if (*fd >= 0)
        return FM_OK;
    int rc = fm_fail_errno(err, "cannot create a temporary file in '%s'; set TMPDIR", dir);
    /* A missing directory for temporaries is not a missing input. */
    return err->code = rc == FM_ENOENT ? FM_ECREATE : rc;
}

int fm_file_temp_read(int fd, uint64_t offset, void *dst, size_t size, struct fm_err *err)
{
    FM_TRACE(FM_TRACE_IO, "read %zu bytes at %" PRIu64 " of a temporary file", size, offset);
    ssize_t got = read_fully(fd, offset, dst, size);
    if (got < 0)
        return fm_fail_errno(err, "cannot read back a temporary file at byte %" PRIu64, offset);
    if ((size_t)got != size)
        return fm_fail(err, FM_EIO, "a temporary file ends at byte %" PRIu64 ", not %" PRIu64,
                       offset + (uint64_t)got, offset + size);
    return FM_OK;
}

size_t fm_file_write(int fd, uint64_t offset, const void *src, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t put = pwrite(fd, (const char *)src + done, size - done, (off_t)(offset + done));
        if (put == 0)
            errno = ENOSPC;
        if (put > 0)
            done += (size_t)put;
        else if (put == 0 || errno != EINTR)
            break;
    }
    return done;
}

int fm_file_temp_write(int fd, uint64_t offset, const void *src, size_t size, struct fm_err *err)
{
    FM_TRACE(FM_TRACE_IO, "write %zu bytes at %" PRIu64 " of a temporary file", size, offset);
    size_t done = fm_file_write(fd, offset, src, size);
    if (done == size)
        return FM_OK;
    return fm_fail_errno(err,
                         "cannot write a temporary file at byte %" PRIu64
                         "; point TMPDIR at a disk with more space",
                         offset + done);
}

static int examine_stdout(struct statvfs *v, bool *endless)
{
    struct stat st;
    *endless = fstat(STDOUT_FILENO, &st) != 0 || !S_ISREG(st.st_mode);
    return *endless ? 0 : fstatvfs(STDOUT_FILENO, v);
}

static int examine(const char *path, struct statvfs *v, bool *endless, struct fm_err *err)
{
    bool stream = strcmp(path, "-") == 0;
    *endless = false;
    int rc = stream ? examine_stdout(v, endless) : statvfs(path, v);
    if (rc != 0 && (errno == ENOENT || errno == ENAMETOOLONG)) { /* reported by the code that
                                                                    creates the file */
        char *home = fm_file_home(path, err);
        if (!home)
            return err->code;
        rc = statvfs(home, v);
        free(home);
    }
    if (rc != 0)
        return fm_fail_errno(err, "cannot examine the filesystem of '%s'", path);
    return FM_OK;
}

int fm_file_free_space(const char *path, uint64_t *bytes, struct fm_err *err)
{
    struct statvfs v;
    bool endless;
    if (examine(path, &v, &endless, err))
        return err->code;
    *bytes = endless ? UINT64_MAX : (uint64_t)v.f_bavail * v.f_frsize;
    return FM_OK;
}

bool fm_file_share_space(const char *a, const char *b)
{
    struct statvfs va, vb;
    bool endless[2];
    struct fm_err unused = {0};
    return !examine(a, &va, &endless[0], &unused) && !examine(b, &vb, &endless[1], &unused) &&
           !endless[0] && !endless[1] && va.f_fsid != 0 && va.f_fsid == vb.f_fsid;
}
