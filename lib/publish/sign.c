/*
 * A signature covers the list of files as well as their contents.  So verification compares two
 * lists, the signed files and the files found, and reads the files that are on both.  It fails
 * closed: anything that cannot be read, followed or parsed is an error.
 */
#include "lib/publish/sign.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/file/file.h"
#include "formats/sign/oms.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/signals.h"

#define PASSPHRASE_MAX 1024

static const char *const not_signed[] = {FM_OMS_NAME, NULL};

/* ---- signing and verifying ---- */

/* Allocate the last component of a path, which may end in slashes or be ".". */
static int name_of(char **name, const char *path, struct fm_err *err)
{
    char *real = realpath(path, NULL);
    if (!real)
        return fm_fail_errno(err, "cannot examine '%s'", path);
    const char *slash = strrchr(real, '/');
    *name = fm_strdup(slash[1] ? slash + 1 : "root", err);
    free(real);
    return *name ? FM_OK : err->code;
}

static int name_signature(char **path, const struct fm_files *f, struct fm_err *err)
{
    if (f->directory)
        *path = fm_file_join(f->path, FM_OMS_NAME, err);
    else if (asprintf(path, "%s.sig", f->path) < 0) {
        *path = NULL;
        fm_fail(err, FM_ENOMEM, "no memory for the name '%s'", f->path);
    }
    return *path ? FM_OK : err->code;
}

int fm_sign_plan(const char *target, uint64_t *files, uint64_t *bytes, struct fm_err *err)
{
    struct fm_files f;
    int rc = fm_files_list(&f, target, &(struct fm_files_rule){.without = not_signed}, err);
    *files = f.entries;
    *bytes = fm_files_bytes(&f);
    fm_files_release(&f);
    return rc;
}

static void tell_ignored(const struct fm_sign_options *o, const struct fm_files *f)
{
    for (size_t i = 0; i < f->ignored_count && o->ignored; i++)
        o->ignored(o->self, f->ignored[i]);
}

static void describe(struct fm_sign_report *r, const struct fm_files *f)
{
    r->links = f->links;
    for (size_t i = 0; i < f->entries; i++)
        r->files += f->entry[i].hash;
    r->bytes = fm_files_bytes(f);
}

/* ---- signing ---- */

