/*
 * A directory that appears whole: its files are created in a hidden directory beside it, which is
 * renamed when all of them are on the disk.  An existing directory is exchanged for the new one in
 * one step, and only if it is clearly one of our exports: a checkpoint also has plain files and a
 * config.json, and must never be lost to a mistyped name.
 */
#include "formats/file/file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/file/temporary.h"
#include "lib/base/mem.h"

/*
 * Check that everything in a directory may be removed: it is empty, or it has the mark of an export
 * and otherwise only plain files that this export listed.  A checkpoint, or a user's adapter next
 * to our weights, must never be lost.  Of several other files the first by name is reported, so
 * that the order of the file system does not matter.
 */
static int check_files(const struct fm_file_list *in, int dirfd, const char *path,
                       const struct fm_outdir_listed *listed, struct fm_err *err)
{
    bool mark = false;
    for (size_t i = 0; i < in->count; i++)
        mark |= strcmp(in->name[i], listed->mark) == 0;
    for (size_t i = 0; i < in->count; i++) {
        const char *name = in->name[i];
        struct stat st;
        bool file = fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
        if (file && (!strcmp(name, listed->mark) || listed->has(listed->self, name)))
            continue;
        return fm_fail(err, FM_ECREATE,
                       file
                           ? "'%s' contains '%s', which is not part of an export; move it away, or "
                             "remove the directory yourself"
                           : "'%s' contains '%s', which is not a regular file and cannot be part "
                             "of an export; remove it yourself",
                       path, name);
    }
    if (mark || in->count == 0)
        return FM_OK;
    return fm_fail(err, FM_ECREATE, "'%s' is not an export (it has no %s); remove it yourself",
                   path, listed->mark);
}

