/*
 * A library that is preloaded into a tool (LD_PRELOAD) and makes one system call, or one
 * allocation, fail.
 *
 *     FM_FAULT=CALL:N:KIND     the N-th CALL of the process; KIND is
 *                              fail       returns -1 with a suitable errno; malloc NULL
 *                              interrupt  does nothing and returns -1 with EINTR
 *                              short      handles half of the requested bytes
 *                              full       statvfs reports no free bytes from the first call on
 *                              kill       ends the process as kill -9 does, before the call (after
 *                                         it for close)
 *     FM_FAULT=any:N:kill      the N-th call of any function except malloc
 *     FM_FAULT=space:N:KIND    N bytes can be written, then the disk is full; KIND is
 *                              full       fallocate of more than N bytes fails
 *                              fail       the file system does not support fallocate
 *     FM_FAULT_TOLD=FILE       gets "hit" at the end if the call failed, and lines "CALL COUNT"
 *
 * Calls to malloc count only if the program or cJSON makes them.  libarchive ends the process
 * itself if it gets no memory; oneDNN and libc are not tested here.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum call {
    READ,
    PREAD,
    WRITE,
    PWRITE,
    FSYNC,
    CLOSE,
    RENAME,
    OPEN,
    MKDIR,
    FALLOCATE,
    STATVFS,
    MALLOC,
    THREAD,
    MMAP,
    TRUNCATE,
    LINK,
    UNLINK,
    STAT,
    SEEK,
    LOCK,
    OPENDIR,
    READDIR,
    FOPEN,
    PIPE,
    FORK,
    ANY,
    SPACE,
    CALLS
};
static const struct {
    const char *name;
    int error;
} calls[CALLS] = {
    [READ] = {"read", EIO},          [PREAD] = {"pread", EIO},
    [WRITE] = {"write", EIO},        [PWRITE] = {"pwrite", ENOSPC},
    [FSYNC] = {"fsync", EIO},        [CLOSE] = {"close", EIO},
    [RENAME] = {"rename", EACCES},   [OPEN] = {"open", EMFILE},
    [MKDIR] = {"mkdir", EACCES},     [FALLOCATE] = {"fallocate", ENOSPC},
    [STATVFS] = {"statvfs", EIO},    [MALLOC] = {"malloc", ENOMEM},
    [THREAD] = {"thread", EAGAIN},   [MMAP] = {"mmap", ENOMEM},
    [TRUNCATE] = {"ftruncate", EIO}, [LINK] = {"link", EMLINK},
    [UNLINK] = {"unlink", EIO},      [STAT] = {"stat", EIO},
    [SEEK] = {"lseek", EIO},         [LOCK] = {"flock", ENOLCK},
    [OPENDIR] = {"opendir", EMFILE}, [READDIR] = {"readdir", EIO},
    [FOPEN] = {"fopen", EMFILE},     [PIPE] = {"pipe", EMFILE},
    [FORK] = {"fork", EAGAIN},       [ANY] = {"any", 0},
    [SPACE] = {"space", ENOSPC},
};
enum kind { FAIL, INTERRUPT, SHORT, FULL, KILL };

static atomic_long count[CALLS];
static int chosen = -1;
static long chosen_n;
static enum kind chosen_kind;
static atomic_bool hit;
static struct {
    uintptr_t begin, end;
} ours[8];
static int n_ours;

/* True if this call is the one that fails. */
static bool due(enum call call)
{
    long n = ++count[call], any = call == MALLOC ? 0 : ++count[ANY];
    if (chosen == ANY ? any != chosen_n : (int)call != chosen || n != chosen_n)
        return false;
    hit = true;
    if (chosen_kind == KILL)
        syscall(SYS_kill, getpid(), SIGKILL);
    errno = chosen_kind == INTERRUPT ? EINTR : calls[call].error;
    return true;
}

/* How many of n bytes fit on the disk; -1: none. */
static ssize_t room_for(size_t n)
{
    static atomic_long used;
    if (chosen != SPACE || n == 0)
        return (ssize_t)n;
    long before = atomic_fetch_add(&used, (long)n);
    if (before < chosen_n)
        return (long)n < chosen_n - before ? (ssize_t)n : chosen_n - before;
    hit = true;
    errno = ENOSPC;
    return -1;
}

static bool is_wanted(const char *path)
{
    return !*path /* the program */ || strstr(path, "libcjson");
}

