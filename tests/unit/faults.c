/*
 * Loaded before a tool (LD_PRELOAD): lets one call into the system fail.
 *
 *     FM_FAULT=CALL:N:KIND     the N-th CALL of the process; KIND is
 *                              fail       -1 and the errno that fits, NULL for malloc
 *                              interrupt  -1 and EINTR, nothing done
 *                              short      half of what was asked for
 *                              full       statvfs sees no free byte from the first call on
 *                              kill       the process ends as by kill -9, the call not made
 *     FM_FAULT_TOLD=FILE       at the end "hit" if it happened, then a line "CALL COUNT" for each
 *
 * Of malloc only calls of the program and of cJSON count: libarchive ends the process by itself
 * where it has no memory, and oneDNN and libc are not ours to try.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    CALLS
};
static const char *const names[CALLS] = {"read",    "pread",  "write", "pwrite", "fsync",
                                         "close",   "rename", "open",  "mkdir",  "fallocate",
                                         "statvfs", "malloc", "thread"};
static const int errors[CALLS] = {EIO,    EIO,    EIO,    ENOSPC, EIO,    EIO,   EACCES,
                                  EMFILE, EACCES, ENOSPC, EIO,    ENOMEM, EAGAIN};
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

/* True where this call is the one. */
static bool due(enum call call)
{
    long n = ++count[call];
    if ((int)call != chosen || n != chosen_n)
        return false;
    hit = true;
    if (chosen_kind == KILL)
        syscall(SYS_kill, getpid(), SIGKILL);
    errno = chosen_kind == INTERRUPT ? EINTR : errors[call];
    return true;
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

__attribute__((constructor)) static void begin(void)
{
    const char *spec = getenv("FM_FAULT");
    char name[16], kind[16];
    dl_iterate_phdr(note_object, NULL);
    if (!spec || sscanf(spec, "%15[a-z]:%ld:%15[a-z]", name, &chosen_n, kind) != 3)
        return;
    chosen_kind = *kind == 'i'     ? INTERRUPT
                  : *kind == 's'   ? SHORT
                  : *kind == 'k'   ? KILL
                  : kind[1] == 'u' ? FULL
                                   : FAIL;
    for (int i = 0; i < CALLS; i++)
        if (strcmp(names[i], name) == 0)
            chosen = i;
    memset(count, 0, sizeof count);
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("FM_FAULT_TOLD");
    char text[512];
    int used = snprintf(text, sizeof text, "%s", hit ? "hit\n" : "");
    for (int i = 0; i < CALLS; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s %ld\n", names[i], count[i]);
    int fd =
        path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    if (fd >= 0)
        syscall(SYS_write, fd, text, (size_t)used);
}

/* The function that this one replaces. */
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
    return syscall(SYS_write, fd, src, n);
}

ssize_t pwrite64(int fd, const void *src, size_t n, off_t at)
{
    if (due(PWRITE)) {
        if (chosen_kind != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    return syscall(SYS_pwrite64, fd, src, n, at);
}

int fsync(int fd)
{
    return due(FSYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

int close(int fd)
{
    long rc = syscall(SYS_close, fd); /* Linux closes it in any case */
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

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    return due(THREAD) ? EAGAIN : NEXT(pthread_create)(thread, attr, run, arg);
}

/* --- memory: glibc's own entries, so that nothing here needs memory to find them --- */

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
