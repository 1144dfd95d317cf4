/* The allowed files are those of the guard.  Files that do not exist or cannot be opened are
 * skipped; the tool reports them later.  A directory that cannot be listed completely is an error
 * here, because the targets of links that were missed would be refused later, as if the user had
 * not named the directory. */
#include "lib/run/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/bundle/partname.h"
#include "formats/file/file.h"
#include "formats/file/sandbox.h"
#include "formats/file/spool.h"
#include "formats/tensor/hfcache.h"
#include "lib/base/names.h"

/* Allow the target of a name in the directory, if it is a link. */
static int read_link(struct fm_sandbox *s, int dirfd, const char *path, const char *name,
                     struct fm_err *err)
{
    char *file, target[PATH_MAX];
    struct stat st;
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? FM_OK : fm_fail_errno(err, "cannot examine '%s/%s'", path, name);
    if (!S_ISLNK(st.st_mode))
        return FM_OK;
    if (!(file = fm_file_join(path, name, err)))
        return err->code;
    if (realpath(file, target) &&
        (fm_ends_with(target, ".safetensors") || fm_ends_with(target, ".json")))
        fm_sandbox_read(s, target);
    free(file);
    return FM_OK;
}

/* Allow the targets of links in the directory. */
static int read_linked(struct fm_sandbox *s, const char *path, struct fm_err *err)
{
    struct fm_err unused = {0};
    struct fm_file_list list;
    int fd;
    if (fm_file_open_directory(&fd, path, &unused))
        return FM_OK;
    int rc = fm_file_list(&list, fd, path, err);
    for (size_t i = 0; i < list.count && !rc; i++)
        rc = read_link(s, fd, path, list.name[i], err);
    fm_file_list_release(&list);
    close(fd);
    return rc;
}

static int read_directory(struct fm_sandbox *s, const char *path, struct fm_err *err)
{
    char home[PATH_MAX], blobs[PATH_MAX], file[PATH_MAX + 2];
    fm_sandbox_read(s, path);
    int rc = read_linked(s, path, err);
    if (rc || !realpath(path, home) ||
        (size_t)snprintf(file, sizeof file, "%s/../../blobs", home) >= sizeof file ||
        !realpath(file, blobs))
        return rc;
    snprintf(file, sizeof file, "%s/x", blobs);
    if (fm_hfcache_is_own_blob(file, home))
        fm_sandbox_read(s, blobs);
    return FM_OK;
}

static void read_file(struct fm_sandbox *s, const char *path)
{
    char *beside = NULL;
    int number, parts;
    fm_sandbox_read(s, path);
    if (asprintf(&beside, "%s.sig", path) >= 0) {
        fm_sandbox_read(s, beside);
        free(beside);
    }
    if (!fm_partname_parse(path, &number, &parts))
        return;
    for (int k = 1; k <= parts && k <= FM_PARTS_MAX; k++) {
        struct fm_err unused = {0};
        char *other = fm_partname_other(path, k, &unused);
        if (other)
            fm_sandbox_read(s, other);
        free(other);
    }
}

/* Call `allow` for the directory of a file. */
static void allow_home(void (*allow)(struct fm_sandbox *s, const char *directory),
                       struct fm_sandbox *s, const char *path)
{
    struct fm_err unused = {0};
    char *home = fm_file_home(path, &unused);
    if (home)
        allow(s, home);
    free(home);
}

/* Allow reading a file or directory.  If it does not exist, allow listing its directory, which
 * may have the parts of a bundle with that name. */
static int read_any(struct fm_sandbox *s, const char *path, struct fm_err *err)
{
    struct fm_err unused = {0};
    struct stat st;
    if (stat(path, &st) != 0) {
        char *first = fm_partname_find(path, &unused);
        allow_home(fm_sandbox_list, s, path);
        if (first)
            read_file(s, first);
        free(first);
    } else if (S_ISDIR(st.st_mode)) {
        return read_directory(s, path, err);
    } else {
        read_file(s, path);
    }
    return FM_OK;
}

/* The number in a name of an open descriptor, such as /dev/fd/3; -1 for other names. */
static int descriptor_of(const char *path)
{
    static const char *const folder[] = {"/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"};
    for (size_t i = 0; i < sizeof folder / sizeof *folder; i++) {
        size_t n = strlen(folder[i]), digits;
        if (strncmp(path, folder[i], n) == 0 && (digits = strspn(path + n, "0123456789")) > 0 &&
            digits < 10 && !path[n + digits])
            return atoi(path + n);
    }
    return -1;
}

int fm_confine(const struct fm_guard *guard, int descriptor, bool rewrites, bool *files,
               struct fm_err *err)
{
    struct fm_sandbox s;
    bool named = false, piped = false;
    int rc = FM_OK;
    int keep[1 + FM_GUARD_READS_MAX + FM_GUARD_WRITES_MAX] = {descriptor}, n = 1;
    for (int i = 0; i < guard->reads; i++)
        keep[n++] = descriptor_of(guard->read[i].path);
    for (int i = 0; i < guard->writes; i++)
        keep[n++] = descriptor_of(guard->write[i].path);
    fm_sandbox_close(keep, n);
    fm_sandbox_open(&s);
    /* The last entry is standard input, which is already open. */
    for (int i = 0; i + 1 < guard->reads && !rc; i++) {
        const struct fm_guard_read *r = &guard->read[i];
        bool operand = strcmp(r->what, "the operand") == 0, stream = strcmp(r->path, "-") == 0;
        struct stat st;
        named = named || (operand && !stream);
        piped = piped || stream;
        if (stream)
            continue;
        rc = read_any(&s, r->path, err);
        if (operand && rewrites && stat(r->path, &st) == 0 && S_ISDIR(st.st_mode))
            fm_sandbox_write(&s, r->path);
        else if (operand && rewrites)
            allow_home(fm_sandbox_write, &s, r->path);
    }
    for (int i = 0; i < guard->writes; i++)
        if (strcmp(guard->write[i].path, "-") != 0)
            allow_home(fm_sandbox_write, &s, guard->write[i].path);
    if ((piped || !named) && fm_spool_needed("-"))
        fm_sandbox_write(&s, fm_file_temp_directory());
    *files = (fm_sandbox_enter(&s) & FM_SANDBOX_FILES) != 0;
    return rc;
}