/* `there` is the current path of the directory, `path` its name in messages. */
static int check_directory(const char *there, const char *path,
                           const struct fm_outdir_listed *listed, struct fm_err *err)
{
    struct fm_file_list list;
    int fd = open(there, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fm_fail_errno(err, "cannot open '%s'", path);
    int rc = fm_file_list(&list, fd, path, err);
    if (!rc)
        rc = check_files(&list, fd, path, listed, err);
    fm_file_list_release(&list);
    close(fd);
    return rc;
}

static int check_target(const char *path, const struct fm_outdir_listed *listed, struct fm_err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return FM_OK;
    if (!S_ISDIR(st.st_mode))
        return fm_fail(err, FM_ECREATE, "'%s' exists and is not a directory", path);
    if (!listed) {
        fm_fail(err, FM_ECREATE, "'%s' exists", path);
        return fm_advise(err, FM_ADVISE_REPLACE);
    }
    return check_directory(path, path, listed, err);
}

/* dev and ino of `path`, 0 if it does not exist. */
static void identify(const char *path, uint64_t *dev, uint64_t *ino)
{
    struct stat st;
    bool there = lstat(path, &st) == 0;
    *dev = there ? (uint64_t)st.st_dev : 0;
    *ino = there ? (uint64_t)st.st_ino : 0;
}

/* FM_ECREATE unless `there` is the directory that d->path was at open. */
static int check_same(const struct fm_outdir *d, const char *there, struct fm_err *err)
{
    uint64_t dev, ino;
    identify(there, &dev, &ino);
    if (dev == d->dev && ino == d->ino)
        return FM_OK;
    return fm_fail(err, FM_ECREATE,
                   "another process has %s '%s', which is not overwritten; run the command again "
                   "to replace it",
                   d->ino ? "replaced" : "made", d->path);
}

static char *without_slashes(const char *path, struct fm_err *err)
{
    char *copy = fm_strdup(path, err);
    if (copy)
        for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/'; n--)
            copy[n - 1] = 0;
    return copy;
}

int fm_outdir_check(const char *path, const struct fm_outdir_listed *force, struct fm_err *err)
{
    char *copy = without_slashes(path, err);
    if (!copy)
        return err->code;
    int rc = check_target(copy, force, err);
    if (!rc)
        rc = fm_temporary_check(copy, err);
    free(copy);
    return rc;
}

/* Create the hidden directory next to d->path. */
static int make_directory(struct fm_outdir *d, struct fm_err *err)
{
    d->temp = fm_temporary_new(d->path, "partial", true, &d->slot, err);
    if (!d->temp || fm_temporary_enter(err))
        return err->code;
    int failed = mkdir(d->temp, 0777);
    fm_temporary_leave();
    if (failed)
        return fm_temporary_fail(d->path, err);
    d->fd = open(d->temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->fd < 0 && errno != ENOENT)
        return fm_fail_errno(err, "cannot open '%s'", d->temp);
    if (d->fd >= 0 && fm_temporary_own(d->fd))
        return FM_OK;
    if (d->fd >= 0) /* another process removed it before it was locked */
        close(d->fd);
    d->fd = -1;
    fm_temporary_forget(d->slot);
    free(d->temp);
    return make_directory(d, err);
}

int fm_outdir_open(struct fm_outdir *d, const char *path, const struct fm_outdir_listed *force,
                   struct fm_err *err)
{
    *d = (struct fm_outdir){.fd = -1, .slot = -1, .force = force};
    d->path = without_slashes(path, err);
    if (!d->path)
        return err->code;
    identify(d->path, &d->dev, &d->ino);
    int rc = check_target(d->path, force, err);
    if (!rc)
        rc = make_directory(d, err);
    if (rc)
        fm_outdir_abandon(d);
    return rc;
}

int fm_outdir_file(struct fm_outdir *d, struct fm_output *o, const char *name, struct fm_err *err)
{
    *o = (struct fm_output){.fd = -1, .slot = -1};
    assert(*name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
    char *path = fm_file_join(d->temp, name, err);
    if (!path)
        return err->code;
    int rc = fm_output_open(o, path, false, false, err);
    free(path);
    if (rc)
        return fm_within(err, "'%s'", d->path);
    fm_temporary_forget(o->slot); /* covered by the directory's own entry */
    o->slot = -1;
    o->inside = true;
    return FM_OK;
}

static int exchange(const struct fm_outdir *d, struct fm_err *err)
{
    if (renameat2(AT_FDCWD, d->temp, AT_FDCWD, d->path, RENAME_EXCHANGE) == 0)
        return FM_OK;
    return fm_fail(err, FM_ECREATE, "cannot replace '%s': %s; remove it first", d->path,
                   strerror(errno));
}

/* The old directory has the temporary's name, which the next run would remove: give it another name
 * in the same directory.  The error states that name first, without its directory, so that it is
 * not cut off after a long path. */
static int keep_replaced(struct fm_outdir *d, struct fm_err *err)
{
    char name[PATH_MAX];
    struct fm_err why = *err;
    bool moved = false;
    for (int i = 1; i < 1000 && !moved; i++) {
        size_t n = (size_t)snprintf(name, sizeof name, "%s.replaced-%d", d->path, i);
        moved = n < sizeof name && fm_temporary_rename(d->temp, name) == 0;
        if (!moved && errno != EEXIST)
            break;
    }
    fm_fail(err, why.code, "your files are in '%s' now, beside the new directory%s: %s",
            basename(moved ? name : d->temp),
            moved ? "" : "; rename it, because the next run removes it", why.text);
    fm_temporary_forget(d->slot);
    d->slot = -1;
    free(d->temp);
    d->temp = NULL;
    return why.code;
}

/* Exchange the new directory with the old one, then remove the old one's files.  If a file was
 * added to the old directory, or the directory was replaced, at the last moment, exchange them
 * back. */
static int replace(struct fm_outdir *d, struct fm_err *err)
{
    struct fm_err unused = {0};
    assert(d->force && d->temp);
    /*
     *     before   PATH old, TEMP new        checked: PATH is still the directory seen at open
     *     after    PATH new, TEMP old        checked again: nothing came in between
     *
     * Only then are the old files removed, under the temporary name.
     */
    if (check_same(d, d->path, err) || check_target(d->path, d->force, err) || exchange(d, err))
        return err->code;
    int rc = check_same(d, d->temp, err);
    if (!rc)
        rc = check_directory(d->temp, d->path, d->force, err);
    if (!rc)
        fm_temporary_rmdir(d->slot, d->temp);
    else if (exchange(d, &unused))
        rc = keep_replaced(d, err);
    return rc;
}

/* Rename the directory to its final name. */
static int appear(struct fm_outdir *d, struct fm_err *err)
{
    struct stat st;
    int rc = fm_temporary_enter(err);
    if (rc)
        return rc;
    if (d->force && lstat(d->path, &st) == 0)
        rc = replace(d, err);
    else if (renameat2(AT_FDCWD, d->temp, AT_FDCWD, d->path, RENAME_NOREPLACE) != 0 &&
             (errno != EINVAL || lstat(d->path, &st) == 0 || rename(d->temp, d->path) != 0))
        rc = fm_temporary_fail(d->path, err);
    fm_temporary_leave();
    return rc;
}

int fm_outdir_commit(struct fm_outdir *d, struct fm_err *err)
{
    assert(d->fd >= 0);
    int parent = -1, rc = fm_temporary_flush(d->fd, d->path, err);
    if (!rc)
        rc = fm_temporary_open_parent(&parent, d->path, err);
    if (!rc)
        rc = appear(d, err);
    if (rc)
        goto out;
    free(d->temp);
    d->temp = NULL;
    rc = fm_temporary_flush_parent(parent, d->path, err);
out:
    if (parent >= 0)
        close(parent);
    fm_outdir_abandon(d);
    return rc;
}

void fm_outdir_abandon(struct fm_outdir *d)
{
    if (!d->path)
        return; /* zeroed or never opened */
    if (d->fd >= 0)
        close(d->fd);
    if (d->temp)
        fm_temporary_rmdir(d->slot, d->temp);
    fm_temporary_forget(d->slot);
    free(d->temp);
    free(d->path);
    *d = (struct fm_outdir){.fd = -1, .slot = -1};
}

/*
 * ---- files that appear together ----
 *
 * Several renames are not atomic.  So if there is a set under the same names, it can be put back at
 * any time until the new one is complete:
 *
 *     1. Every old file gets a second name in ASIDE, a hidden directory.
 *     2. The old first file is removed: no reader takes a mixture for a set.
 *     3. The new files get their names, the first one last.
 *     4. ASIDE is removed.
 *
 * The first file decides, also after kill -9: while it exists, the set of which it is a part is
 * whole, and ASIDE is superfluous.  If it does not, ASIDE has all old files or, while they are put
 * back, those that have no name yet.
 */

#define ASIDE "replaced"

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static bool move_file(const char *from, const char *to, const char *name)
{
    char before[PATH_MAX], after[PATH_MAX];
    return (size_t)snprintf(before, sizeof before, "%s/%s", from, name) < sizeof before &&
           (size_t)snprintf(after, sizeof after, "%s/%s", to, name) < sizeof after &&
           rename(before, after) == 0;
}

/* Put the files in ASIDE back, the first one last, unless a first file exists; remove ASIDE. */
static void put_back(const char *home, const char *aside)
{
    struct fm_file_list list = {0};
    struct fm_err unused = {0};
    int fd;
    if (fm_file_open_directory(&fd, aside, &unused))
        return;
    bool done = !fm_file_list(&list, fd, aside, &unused);
    size_t first = 0; /* names of a set are in the order of its files, and so is the list */
    close(fd);
    while (first < list.count && list.name[first][0] == '.')
        first++;
    if (first < list.count) {
        char path[PATH_MAX];
        bool whole =
            (size_t)snprintf(path, sizeof path, "%s/%s", home, list.name[first]) < sizeof path &&
            exists(path);
        for (size_t i = 0; i < list.count && !whole && done; i++)
            if (list.name[i][0] != '.' && i != first)
                done = move_file(aside, home, list.name[i]);
        done = done && (whole || move_file(aside, home, list.name[first]));
    }
    fm_file_list_release(&list);
    if (done)
        fm_temporary_rmdir(-1, aside);
}

void fm_outdir_spread_restore(const char *path)
{
    fm_temporary_each_left(path, ASIDE, put_back);
}

/* A set that is being replaced. */
struct aside {
    int fd; /* -1: there is no old set */
    char *path;
};

/* Make ASIDE, with the name of the temporary directory but for its kind. */
static int make_aside(struct aside *a, const struct fm_outdir *d, struct fm_err *err)
{
    static const char kind[] = "partial-";
    char *at = NULL;
    size_t size = strlen(d->temp) + sizeof ASIDE + 1;
    a->path = fm_alloc(size, 1, "a path", err);
    if (!a->path)
        return err->code;
    for (char *next = d->temp; (next = strstr(next, kind)); next++)
        at = next;
    assert(at); /* fm_temporary_new put it there */
    snprintf(a->path, size, "%.*s" ASIDE "-%s", (int)(at - d->temp), d->temp, at + strlen(kind));
    if (mkdir(a->path, 0777))
        return fm_temporary_fail(d->path, err);
    a->fd = open(a->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (a->fd >= 0 && fm_temporary_own(a->fd))
        return FM_OK;
    return fm_fail_errno(err, "cannot open '%s'", a->path);
}

/* Step 1.  The first name comes first, so that it is in an ASIDE that has any. */
static int set_aside(struct aside *a, const struct fm_outdir *d, char *const *name, size_t names,
                     struct fm_err *err)
{
    int rc = make_aside(a, d, err);
    for (size_t i = 0; i < names && !rc; i++) {
        char *to = fm_file_join(a->path, basename(name[i]), err);
        if (!to)
            rc = err->code;
        else if (link(name[i], to) != 0)
            rc = fm_fail(err, FM_ECREATE, "cannot replace '%s': %s; remove it first", name[i],
                         strerror(errno));
        free(to);
    }
    return rc ? rc : fm_temporary_flush(a->fd, a->path, err);
}

/* After a failure, put the old files back.  The error says where those are that cannot be. */
static int undo(const struct aside *a, const char *path, struct fm_err *err)
{
    char home[PATH_MAX];
    const char *name = basename(path);
    if (!a->path)
        return err->code;
    snprintf(home, sizeof home, "%.*s.", (int)(name - path), path);
    put_back(home, a->path);
    if (!exists(a->path))
        return fm_within(err, "'%s' is as it was", path);
    return fm_within(
        err,
        "'%s' was not replaced; its files are in '%s', and the next run that writes it "
        "puts them back",
        path, basename(a->path));
}

int fm_outdir_spread_open(struct fm_outdir *d, const char *path, char *const *name, size_t names,
                          bool force, struct fm_err *err)
{
    *d = (struct fm_outdir){.fd = -1, .slot = -1};
    int rc = FM_OK;
    fm_outdir_spread_restore(path);
    for (size_t i = 0; i < names && !rc; i++)
        rc = fm_output_check(name[i], force || (i > 0 && !exists(name[0])), err);
    if (!rc && !(d->path = fm_strdup(path, err)))
        rc = err->code;
    if (!rc)
        rc = make_directory(d, err);
    if (rc)
        fm_outdir_abandon(d);
    return rc;
}

/* Steps 2 and 3; on failure, remove the new files that have their names. */
static int rename_all(const struct fm_outdir *d, char *const *name, size_t names, bool force,
                      struct fm_err *err)
{
    int rc = FM_OK;
    size_t from = names; /* files from here on have their final names */
    bool first = exists(name[0]);
    if (first && force && unlink(name[0]) != 0)
        return fm_temporary_fail(name[0], err);
    while (from > 0 && !rc) {
        const char *to = name[from - 1];
        char *made = fm_file_join(d->temp, basename(to), err);
        bool replaces = force || (from > 1 && !first);
        if (!made)
            rc = err->code;
        else if (replaces ? rename(made, to) : fm_temporary_rename(made, to))
            rc = fm_temporary_fail(to, err);
        else
            from--;
        free(made);
    }
    assert(rc || from == 0);
    for (size_t i = from; rc && i < names; i++)
        unlink(name[i]);
    return rc;
}

/* Give the files their names, and on failure the old ones theirs again. */
static int replace_all(const struct fm_outdir *d, char *const *name, size_t names, bool force,
                       struct fm_err *err)
{
    struct aside a = {.fd = -1};
    bool whole = force; /* there is an old set, perhaps a complete one */
    for (size_t i = 0; i < names && whole; i++)
        whole = exists(name[i]);
    int rc = whole ? set_aside(&a, d, name, names, err) : FM_OK;
    if (!rc)
        rc = rename_all(d, name, names, force, err);
    if (rc)
        rc = undo(&a, name[0], err);
    else if (a.path)
        fm_temporary_rmdir(-1, a.path);
    if (a.fd >= 0)
        close(a.fd);
    free(a.path);
    return rc;
}

int fm_outdir_spread(struct fm_outdir *d, char *const *name, size_t names, bool force,
                     struct fm_err *err)
{
    assert(d->fd >= 0);
    int parent = -1, rc = FM_OK;
    assert(names > 0);
    if (fm_temporary_flush(d->fd, d->path, err) ||
        fm_temporary_open_parent(&parent, d->path, err) || fm_temporary_enter(err)) {
        rc = err->code;
        goto out;
    }
    rc = replace_all(d, name, names, force, err);
    if (!rc)
        fm_temporary_rmdir(d->slot, d->temp);
    fm_temporary_leave();
    if (rc)
        goto out;
    if (force)
        rc = fm_temporary_flush_parent(parent, name[0], err);
    else if (parent >= 0 && (rc = fm_temporary_flush(parent, d->path, err)))
        for (size_t i = 0; i < names; i++)
            unlink(name[i]);
out:
    if (parent >= 0)
        close(parent);
    fm_outdir_abandon(d);
    return rc;
}