static int note_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (!is_wanted(info->dlpi_name))
        return 0;
    for (int i = 0; i < info->dlpi_phnum && n_ours < 8; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
            ours[n_ours].begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            ours[n_ours].end = ours[n_ours].begin + info->dlpi_phdr[i].p_memsz;
            n_ours++;
        }
    return 0;
}

static bool is_ours(const void *caller)
{
    for (int i = 0; i < n_ours; i++)
        if ((uintptr_t)caller >= ours[i].begin && (uintptr_t)caller < ours[i].end)
            return true;
    return false;
}

static int told = -1;

/* Open the file of counts now, because the sandbox of a tool would refuse it at the end.  Its
 * descriptor has a high number, because tests run tools with some of 0 to 2 closed. */
static void open_told(void)
{
    const char *path = getenv("FM_FAULT_TOLD");
    long fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    if (fd < 0)
        return;
    told = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 900);
    syscall(SYS_close, fd);
}

/* A tool that confines itself closes what it inherited; the file of counts stays open. */
int close_range(unsigned first, unsigned last, int flags)
{
    unsigned kept = (unsigned)told;
    if (told < 0 || kept < first || kept > last)
        return (int)syscall(SYS_close_range, first, last, flags);
    if (kept > first && syscall(SYS_close_range, first, kept - 1, flags) != 0)
        return -1;
    return kept < last ? (int)syscall(SYS_close_range, kept + 1, last, flags) : 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *spec = getenv("FM_FAULT");
    char name[16], kind[16];
    open_told();
    dl_iterate_phdr(note_object, NULL);
    if (!spec || sscanf(spec, "%15[a-z]:%ld:%15[a-z]", name, &chosen_n, kind) != 3)
        return;
    chosen_kind = *kind == 'i'     ? INTERRUPT
                  : *kind == 's'   ? SHORT
                  : *kind == 'k'   ? KILL
                  : kind[1] == 'u' ? FULL
                                   : FAIL;
    for (int i = 0; i < CALLS; i++)
        if (strcmp(calls[i].name, name) == 0)
            chosen = i;
    memset(count, 0, sizeof count);
}

__attribute__((destructor)) static void tell(void)
{
    char text[1024];
    int used = snprintf(text, sizeof text, "%s", hit ? "hit\n" : "");
    for (int i = 0; i < CALLS; i++)
        used +=
            snprintf(text + used, sizeof text - (size_t)used, "%s %ld\n", calls[i].name, count[i]);
    if (told < 0)
        return;
    syscall(SYS_ftruncate, told, 0); /* a program started by this one may also have written */
    syscall(SYS_pwrite64, told, text, (size_t)used, 0);
}

/* The function that is replaced by this one. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t read(int fd, void *dst, size_t n)
{
    if (due(READ)) {
        if (chosen_kind != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    return syscall(SYS_read, fd, dst, n);
}

ssize_t pread64(int fd, void *dst, size_t n, off_t at)
{
    if (due(PREAD)) {
        if (chosen_kind != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    return syscall(SYS_pread64, fd, dst, n, at);
}

ssize_t write(int fd, const void *src, size_t n)
{
    if (fd != STDERR_FILENO && due(WRITE)) {
        if (chosen_kind != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    ssize_t room = fd == STDERR_FILENO ? (ssize_t)n : room_for(n);
    return room < 0 ? -1 : syscall(SYS_write, fd, src, room);
}

ssize_t pwrite64(int fd, const void *src, size_t n, off_t at)
{
    if (due(PWRITE)) {
        if (chosen_kind != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    ssize_t room = room_for(n);
    return room < 0 ? -1 : syscall(SYS_pwrite64, fd, src, room, at);
}

int fsync(int fd)
{
    return due(FSYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

int close(int fd)
{
    long rc = syscall(SYS_close, fd); /* Linux closes it even on failure */
    return due(CLOSE) ? -1 : (int)rc;
}

