/*
 * One thread makes the list first, so that errors are reported before gigabytes are read; then each
 * thread hashes one file at a time.  Names are paths relative to the directory.  A check at the end
 * detects that the directory was replaced in the meantime.
 */
#include "lib/publish/files.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/bundle/partname.h"
#include "formats/file/file.h"
#include "formats/sign/oms.h"
#include "formats/tensor/hfcache.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/pool.h"
#include "lib/run/taskgroup.h"

#define LEVELS_MAX 16
#define PIECE_BYTES ((size_t)256 << 10) /* fits the L2 cache */

/* ---- the list ---- */

struct walk {
    struct fm_files *f;
    const struct fm_files_rule *rule;
    char home[PATH_MAX]; /* real path of the directory, from realpath(3) */
};

static int add_entry(struct fm_files *f, const char *name, uint64_t bytes, struct fm_err *err)
{
    if (f->entries == FM_OMS_FILES_MAX)
        return fm_fail(err, FM_EFORMAT, "more than %d files", FM_OMS_FILES_MAX);
    if (FM_GROW(f->entry, f->capacity, f->entries + 1, "the list of files", err))
        return err->code;
    char *copy = fm_strdup(name, err);
    if (!copy)
        return err->code;
    f->entry[f->entries++] = (struct fm_files_entry){.name = copy, .bytes = bytes, .hash = true};
    return FM_OK;
}

static bool is_ignored(const struct walk *w, const char *name)
{
    bool hubs = strcmp(name, ".cache") == 0 || strncmp(name, ".git", 4) == 0;
    return hubs && !(w->rule->wants && w->rule->wants(w->rule->self, name));
}

static int add_ignored(struct fm_files *f, const char *name, struct fm_err *err)
{
    if (FM_GROW(f->ignored, f->ignored_capacity, f->ignored_count + 1, "the list of files", err))
        return err->code;
    f->ignored[f->ignored_count] = fm_strdup(name, err);
    return f->ignored[f->ignored_count] ? (f->ignored_count++, FM_OK) : err->code;
}

static int check_link(const struct walk *w, const char *path, const char *name, struct fm_err *err)
{
    char target[PATH_MAX];
    if (!realpath(path, target))
        return fm_fail_errno(err, "cannot follow the link '%s'", name);
    if (fm_hfcache_is_own_blob(target, w->home))
        return FM_OK;
    return fm_fail(
        err, FM_ECONFIG,
        "'%s' is a link to '%s'; only links of a Hugging Face cache to its own blobs are "
        "followed: put the file itself there",
        name, target);
}

static int walk(struct walk *w, const char *below, int level, struct fm_err *err);

/* `name` is the path relative to the listed directory, `path` the one to open. */
static int meet(struct walk *w, const char *path, const char *name, int level, struct fm_err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return fm_fail_errno(err, "cannot examine '%s'", name);
    if (S_ISLNK(st.st_mode)) {
        if (check_link(w, path, name, err))
            return err->code;
        if (stat(path, &st) != 0)
            return fm_fail_errno(err, "cannot examine '%s'", name);
        w->f->links++;
        if (S_ISDIR(st.st_mode))
            return fm_fail(err, FM_EFORMAT, "'%s' is a link to a directory", name);
    }
    if (S_ISDIR(st.st_mode))
        return walk(w, name, level + 1, err);
    if (!S_ISREG(st.st_mode))
        return fm_fail(err, FM_EFORMAT, "'%s' is neither a file nor a directory", name);
    if (w->rule->ino && st.st_dev == w->rule->dev && st.st_ino == w->rule->ino)
        return fm_fail(err, FM_EUSAGE,
                       "'%s' is the private key; remove it from a directory that you publish",
                       name);
    if (fm_oms_check_name(name, err))
        return err->code;
    return add_entry(w->f, name, (uint64_t)st.st_size, err);
}

/* List one directory; `below` is its path relative to the top, "" for the top itself. */
static int walk(struct walk *w, const char *below, int level, struct fm_err *err)
{
    char path[PATH_MAX], name[PATH_MAX];
    struct fm_file_list list;
    int fd;
    if (level > LEVELS_MAX)
        return fm_fail(err, FM_EFORMAT, "'%s' is more than %d directories deep", below, LEVELS_MAX);
    if (snprintf(path, sizeof path, "%s/%s", w->f->path, below) >= (int)sizeof path)
        return fm_fail(err, FM_EFORMAT, "the path of '%s' is too long", below);
    int rc = fm_file_open_directory(&fd, path, err);
    if (rc)
        return rc;
    rc = fm_file_list(&list, fd, path, err);
    close(fd);
    for (size_t i = 0; i < list.count && !rc; i++) {
        const char *own = list.name[i];
        if (level == 0 && fm_names_index(w->rule->without, own) >= 0)
            continue;
        if (level == 0 && is_ignored(w, own))
            rc = add_ignored(w->f, own, err);
        else if (snprintf(name, sizeof name, "%s%s%s", below, *below ? "/" : "", own) >=
                     (int)sizeof name ||
                 snprintf(path, sizeof path, "%s/%s", w->f->path, name) >= (int)sizeof path)
            rc = fm_fail(err, FM_EFORMAT, "the path of '%s' is too long", own);
        else
            rc = meet(w, path, name, level, err);
    }
    fm_file_list_release(&list);
    return rc;
}

