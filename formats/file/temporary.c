/*
 * A signal handler may only call async-signal-safe functions: no malloc, no readdir, no locks.  So
 * the names to be removed are in a static table with an atomic state each, and removing a
 * directory's files reads it with getdents64 into a buffer on the stack.  That needs a descriptor,
 * and a process may have run out of them, so one is reserved before the directory is created.
 *
 * The steps that make an output durable are here too, with the cases in which filesystems differ: a
 * rename that replaces nothing, an fsync that is not supported, a directory that cannot be read.
 *
 * kill -9 leaves a temporary.  A process keeps its temporaries locked until it ends, so the next
 * process that writes the same output can remove the unlocked ones.
 */
#include "formats/file/temporary.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "formats/file/file.h"
#include "lib/base/fatal.h"
#include "lib/base/mem.h"

#define NAME_KEPT 180 /* bytes of NAME in the temporary's name, of NAME_MAX 255 */

/*
 * The states of an entry.  A signal handler reads only LIVE ones, so their other fields do not
 * change:
 *
 *     FREE --claim_slot--> FILLING --fm_temporary_new--> LIVE --fm_temporary_forget--> FREE
 */
enum { FREE, FILLING, LIVE };
enum { WAIT_MS = 200, OPEN_TRIES = 50 };

static struct {
    atomic_int state;
    bool directory;
    atomic_int reserve; /* for a directory: the descriptor that its removal needs, or -1 */
    char path[PATH_MAX];
} table[FM_TEMPORARIES_MAX];

static atomic_bool removing; /* never reset */
static atomic_int inside;    /* threads between fm_temporary_enter and fm_temporary_leave */

int fm_temporary_enter(struct fm_err *err)
{
    atomic_fetch_add(&inside, 1);
    if (!atomic_load(&removing))
        return FM_OK;
    fm_temporary_leave();
    return fm_fail(err, FM_ESAVED, "stopped, and unfinished outputs removed");
}

void fm_temporary_leave(void)
{
    int before = atomic_fetch_sub(&inside, 1);
    assert(before > 0);
    (void)before;
}

/* Open a descriptor that only reserves its number. */
static int reserve_one(const char *path, int *reserve, struct fm_err *err)
{
    *reserve = fm_file_above_standard(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    return *reserve < 0 ? fm_fail_errno(err, "cannot create '%s'", path) : FM_OK;
}

static void drop_reserve(int slot)
{
    int fd = slot >= 0 ? atomic_exchange(&table[slot].reserve, -1) : -1;
    if (fd > STDERR_FILENO)
        close(fd);
}

static int claim_slot(void)
{
    for (int i = 0; i < FM_TEMPORARIES_MAX; i++) {
        int free_one = FREE;
        if (atomic_compare_exchange_strong(&table[i].state, &free_one, FILLING))
            return i;
    }
    return -1;
}

static bool is_dots(const char *name, size_t len)
{
    return (len == 1 && name[0] == '.') || (len == 2 && name[0] == '.' && name[1] == '.');
}

static uint32_t draw(void)
{
    uint32_t r = 0;
    /* A poor random number is harmless, because O_EXCL prevents a clash. */
    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r)
        r = (uint32_t)(uintptr_t)&r ^ (uint32_t)getpid();
    return r;
}

/* A number for this machine.  A lock on a network file system may be visible only on one
 * machine, so temporaries of other machines are never treated as leftovers. */
