#include "formats/file/file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/file/temporary.h"
#include "lib/base/mem.h"

/*
 * True where the directory holds plain files alone, the mark of an export among them, or nothing
 * at all.  A checkpoint has plain files and a config.json too, and must never be replaced.
 */
static bool is_export(DIR *dir)
{
    bool mark = false, empty = true;
    const struct dirent *d;
    while ((d = readdir(dir))) {
        if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
            continue;
        struct stat st;
        if (fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            return false;
        empty = false;
        mark |= !strcmp(d->d_name, FM_OUTDIR_MARK);
    }
    return mark || empty;
}

static int check_target(const char *path, bool force, struct fm_err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return FM_OK;
    if (!S_ISDIR(st.st_mode))
        return fm_fail(err, FM_ECREATE, "'%s' exists and is not a directory", path);
    if (!force)
        return fm_fail(err, FM_ECREATE, "'%s' exists; use --force to replace it", path);
    DIR *dir = opendir(path);
    if (!dir)
        return fm_fail_errno(err, "cannot open '%s'", path);
    bool ours = is_export(dir);
    closedir(dir);
    if (!ours)
        return fm_fail(err, FM_ECREATE,
                       "'%s' is no export (%s and plain files only); remove it yourself", path,
                       FM_OUTDIR_MARK);
    return FM_OK;
}

static char *without_slashes(const char *path, struct fm_err *err)
{
    char *copy = fm_strdup(path, err);
    if (copy)
        for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/'; n--)
            copy[n - 1] = 0;
    return copy;
}

int fm_outdir_check(const char *path, bool force, struct fm_err *err)
{
    char *copy = without_slashes(path, err);
    if (!copy)
        return err->code;
    int rc = check_target(copy, force, err);
    if (rc == FM_OK)
        rc = fm_temporary_check(copy, err);
    free(copy);
    return rc;
}

static int make_directory(const struct fm_outdir *d, struct fm_err *err)
{
    if (fm_temporary_enter(err) != FM_OK)
        return err->code;
    int failed = mkdir(d->temp, 0777);
    fm_temporary_leave();
    return failed ? fm_temporary_fail(d->path, err) : FM_OK;
}

int fm_outdir_open(struct fm_outdir *d, const char *path, bool force, struct fm_err *err)
{
    *d = (struct fm_outdir){.fd = -1, .slot = -1, .force = force};
    d->path = without_slashes(path, err);
    if (!d->path)
        return err->code;
    int rc = check_target(d->path, force, err);
    if (rc == FM_OK && !(d->temp = fm_temporary_new(d->path, "partial", true, &d->slot, err)))
        rc = err->code;
    if (rc == FM_OK)
        rc = make_directory(d, err);
    if (rc == FM_OK && (d->fd = open(d->temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        rc = fm_fail_errno(err, "cannot open '%s'", d->temp);
    if (rc != FM_OK)
        fm_outdir_abandon(d);
    return rc;
}

int fm_outdir_file(struct fm_outdir *d, struct fm_output *o, const char *name, struct fm_err *err)
{
    *o = (struct fm_output){.fd = -1, .slot = -1};
    assert(*name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
    char *path = NULL;
    if (asprintf(&path, "%s/%s", d->temp, name) < 0)
        return fm_fail(err, FM_ENOMEM, "no memory for the name '%s'", name);
    int rc = fm_output_open(o, path, false, false, err);
    free(path);
    if (rc != FM_OK)
        return fm_within(err, "'%s'", d->path);
    fm_temporary_forget(o->slot); /* the directory's own entry covers it */
    o->slot = -1;
    o->inside = true;
    return FM_OK;
}

/* Put the new directory where the old one was, then remove the old one's files. */
static int replace(struct fm_outdir *d, struct fm_err *err)
{
    int rc = check_target(d->path, true, err);
    if (rc != FM_OK)
        return rc;
    if (renameat2(AT_FDCWD, d->temp, AT_FDCWD, d->path, RENAME_EXCHANGE) != 0)
        return fm_fail(err, FM_ECREATE, "cannot replace '%s': %s; remove it first", d->path,
                       strerror(errno));
    fm_temporary_rmdir(d->temp);
    return FM_OK;
}

/* Give it its name. */
static int appear(struct fm_outdir *d, struct fm_err *err)
{
    struct stat st;
    int rc = fm_temporary_enter(err);
    if (rc != FM_OK)
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
    int rc = fm_temporary_flush(d->fd, d->path, err);
    if (rc == FM_OK)
        rc = appear(d, err);
    if (rc == FM_OK) {
        free(d->temp);
        d->temp = NULL;
        rc = fm_temporary_flush_parent(d->path, err);
    }
    fm_outdir_abandon(d);
    return rc;
}

void fm_outdir_abandon(struct fm_outdir *d)
{
    if (!d->path)
        return; /* zeroed or never open */
    if (d->fd >= 0)
        close(d->fd);
    if (d->temp)
        fm_temporary_rmdir(d->temp);
    fm_temporary_forget(d->slot);
    free(d->temp);
    free(d->path);
    *d = (struct fm_outdir){.fd = -1, .slot = -1};
}