int rename(const char *from, const char *to)
{
    return due(RENAME) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return due(RENAME) ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

static int open_it(int dir, const char *path, int flags, va_list ap)
{
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, int) : 0;
    return due(OPEN) ? -1 : (int)syscall(SYS_openat, dir, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int fd = open_it(AT_FDCWD, path, flags, ap);
    va_end(ap);
    return fd;
}

int openat64(int dir, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int fd = open_it(dir, path, flags, ap);
    va_end(ap);
    return fd;
}

int mkdir(const char *path, mode_t mode)
{
    return due(MKDIR) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int fallocate64(int fd, int mode, off_t at, off_t size)
{
    if (chosen == SPACE && (chosen_kind == FAIL || size > chosen_n)) {
        hit = true;
        errno = chosen_kind == FAIL ? EOPNOTSUPP : ENOSPC;
        return -1;
    }
    return due(FALLOCATE) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, size);
}

int statvfs64(const char *path, struct statvfs64 *v)
{
    bool now = due(STATVFS), full = chosen == STATVFS && chosen_kind == FULL;
    int rc = now && !full ? -1 : NEXT(statvfs64)(path, v);
    if (rc == 0 && full)
        v->f_bavail = 0;
    return rc;
}

int fstatvfs64(int fd, struct statvfs64 *v)
{
    return due(STATVFS) ? -1 : NEXT(fstatvfs64)(fd, v);
}

/* --- calls that only fail --- */

#define FAILS(call, type, failed, name, parameters, arguments)                                     \
    type name parameters                                                                           \
    {                                                                                              \
        return due(call) ? failed : NEXT(name) arguments;                                          \
    }

FAILS(MMAP, void *, MAP_FAILED, mmap64,
      (void *where, size_t size, int access, int flags, int fd, off_t at),
      (where, size, access, flags, fd, at))
FAILS(TRUNCATE, int, -1, ftruncate64, (int fd, off_t size), (fd, size))
FAILS(LINK, int, -1, link, (const char *from, const char *to), (from, to))
FAILS(UNLINK, int, -1, unlink, (const char *path), (path))
FAILS(UNLINK, int, -1, unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
FAILS(UNLINK, int, -1, rmdir, (const char *path), (path))
FAILS(STAT, int, -1, stat64, (const char *path, struct stat64 *st), (path, st))
FAILS(STAT, int, -1, lstat64, (const char *path, struct stat64 *st), (path, st))
FAILS(STAT, int, -1, fstat64, (int fd, struct stat64 *st), (fd, st))
FAILS(STAT, int, -1, fstatat64, (int dir, const char *path, struct stat64 *st, int flags),
      (dir, path, st, flags))
FAILS(SEEK, off_t, -1, lseek64, (int fd, off_t at, int whence), (fd, at, whence))
FAILS(LOCK, int, -1, flock, (int fd, int how), (fd, how))
FAILS(OPENDIR, DIR *, NULL, opendir, (const char *path), (path))
FAILS(OPENDIR, DIR *, NULL, fdopendir, (int fd), (fd))
FAILS(READDIR, struct dirent64 *, NULL, readdir64, (DIR * dir), (dir))
FAILS(READDIR, ssize_t, -1, getdents64, (int fd, void *dst, size_t size), (fd, dst, size))
FAILS(FOPEN, FILE *, NULL, fopen64, (const char *path, const char *mode), (path, mode))
FAILS(OPEN, int, -1, mkostemp64, (char *name, int flags), (name, flags))
FAILS(MKDIR, char *, NULL, mkdtemp, (char *name), (name))
FAILS(PIPE, int, -1, pipe2, (int fd[2], int flags), (fd, flags))
FAILS(FORK, pid_t, -1, fork, (void), ())

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const *argv, char *const *env)
{
    return due(FORK) ? EAGAIN : NEXT(posix_spawnp)(pid, file, actions, attributes, argv, env);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    return due(THREAD) ? EAGAIN : NEXT(pthread_create)(thread, attr, run, arg);
}

/* --- memory: glibc's own functions, so that finding them needs no memory --- */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t align, size_t size);

#define REFUSED (is_ours(__builtin_return_address(0)) && due(MALLOC))

void *malloc(size_t size)
{
    return REFUSED ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return REFUSED ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
    return REFUSED ? NULL : __libc_realloc(p, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    return REFUSED ? NULL : __libc_memalign(align, size);
}

char *strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = REFUSED ? NULL : __libc_malloc(n);
    return copy ? memcpy(copy, text, n) : NULL;
}

char *strndup(const char *text, size_t most)
{
    size_t n = strnlen(text, most);
    char *copy = REFUSED ? NULL : __libc_malloc(n + 1);
    if (copy)
        memcpy(copy, text, n), copy[n] = '\0';
    return copy;
}

int vasprintf(char **to, const char *format, va_list ap)
{
    return REFUSED ? -1 : NEXT(vasprintf)(to, format, ap);
}

int asprintf(char **to, const char *format, ...)
{
    bool refused = REFUSED;
    va_list ap;
    va_start(ap, format);
    int n = refused ? -1 : NEXT(vasprintf)(to, format, ap);
    va_end(ap);
    return n;
}

FILE *open_memstream(char **to, size_t *size)
{
    return REFUSED ? NULL : NEXT(open_memstream)(to, size);
}