static uint32_t machine(void)
{
    struct utsname u = {0};
    uint32_t hash = 2166136261u; /* FNV-1a */
    (void)uname(&u);
    for (const char *c = u.nodename; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    return hash;
}

/* The start and length of the name in `path`; FM_ECREATE if it is empty or too long. */
static int find_name(const char **name, size_t *len, const char *path, struct fm_err *err)
{
    *name = fm_file_last(path, len);
    if (*len == 0 || is_dots(*name, *len) || **name == '/')
        return fm_fail(err, FM_ECREATE, "cannot create '%s': the path does not end in a name",
                       path);
    if (*len > NAME_MAX || strlen(path) >= PATH_MAX)
        return fm_fail(err, FM_ECREATE, "cannot create '%.64s...': the name is too long", path);
    return FM_OK;
}

int fm_temporary_check(const char *path, struct fm_err *err)
{
    const char *name;
    size_t len = 0;
    char home[PATH_MAX + 4];
    if (fm_temporary_enter(err))
        return err->code; /* the directory may not exist any more, and ENOENT would mislead */
    fm_temporary_leave();
    if (find_name(&name, &len, path, err))
        return err->code;
    snprintf(home, sizeof home, "%.*s.", (int)(name - path), path);
    return access(home, W_OK | X_OK) == 0 ? FM_OK : fm_temporary_fail(path, err);
}

bool fm_temporary_own(int fd)
{
    struct stat st;
    bool others = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; /* the other process
                                                                                removes it */
    return !others && (fstat(fd, &st) != 0 || st.st_nlink > 0);
}

/* True for the rest of a temporary's name: PID-RAND. */
static bool is_pid_and_number(const char *s)
{
    size_t digits = strspn(s, "0123456789");
    return digits > 0 && s[digits] == '-' && strspn(s + digits + 1, "0123456789abcdef") == 8 &&
           s[digits + 9] == '\0';
}

/* Remove each temporary of this machine in `home` whose name begins with this prefix and which no
 * process has locked, or call `act` for it.  Failures are ignored: another run can try again. */
static void each_left(const char *home, const char *begin, bool directory,
                      void (*act)(const char *home, const char *path))
{
    char path[PATH_MAX];
    int parent = open(home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct fm_file_list list = {0};
    struct fm_err unused = {0};
    if (parent >= 0)
        (void)fm_file_list(&list, parent, home, &unused);
    for (size_t i = 0; i < list.count; i++) {
        const char *name = list.name[i];
        size_t n = strlen(begin);
        if (strncmp(name, begin, n) != 0 || !is_pid_and_number(name + n) ||
            (size_t)snprintf(path, sizeof path, "%s/%s", home, name) >= sizeof path)
            continue;
        int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC |
                                (directory ? O_DIRECTORY : 0));
        if (fd < 0)
            continue;
        bool left = flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (left && act)
            act(home, path);
        else if (left && directory)
            fm_temporary_rmdir(-1, path);
        else if (left)
            unlink(path);
        close(fd);
    }
    fm_file_list_release(&list);
    if (parent >= 0)
        close(parent);
}

/* Make the prefix of temporaries' names, ".NAME.KIND-HOST-"; the directory of `path` to `home`. */
static int make_prefix(char home[PATH_MAX + 4], char begin[NAME_MAX + 1], const char *path,
                       const char *kind, struct fm_err *err)
{
    size_t len = 0;
    const char *name;
    if (find_name(&name, &len, path, err))
        return err->code;
    int kept = (int)(len < NAME_KEPT ? len : NAME_KEPT);
    snprintf(home, PATH_MAX + 4, "%.*s.", (int)(name - path), path);
    snprintf(begin, NAME_MAX + 1, ".%.*s.%s-%08x-", kept, name, kind, (unsigned)machine());
    return FM_OK;
}

void fm_temporary_each_left(const char *path, const char *kind,
                            void (*act)(const char *home, const char *left))
{
    struct fm_err unused = {0};
    char home[PATH_MAX + 4], begin[NAME_MAX + 1];
    if (!make_prefix(home, begin, path, kind, &unused))
        each_left(home, begin, true, act);
}

char *fm_temporary_new(const char *path, const char *kind, bool directory, int *slot,
                       struct fm_err *err)
{
    char made[PATH_MAX], home[PATH_MAX + 4], begin[NAME_MAX + 1];
    if (make_prefix(home, begin, path, kind, err))
        return NULL;
    int n = snprintf(made, sizeof made, "%.*s%s%ld-%08x", (int)strlen(home) - 1, home, begin,
                     (long)getpid(), (unsigned)draw());
    if (n < 0 || (size_t)n >= sizeof made) {
        fm_fail(err, FM_ECREATE, "cannot create '%.64s...': the name is too long", path);
        return NULL;
    }
    each_left(home, begin, directory, NULL);
    int s = claim_slot();
    if (s < 0) {
        fm_fail(err, FM_EBUG, "cannot create '%s': %d outputs are open already", path,
                FM_TEMPORARIES_MAX);
        return NULL;
    }
    int reserve = -1;
    assert(atomic_load(&table[s].state) == FILLING);
    fm_fatal_clean_with(fm_file_remove_temporaries);
    memcpy(table[s].path, made, (size_t)n + 1);
    table[s].directory = directory;
    char *copy = directory && reserve_one(path, &reserve, err) ? NULL : fm_strdup(made, err);
    atomic_store(&table[s].reserve, reserve);
    if (!copy)
        drop_reserve(s);
    atomic_store(&table[s].state, copy ? LIVE : FREE);
    *slot = copy ? s : -1;
    return copy;
}

void fm_temporary_forget(int slot)
{
    if (slot < 0)
        return;
    assert(slot < FM_TEMPORARIES_MAX && atomic_load(&table[slot].state) == LIVE);
    drop_reserve(slot);
    atomic_store(&table[slot].state, FREE);
}

/* Open a directory with the reserved descriptor; if another thread took its number in between, wait
 * until one is free. */
static int open_reserved(int slot, const char *path)
{
    drop_reserve(slot);
    for (int i = 0; i < OPEN_TRIES; i++) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 || (errno != EMFILE && errno != ENFILE))
            return fd;
        poll(NULL, 0, 1);
    }
    return -1;
}