/* Read the first line from a descriptor. */
static int read_passphrase(char text[PASSPHRASE_MAX + 1], int fd, struct fm_err *err)
{
    size_t size = 0;
    for (;;) {
        if (!fm_signals_await(fd, POLLIN))
            return fm_fail(err, FM_ESAVED, "stopped while it waited for the passphrase");
        ssize_t got = read(fd, text + size, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fm_fail_errno(err, "--passphrase-fd %d: cannot read the passphrase", fd);
        if (got == 0 || text[size] == '\n')
            break;
        if (size == PASSPHRASE_MAX || text[size] == '\0')
            return fm_fail(err, FM_EUSAGE,
                           "--passphrase-fd %d: a passphrase is one line of at most %d bytes", fd,
                           PASSPHRASE_MAX);
        size++;
    }
    text[size] = '\0';
    return FM_OK;
}

static int open_key(struct fm_key *key, const struct fm_sign_options *o, struct fm_err *err)
{
    char passphrase[PASSPHRASE_MAX + 1];
    bool asks = false, given = o->passphrase_fd >= 0;
    int rc = given ? read_passphrase(passphrase, o->passphrase_fd, err) : FM_OK;
    if (!rc)
        rc = fm_key_read_private(key, o->key, given ? passphrase : NULL, &asks, err);
    if (rc && asks && !given)
        rc = fm_fail(err, FM_EUSAGE,
                     "'%s' is encrypted; --passphrase-fd N says where its passphrase can be read",
                     o->key);
    fm_key_forget(passphrase, sizeof passphrase);
    return rc;
}

/* Make the statement to sign, which lists the files; its strings are borrowed from f. */
static int make_statement(struct fm_oms *m, const struct fm_files *f, struct fm_err *err)
{
    if (f->entries == 0)
        return fm_fail(err, FM_ENOENT, "'%s' has no files to sign", f->path);
    if (name_of(&m->subject, f->path, err))
        return err->code;
    if (fm_oms_check_name(m->subject, err))
        return fm_within(err, "%s", f->path);
    m->resource = fm_alloc(f->entries, sizeof *m->resource, "the files of a signature", err);
    if (!m->resource)
        return err->code;
    for (size_t i = 0; i < f->entries; i++)
        m->resource[i] = (struct fm_oms_resource){f->entry[i].name, f->entry[i].digest};
    m->resources = f->entries;
    return FM_OK;
}

/* The names that other verifiers must ignore: the usual ones, whether they exist or not, and all
 * others that were ignored here. */
static int list_ignored(const char ***list, size_t *count, const struct fm_files *f,
                        struct fm_err *err)
{
    static const char *const always[] = {".cache",  ".git",       ".gitattributes",
                                         ".github", ".gitignore", FM_OMS_NAME};
    size_t n = sizeof always / sizeof *always;
    const char **names = fm_alloc(n + f->ignored_count, sizeof *names, "a list of names", err);
    *list = names;
    *count = 0;
    if (!names)
        return err->code;
    memcpy(names, always, sizeof always);
    for (size_t i = 0; i < f->ignored_count; i++)
        if (!fm_names_find(always, sizeof always / sizeof *always, sizeof *always, f->ignored[i])) {
            if (fm_oms_check_name(f->ignored[i], err))
                return fm_within(err, "%s", f->path);
            names[n++] = f->ignored[i];
        }
    fm_names_sort(names, n, sizeof *names);
    *count = n;
    return FM_OK;
}

/* Hash the files, sign the statement and write the signature. */
static int sign(const struct fm_run_options *run, struct fm_files *f, const struct fm_key *key,
                const char *signature, struct fm_err *err)
{
    struct fm_oms m = {0};
    const char **ignored = NULL;
    size_t count = 0;
    char *text = NULL;
    int rc = FM_OK;
    if (fm_files_hash(f, run, err) || make_statement(&m, f, err) ||
        (f->directory && list_ignored(&ignored, &count, f, err)) ||
        fm_oms_write(&text, &m, ignored, count, key, err) ||
        fm_output_text(signature, text, run->outputs.force, err))
        rc = err->code;
    m.resources = 0; /* their names are owned by the list */
    fm_oms_release(&m);
    free(ignored);
    free(text);
    return rc;
}

int fm_sign(const struct fm_run_options *run, const struct fm_sign_options *o,
            struct fm_sign_report *r, struct fm_err *err)
{
    double start = fm_clock_now();
    struct fm_key key = {0};
    struct fm_files f = {0};
    *r = (struct fm_sign_report){0};
    int rc = open_key(&key, o, err);
    const struct fm_files_rule rule = {.without = not_signed, .dev = key.dev, .ino = key.ino};
    if (rc || fm_files_list(&f, o->target, &rule, err) || name_signature(&r->signature, &f, err) ||
        fm_output_check(r->signature, run->outputs.force, err)) {
        rc = err->code;
        goto out;
    }
    tell_ignored(o, &f);
    rc = sign(run, &f, &key, r->signature, err);
    if (rc)
        goto out;
    describe(r, &f);
    r->curve = key.curve;
    memcpy(r->key, key.hint, sizeof r->key);
out:
    fm_files_release(&f);
    fm_key_release(&key);
    r->seconds = fm_clock_now() - start;
    return rc;
}

/* ---- verifying ---- */

/* Read the signature at `path` and check it; set *m to its statement. */
static int open_signature(struct fm_oms *m, const char *path, bool directory,
                          const struct fm_key *key, struct fm_err *err)
{
    char *text = NULL;
    size_t size = 0;
    int rc = fm_file_slurp_path(path, FM_OMS_TEXT_MAX, &text, &size, err);
    if (rc == FM_ENOENT)
        return fm_fail(err, rc, "there is no signature '%s'", path);
    if (rc)
        return rc;
    rc = fm_oms_read(m, text, size, key, err);
    free(text);
    if (!rc && directory == (strcmp(m->resource[0].name, FM_OMS_FILE) == 0))
        rc = fm_fail(err, FM_EDIFF, "is the signature of a %s", directory ? "file" : "directory");
    return rc ? fm_within(err, "%s", path) : rc;
}

/* True if the signature lists this name, or a path below it. */
static bool is_listed(const void *self, const char *name)
{
    const struct fm_oms *m = self;
    size_t n = strlen(name);
    for (size_t i = 0; i < m->resources; i++)
        if (strncmp(m->resource[i].name, name, n) == 0 &&
            (m->resource[i].name[n] == '/' || m->resource[i].name[n] == '\0'))
            return true;
    return false;
}

static void find(const struct fm_sign_options *o, struct fm_sign_report *r, const char *name,
                 const char *what)
{
    r->failed++;
    if (o->finding)
        o->finding(o->self, strcmp(name, FM_OMS_FILE) == 0 ? o->target : name, what);
}

/* Both lists are sorted.  The first pass selects the files to read, the second reports findings. */
static void compare(const struct fm_sign_options *o, struct fm_sign_report *r,
                    const struct fm_oms *m, struct fm_files *f, bool hashed)
{
    size_t i = 0, k = 0;
    while (i < m->resources || k < f->entries) {
        int order = i == m->resources ? 1
                    : k == f->entries ? -1
                                      : strcmp(m->resource[i].name, f->entry[k].name);
        if (!hashed && order > 0)
            f->entry[k].hash = false;
        else if (hashed && order < 0)
            find(o, r, m->resource[i].name, "is signed but missing");
        else if (hashed && order > 0)
            find(o, r, f->entry[k].name, "is present but not signed");
        else if (hashed && memcmp(&m->resource[i].digest, &f->entry[k].digest,
                                  sizeof f->entry[k].digest) != 0)
            find(o, r, m->resource[i].name, "differs from what was signed");
        i += order <= 0;
        k += order >= 0;
    }
}

/* Set r->signed_as if a file, or the target of a link, does not have the name that was signed. */
static int compare_name(struct fm_sign_report *r, const struct fm_oms *m, const char *path,
                        struct fm_err *err)
{
    char *name = NULL;
    if (strcmp(basename(path), m->subject) == 0)
        return FM_OK;
    int rc = name_of(&name, path, err);
    if (!rc && strcmp(name, m->subject) != 0 && !(r->signed_as = fm_strdup(m->subject, err)))
        rc = err->code;
    free(name);
    return rc;
}

static int verify(const struct fm_run_options *run, const struct fm_sign_options *o,
                  struct fm_sign_report *r, const struct fm_key *key, struct fm_err *err)
{
    struct fm_oms m = {0};
    struct fm_files f = {.path = o->target};
    struct stat st;
    const struct fm_files_rule rule = {.without = not_signed, .wants = is_listed, .self = &m};
    int rc = FM_OK;
    if (stat(o->target, &st) != 0)
        return fm_fail_errno(err, "cannot examine '%s'", o->target);
    f.directory = S_ISDIR(st.st_mode);
    if ((!f.directory && fm_files_no_part(o->target, err)) ||
        name_signature(&r->signature, &f, err) ||
        open_signature(&m, r->signature, f.directory, key, err) ||
        fm_files_list(&f, o->target, &rule, err) ||
        (!f.directory && compare_name(r, &m, o->target, err))) {
        rc = err->code;
        goto out;
    }
    tell_ignored(o, &f);
    compare(o, r, &m, &f, false);
    rc = fm_files_hash(&f, run, err);
    if (rc)
        goto out;
    compare(o, r, &m, &f, true);
    describe(r, &f);
    if (r->failed)
        rc = fm_fail(err, FM_EDIFF, "%s is not what was signed: %llu fault%s in %zu file%s",
                     o->target, (unsigned long long)r->failed, r->failed == 1 ? "" : "s",
                     m.resources, m.resources == 1 ? "" : "s");
out:
    fm_files_release(&f);
    fm_oms_release(&m);
    return rc;
}

int fm_sign_verify(const struct fm_run_options *run, const struct fm_sign_options *o,
                   struct fm_sign_report *r, struct fm_err *err)
{
    double start = fm_clock_now();
    struct fm_key key = {0};
    *r = (struct fm_sign_report){0};
    int rc = fm_key_read_public(&key, o->key, err);
    if (!rc) {
        r->curve = key.curve;
        memcpy(r->key, key.hint, sizeof r->key);
        rc = verify(run, o, r, &key, err);
    }
    fm_key_release(&key);
    r->seconds = fm_clock_now() - start;
    return rc;
}