int fm_files_no_part(const char *path, struct fm_err *err)
{
    int number, parts;
    if (!fm_partname_parse(path, &number, &parts) || parts == 1)
        return FM_OK;
    return fm_fail(err, FM_EUSAGE,
                   "'%s' is part %d of %d by its name, and a part has no signature of its own; "
                   "give the directory that has all parts",
                   path, number, parts);
}

int fm_files_list(struct fm_files *f, const char *path, const struct fm_files_rule *rule,
                  struct fm_err *err)
{
    struct stat st;
    struct walk w = {.f = f, .rule = rule};
    *f = (struct fm_files){.path = path};
    if (stat(path, &st) != 0)
        return fm_fail_errno(err, "cannot examine '%s'", path);
    f->directory = S_ISDIR(st.st_mode);
    if (!f->directory && !S_ISREG(st.st_mode))
        return fm_fail(err, FM_EFORMAT, "'%s' is neither a file nor a directory", path);
    if (!f->directory && fm_files_no_part(path, err))
        return err->code;
    if (!f->directory)
        return add_entry(f, FM_OMS_FILE, (uint64_t)st.st_size, err);
    if (!realpath(path, w.home))
        return fm_fail_errno(err, "cannot examine '%s'", path);
    if (walk(&w, "", 0, err))
        return fm_within(err, "%s", path);
    fm_names_sort(f->entry, f->entries, sizeof *f->entry);
    fm_names_sort(f->ignored, f->ignored_count, sizeof *f->ignored);
    return FM_OK;
}

void fm_files_release(struct fm_files *f)
{
    for (size_t i = 0; i < f->entries; i++)
        free(f->entry[i].name);
    for (size_t i = 0; i < f->ignored_count; i++)
        free(f->ignored[i]);
    free(f->entry);
    free(f->ignored);
    *f = (struct fm_files){0};
}

uint64_t fm_files_bytes(const struct fm_files *f)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < f->entries; i++)
        bytes += f->entry[i].hash ? f->entry[i].bytes : 0;
    return bytes;
}

/* ---- digests ---- */

struct hashing {
    struct fm_files *f;
    struct fm_taskgroup tasks;
};

static int hash(struct hashing *h, struct fm_files_entry *e, const struct fm_file *file,
                struct fm_err *err)
{
    struct fm_sha256_hasher *hasher = fm_sha256_new(err);
    if (!hasher)
        return err->code;
    struct fm_mark mark = fm_scratch_mark();
    char *piece = fm_scratch(PIECE_BYTES);
    int rc = FM_OK;
    for (uint64_t at = 0; at < file->size && !rc && fm_taskgroup_going(&h->tasks);) {
        size_t n = file->size - at < PIECE_BYTES ? (size_t)(file->size - at) : PIECE_BYTES;
        rc = fm_file_read(file, at, piece, n, err);
        if (!rc) {
            fm_sha256_add(hasher, piece, n);
            fm_taskgroup_add(&h->tasks, n);
        }
        at += n;
    }
    if (!rc)
        rc = fm_sha256_done(&e->digest, hasher, err);
    fm_scratch_release(mark);
    fm_sha256_free(hasher);
    return rc;
}

static void hash_file(void *arg, int i)
{
    struct hashing *h = arg;
    struct fm_files_entry *e = &h->f->entry[i];
    struct fm_err err = {0};
    struct fm_file file;
    char *path = NULL;
    if (!e->hash || !fm_taskgroup_going(&h->tasks))
        return;
    int rc = FM_OK;
    if (h->f->directory && !(path = fm_file_join(h->f->path, e->name, &err)))
        rc = err.code;
    if (!rc)
        rc = fm_file_open(&file,
                          path                                ? path
                          : strcmp(e->name, FM_OMS_FILE) == 0 ? h->f->path
                                                              : e->name,
                          &err);
    if (!rc) {
        e->bytes = file.size;
        rc = hash(h, e, &file, &err);
        if (!rc)
            rc = fm_file_unchanged(&file, &err);
        fm_file_close(&file);
    }
    free(path);
    if (rc)
        fm_taskgroup_fail(&h->tasks, &err);
}

int fm_files_hash(struct fm_files *f, const struct fm_run_options *run, struct fm_err *err)
{
    struct hashing h = {.f = f};
    int fd = -1;
    int rc = f->directory ? fm_file_open_directory(&fd, f->path, err) : FM_OK;
    if (rc)
        return rc;
    assert(f->entries <= FM_OMS_FILES_MAX);
    fm_taskgroup_init(&h.tasks, run, "digests", fm_files_bytes(f));
    fm_pool_for((int)f->entries, hash_file, &h);
    rc = fm_taskgroup_end(&h.tasks, err);
    if (!rc && f->directory)
        rc = fm_file_same_directory(fd, f->path, err);
    if (fd >= 0)
        close(fd);
    return rc;
}
