/*
 * Every file that is written is compared with every file that is read.  Names are not enough
 * (links, `..`, two spellings of one path), so existing files are compared by device and inode, and
 * others by the identity of their directory and their name.  Without --force an existing file is
 * replaced only if its content shows that the same tool made it for the same purpose.
 */
#include "lib/run/guard.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/file/file.h"
#include "formats/file/lock.h"

#define OWN_BYTES_MAX ((size_t)64 << 20) /* limit of reports and plots that are recognised */

/* The file that a name refers to. */
struct spot {
    char path[PATH_MAX]; /* without trailing slashes */
    const char *name;    /* its last component; NULL: a standard stream */
    bool there;
    struct stat st; /* if it exists, after following links; else zero */
    bool home_there;
    struct stat home; /* the directory of the name */
};

void fm_guard_reads(struct fm_guard *g, const char *what, const char *path)
{
    if (!path)
        return;
    assert(g->reads < FM_GUARD_READS_MAX);
    g->read[g->reads++] = (struct fm_guard_read){what, path};
}

void fm_guard_writes(struct fm_guard *g, const char *what, const char *path,
                     enum fm_guard_kind kind, fm_guard_own *own)
{
    if (!path)
        return;
    assert(g->writes < FM_GUARD_WRITES_MAX);
    g->write[g->writes++] = (struct fm_guard_write){what, path, kind, own};
    if (kind == FM_GUARD_STATE)
        fm_guard_writes(g, "the lock of --state", path, FM_GUARD_LOCK, NULL);
}

/* ---- names ---- */

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Find the file that a name refers to; false if the name is too long. */
static bool locate(struct spot *s, const char *path, const char *suffix)
{
    char home[PATH_MAX + 2];
    size_t length;
    int before = (int)(fm_file_last(path, &length) - path);
    *s = (struct spot){.name = s->path + before};
    if (snprintf(s->path, sizeof s->path, "%.*s%s", before + (int)length, path, suffix) >=
        (int)sizeof s->path)
        return false;
    snprintf(home, sizeof home, "%.*s.", before, path);
    s->there = stat(s->path, &s->st) == 0;
    s->home_there = stat(home, &s->home) == 0;
    return true;
}

static bool locate_write(struct spot *s, const struct fm_guard_write *w)
{
    return locate(s, w->path, w->kind == FM_GUARD_LOCK ? FM_LOCK_SUFFIX : "");
}

/* Locate a standard stream; false if it is not a regular file. */
static bool locate_stream(struct spot *s, int fd)
{
    *s = (struct spot){.there = false};
    return s->there = fstat(fd, &s->st) == 0 && S_ISREG(s->st.st_mode);
}

static bool is_stream(const struct fm_guard_write *w)
{
    return strcmp(w->path, "-") == 0 && w->kind < FM_GUARD_STATE;
}

/* True if both names refer to one file, existing or not. */
static bool is_same(const struct spot *a, const struct spot *b)
{
    if (a->there && b->there && is_same_file(&a->st, &b->st))
        return true;
    return a->home_there && b->home_there && is_same_file(&a->home, &b->home) &&
           strcmp(a->name, b->name) == 0;
}

static bool is_directory(const struct spot *s)
{
    return s->there && S_ISDIR(s->st.st_mode);
}

/* True if the name is in the directory, or in one below it. */
static bool is_below(const struct spot *s, const struct spot *directory)
{
    char home[PATH_MAX + 2], real[PATH_MAX];
    struct stat st;
    if (!is_directory(directory) || !s->home_there)
        return false;
    snprintf(home, sizeof home, "%.*s.", (int)(s->name - s->path), s->path);
    if (!realpath(home, real))
        return false;
    for (;;) {
        if (stat(real, &st) == 0 && is_same_file(&st, &directory->st))
            return true;
        char *slash = strrchr(real, '/');
        if (!slash || !real[1])
            return false;
        slash[slash == real] = '\0';
    }
}

/* Find out whether an entry of the directory refers to the file, such as a link in a checkpoint
 * cache or a hard link to a shard.  False for a directory that cannot be opened: the code that
 * reads it reports the error. */
static int find_linked(bool *linked, const struct spot *s, const struct spot *directory,
                       struct fm_err *err)
{
    struct fm_err unused = {0};
    struct fm_file_list list;
    int fd;
    *linked = false;
    if (!s->there || !is_directory(directory) ||
        fm_file_open_directory(&fd, directory->path, &unused))
        return FM_OK;
    int rc = fm_file_list(&list, fd, directory->path, err);
    for (size_t i = 0; i < list.count && !*linked; i++) {
        struct stat st;
        *linked = fstatat(fd, list.name[i], &st, 0) == 0 && S_ISREG(st.st_mode) &&
                  is_same_file(&st, &s->st);
    }
    fm_file_list_release(&list);
    close(fd);
    return rc;
}

/* ---- the rule ---- */

/* True if the file exists and is an earlier one of the same tool. */
static bool is_own(const char *path, fm_guard_own *own, const char *tool)
{
    struct fm_file f;
    struct fm_err unused = {0};
    char *text;
    size_t size;
    bool is = false;
    if (strcmp(path, "-") == 0 || fm_file_open(&f, path, &unused))
        return false;
    if (!fm_file_slurp(&f, OWN_BYTES_MAX, &text, &size, &unused)) {
        is = own(text, size, tool);
        free(text);
    }
    fm_file_close(&f);
    return is;
}

/* Check an output `s`, called `name` in messages, against the inputs.  A `folder` may contain them.
 */