/* Uses getdents64 with a buffer of ours, because readdir allocates.  Removing while reading may
 * skip names, so this repeats until a pass removes nothing. */
void fm_temporary_rmdir(int slot, const char *path)
{
    int fd = open_reserved(slot, path);
    if (fd < 0) {
        rmdir(path); /* works if it is empty */
        return;
    }
    _Alignas(struct dirent64) char buffer[4096];
    bool removed = true;
    while (removed) {
        removed = false;
        lseek(fd, 0, SEEK_SET);
        ssize_t got;
        while ((got = getdents64(fd, buffer, sizeof buffer)) > 0) {
            for (ssize_t at = 0; at < got;) {
                const struct dirent64 *d = (const struct dirent64 *)(buffer + at);
                at += d->d_reclen;
                if (!is_dots(d->d_name, strlen(d->d_name)) && unlinkat(fd, d->d_name, 0) == 0)
                    removed = true;
            }
        }
    }
    close(fd);
    rmdir(path);
}

int fm_temporary_fail(const char *path, struct fm_err *err)
{
    if (errno == ENOENT || errno == ENOTDIR)
        return fm_fail(err, FM_ECREATE, "cannot create '%s': its directory does not exist", path);
    if (errno == ENAMETOOLONG || errno == ELOOP || errno == EEXIST)
        return fm_fail(err, FM_ECREATE, "cannot create '%s': %s", path, strerror(errno));
    return fm_fail_errno(err, "cannot create '%s'", path);
}

/* After a failed write-back Linux marks the pages clean, so a second fsync would wrongly report
 * success: do not retry. */
int fm_temporary_flush(int fd, const char *name, struct fm_err *err)
{
    if (fsync(fd) == 0 || errno == EINVAL || errno == EROFS || errno == ENOTSUP)
        return FM_OK; /* the last three: a pipe, or a filesystem without fsync */
    int rc = fm_fail_errno(err, "cannot flush '%s' to the disk", name);
    return rc == FM_EPERM ? (err->code = FM_EIO) : rc;
}

int fm_temporary_flush_parent(int fd, const char *path, struct fm_err *err)
{
    struct fm_err inner = {0};
    if (fd < 0 || !fm_temporary_flush(fd, path, &inner))
        return FM_OK;
    return fm_fail(err, inner.code,
                   "%s; the file is complete and is kept, but a system crash may undo the rename",
                   inner.text);
}

int fm_temporary_open_parent(int *fd, const char *path, struct fm_err *err)
{
    char *home = fm_file_home(path, err);
    if (!home)
        return err->code;
    *fd = open(home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = *fd < 0 && errno != EACCES ? fm_fail_errno(err, "cannot open '%s'", home) : FM_OK;
    free(home);
    return rc;
}

int fm_temporary_rename(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (link(from, to) != 0) /* a filesystem without that flag */
        return -1;
    return unlink(from);
}

void fm_file_remove_temporaries(void)
{
    int saved = errno;
    atomic_store(&removing, true);
    /* Wait a limited time: a disk may hang, or the thread inside may be the one that runs this
     * handler. */
    for (int ms = 0; ms < WAIT_MS && atomic_load(&inside) > 0; ms++)
        poll(NULL, 0, 1);
    for (int i = 0; i < FM_TEMPORARIES_MAX; i++) {
        if (atomic_load(&table[i].state) != LIVE)
            continue;
        if (table[i].directory)
            fm_temporary_rmdir(i, table[i].path);
        else
            unlink(table[i].path);
    }
    errno = saved;
}