static int check_read(const struct spot *s, const char *name, bool folder,
                      const struct fm_guard_read *read, struct fm_err *err)
{
    struct spot r;
    bool stream = strcmp(read->path, "-") == 0, linked = false;
    if (!(stream ? locate_stream(&r, STDIN_FILENO) : locate(&r, read->path, "")))
        return FM_OK;
    if (is_same(s, &r))
        return fm_fail(err, FM_EUSAGE, "'%s' is also an input (%s); choose another name", name,
                       read->what);
    if (stream)
        return FM_OK;
    if (is_below(s, &r))
        return fm_fail(err, FM_EUSAGE,
                       "'%s' is inside '%s', which is an input (%s); choose another place", name,
                       r.path, read->what);
    if (folder)
        return FM_OK;
    if (s->name && find_linked(&linked, s, &r, err))
        return err->code;
    if (linked)
        return fm_fail(err, FM_EUSAGE,
                       "'%s' is a file of '%s', which is an input (%s); choose another name", name,
                       r.path, read->what);
    if (is_below(&r, s))
        return fm_fail(err, FM_EUSAGE,
                       "'%s' contains '%s', which is an input (%s); choose another name", name,
                       r.path, read->what);
    return FM_OK;
}

static int check_reads(const struct fm_guard *g, const struct spot *s, const char *name,
                       bool folder, struct fm_err *err)
{
    int rc = FM_OK;
    for (int i = 0; !rc && i < g->reads; i++)
        rc = check_read(s, name, folder, &g->read[i], err);
    return rc;
}

/* Check `s` against the outputs before it. */
static int check_twins(const struct fm_guard *g, int write, const struct spot *s,
                       struct fm_err *err)
{
    struct spot other;
    for (int i = 0; i < write; i++) {
        const struct fm_guard_write *w = &g->write[i];
        if (is_stream(w) || !locate_write(&other, w))
            continue;
        if (is_same(s, &other))
            return fm_fail(err, FM_EUSAGE, "'%s' is also written by %s; choose another name",
                           s->path, w->what);
        if (is_below(s, &other) || (g->write[write].kind != FM_GUARD_FOLDER && is_below(&other, s)))
            return fm_fail(err, FM_EUSAGE,
                           "one of '%s' and '%s' (%s) is inside the other; choose another name",
                           s->path, other.path, w->what);
    }
    return FM_OK;
}

/* Report the file that prevents a write. */
static int check_target(const struct fm_guard *g, const struct fm_guard_write *w,
                        struct fm_err *err)
{
    struct stat st;
    if (w->kind == FM_GUARD_RESULT)
        return fm_output_check(w->path, g->force, err);
    if (w->kind == FM_GUARD_DIRECTORY)
        return g->directory(w->path, g->force, err);
    if (w->kind == FM_GUARD_LOCK)
        return FM_OK; /* checked by formats/file/lock.h */
    if (w->kind == FM_GUARD_FOLDER && stat(w->path, &st) == 0)
        return S_ISDIR(st.st_mode)
                   ? FM_OK
                   : fm_fail(err, FM_ECREATE, "'%s' exists and is not a directory", w->path);
    if (w->kind == FM_GUARD_STATE && strcmp(w->path, "-") == 0)
        return fm_fail(err, FM_EUSAGE, "a state must be a file, not standard output");
    if (w->kind == FM_GUARD_SIDE && !g->force && lstat(w->path, &st) == 0 && S_ISREG(st.st_mode) &&
        !is_own(w->path, w->own, g->tool))
        return fm_fail(err, FM_ECREATE,
                       "'%s' exists and %s did not write it; use --force to replace it", w->path,
                       g->tool);
    return fm_output_check(w->path, true, err);
}

static int check_write(const struct fm_guard *g, int write, struct fm_err *err)
{
    const struct fm_guard_write *w = &g->write[write];
    struct spot s;
    int rc = FM_OK;
    for (int i = 0; i < write && is_stream(w); i++)
        if (is_stream(&g->write[i]))
            return fm_fail(err, FM_EUSAGE,
                           "%s also goes to standard output; name a file for one of them",
                           g->write[i].what);
    if (is_stream(w))
        return FM_OK;
    if (locate_write(&s, w)) {
        rc = check_reads(g, &s, s.path, w->kind == FM_GUARD_FOLDER, err);
        if (!rc)
            rc = check_twins(g, write, &s, err);
    }
    return rc ? rc : check_target(g, w, err);
}

/* Also check the file to which the shell redirected standard output. */
static int check_standard_output(const struct fm_guard *g, struct fm_err *err)
{
    struct spot s, other;
    if (!locate_stream(&s, STDOUT_FILENO))
        return FM_OK;
    if (check_reads(g, &s, "standard output", false, err))
        return err->code;
    for (int i = 0; i < g->writes; i++)
        if (!is_stream(&g->write[i]) && locate_write(&other, &g->write[i]) && is_same(&s, &other))
            return fm_fail(err, FM_EUSAGE, "%s: '%s' is also standard output; choose another name",
                           g->write[i].what, other.path);
    return FM_OK;
}

int fm_guard_check(const struct fm_guard *g, struct fm_err *err)
{
    for (int i = 0; i < g->writes; i++)
        if (check_write(g, i, err))
            return fm_within(err, "%s", g->write[i].what);
    return check_standard_output(g, err);
}

int fm_guard_text(const char *path, const char *text, fm_guard_own *own, const char *tool,
                  bool force, struct fm_err *err)
{
    int rc = fm_output_text(path, text, force || is_own(path, own, tool), err);
    if (rc && is_own(path, own, tool))
        unlink(path);
    return rc;
}
