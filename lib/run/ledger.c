/*
 * The record is validated when it is read, because another program may have written the file.  It
 * is locked for the whole run and rewritten, whole or not at all, around each step.
 */
#include "lib/run/ledger.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "formats/file/digest.h"
#include "formats/file/file.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/printable.h"
#include "lib/base/signals.h"

#define KEY "fm_family"
#define RECORD_BYTES_MAX ((size_t)16 << 20)
#define PIECE_BYTES ((size_t)4 << 20)
#define LOCK_SECONDS 3
#define TICK_NS 20000000 /* times of files have at least this resolution */

static int refuse(const struct fm_ledger *l, struct fm_err *err)
{
    return fm_fail(err, FM_ECREATE,
                   "'%s' exists and is not a record of fm-family; choose another --work", l->path);
}

static int read_record(struct fm_ledger *l, struct fm_err *err)
{
    struct fm_err unread = {0};
    struct fm_file f = {0};
    char *text = NULL;
    size_t size;
    const char *version;
    int folder;
    if (fm_file_open_directory(&folder, l->folder, err))
        return err->code;
    int rc = fm_file_open_at(&f, folder, FM_LEDGER_NAME, false, &unread);
    close(folder);
    if (!rc)
        rc = fm_file_slurp(&f, RECORD_BYTES_MAX, &text, &size, &unread);
    fm_file_close(&f);
    if (!rc)
        rc = fm_json_tree(&l->json, text, size, &unread);
    free(text);
    if (rc == FM_EIO || rc == FM_ENOMEM || rc == FM_EPERM) {
        *err = unread;
        return rc;
    }
    if (rc || fm_json_get_string(l->json, KEY, &version, &unread))
        return refuse(l, err);
    if (strcmp(version, FM_VERSION) != 0)
        return fm_fail(err, FM_ECONFIG,
                       "'%s' was made by fm-family %.32s, and this is %s; use another --work, or "
                       "remove it",
                       l->folder, version, FM_VERSION);
    return cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(l->json, "files")) &&
                   cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(l->json, "steps"))
               ? FM_OK
               : refuse(l, err);
}

static int lock_folder(struct fm_ledger *l, struct fm_err *err)
{
    const struct timespec nap = {.tv_nsec = 20000000};
    double until = fm_clock_now() + LOCK_SECONDS;
    l->made = mkdir(l->folder, 0777) == 0;
    if (!l->made && errno != EEXIST)
        return fm_fail_errno(err, "cannot make '%s'", l->folder);
    int rc = fm_lock_acquire(&l->lock, l->path, err);
    while (rc == FM_ELOCKED && fm_clock_now() < until && !fm_signals_held()) {
        nanosleep(&nap, NULL);
        *err = (struct fm_err){0};
        rc = fm_lock_acquire(&l->lock, l->path, err);
    }
    return rc;
}

int fm_ledger_open(struct fm_ledger *l, const char *folder, const struct fm_run_options *run,
                   bool lock, struct fm_err *err)
{
    struct stat st;
    *l = (struct fm_ledger){.run = run};
    l->folder = strdup(folder);
    l->path = fm_file_join(folder, FM_LEDGER_NAME, err);
    if (!l->folder || !l->path)
        return fm_fail(err, FM_ENOMEM, "no memory for the name '%s'", folder);
    if (lock && lock_folder(l, err))
        return err->code;
    if (lstat(l->path, &st) == 0)
        return read_record(l, err);
    if (errno != ENOENT && errno != ENOTDIR)
        return fm_fail_errno(err, "cannot examine '%s'", l->path);
    l->json = cJSON_CreateObject();
    fm_json_add_string(l->json, KEY, FM_VERSION);
    fm_json_add_object(l->json, "files");
    fm_json_add_object(l->json, "steps");
    return FM_OK;
}

int fm_ledger_save(struct fm_ledger *l, struct fm_err *err)
{
    char *text = fm_json_print(l->json);
    l->made = false;
    int rc = text ? fm_output_text(l->path, text, true, err)
                  : fm_fail(err, FM_ENOMEM, "no memory for '%s'", l->path);
    free(text);
    return rc;
}

void fm_ledger_close(struct fm_ledger *l)
{
    cJSON_Delete(l->json);
    fm_lock_drop(&l->lock);
    if (l->made)
        rmdir(l->folder);
    free(l->folder);
    free(l->path);
    *l = (struct fm_ledger){0};
}

/* ---- digests ---- */

char *fm_ledger_word(const char *text)
{
    char *shown = strdup(text), *word = NULL;
    if (!shown)
        return NULL;
    fm_printable(shown, false);
    bool same = strcmp(shown, text) == 0 && !strchr(text, '%');
    size_t n = 0;
    if (!same && (word = malloc(3 * strlen(text) + 1))) {
        for (const char *p = text; *p; p++)
            n += (size_t)sprintf(word + n, *p > ' ' && *p < 0x7f && *p != '%' ? "%c" : "%%%02X",
                                 (unsigned char)*p);
        word[n] = '\0';
    }
    if (same)
        return shown;
    free(shown);
    return word;
}

/* Everything that changes if the file is replaced or written to. */
static void print_state(char text[160], const struct stat *st)
{
    snprintf(text, 160, "%ju %ju %jd %jd.%09ld %jd.%09ld ", (uintmax_t)st->st_dev,
             (uintmax_t)st->st_ino, (intmax_t)st->st_size, (intmax_t)st->st_mtim.tv_sec,
             st->st_mtim.tv_nsec, (intmax_t)st->st_ctim.tv_sec, st->st_ctim.tv_nsec);
}

/* Wait until a write from now on gives the file another time than it has.  False if its time is in
 * the future, as on a server with another clock. */
static bool settle(const struct stat *st)
{
    const struct timespec nap = {.tv_nsec = TICK_NS};
    struct timespec now;
    for (int i = 0; i < 2; i++) {
        clock_gettime(CLOCK_REALTIME, &now);
        int64_t age = (int64_t)(now.tv_sec - st->st_ctim.tv_sec) * 1000000000 +
                      (now.tv_nsec - st->st_ctim.tv_nsec);
        if (age > TICK_NS)
            return true;
        nanosleep(&nap, NULL);
    }
    return false;
}

static int read_digest(char hex[FM_DIGEST_HEX], const struct fm_ledger *l, const struct fm_file *f,
                       struct fm_err *err)
{
    struct fm_hasher *h = fm_hasher_new();
    char *piece = malloc(PIECE_BYTES);
    int rc = h && piece ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory to read '%s'", f->path);
    if (!rc)
        fm_hasher_reset(h);
    for (uint64_t at = 0; at < f->size && !rc; at += PIECE_BYTES) {
        size_t n = f->size - at < PIECE_BYTES ? (size_t)(f->size - at) : PIECE_BYTES;
        rc = fm_file_read(f, at, piece, n, err);
        if (!rc)
            fm_hasher_add(h, piece, n);
        if (!rc && fm_signals_held())
            rc = fm_fail(err, FM_ESAVED, "stopped by a signal; repeat the command to continue");
        fm_run_report(l->run, f->path, at + n, f->size, "bytes");
    }
    if (!rc) {
        struct fm_digest digest = fm_hasher_done(h);
        fm_digest_hex(hex, &digest);
        rc = fm_file_unchanged(f, err);
    }
    free(piece);
    fm_hasher_free(h);
    return rc;
}

static int digest_named(struct fm_ledger *l, cJSON *to, const char *what, const char *path,
                        const char *word, struct fm_err *err)
{
    cJSON *files = cJSON_GetObjectItemCaseSensitive(l->json, "files");
    char state[160 + FM_DIGEST_HEX], hex[FM_DIGEST_HEX];
    struct fm_file f;
    struct stat st;
    if (fm_file_open(&f, path, err))
        return err->code;
    if (fstat(f.fd, &st) != 0) {
        fm_file_close(&f);
        return fm_fail_errno(err, "cannot examine '%s'", path);
    }
    print_state(state, &st);
    size_t length = strlen(state);
    const char *has = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(files, word));
    if (has && strncmp(has, state, length) == 0 && strlen(has) == length + FM_DIGEST_HEX - 1) {
        fm_json_add_string(to, what, has + length);
        fm_file_close(&f);
        return FM_OK;
    }
    bool settled = settle(&st);
    int rc = read_digest(hex, l, &f, err);
    fm_file_close(&f);
    if (rc)
        return rc;
    fm_json_add_string(to, what, hex);
    cJSON_DeleteItemFromObjectCaseSensitive(files, word);
    memcpy(state + length, hex, sizeof hex);
    if (settled)
        fm_json_add_string(files, word, state);
    return FM_OK;
}

static int digest_file(struct fm_ledger *l, cJSON *to, const char *what, const char *path,
                       struct fm_err *err)
{
    char *key = fm_ledger_word(what), *word = fm_ledger_word(path);
    int rc = key && word ? digest_named(l, to, key, path, word, err)
                         : fm_fail(err, FM_ENOMEM, "no memory for the name '%s'", path);
    free(key);
    free(word);
    return rc;
}

int fm_ledger_digest(struct fm_ledger *l, cJSON *to, const char *what, const char *path,
                     struct fm_err *err)
{
    struct fm_file_list list;
    struct stat st;
    int fd;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return digest_file(l, to, what, path, err);
    int rc = fm_file_open_directory(&fd, path, err);
    if (rc)
        return rc;
    rc = fm_file_list(&list, fd, path, err);
    for (size_t i = 0; i < list.count && !rc; i++) {
        const char *name = list.name[i];
        char *key = NULL;
        if (name[0] == '.' || fstatat(fd, name, &st, 0) != 0 || !S_ISREG(st.st_mode))
            continue;
        char *file = fm_file_join(path, name, err);
        if (!file || asprintf(&key, "%s %s", what, name) < 0) {
            key = NULL;
            rc = fm_fail(err, FM_ENOMEM, "no memory for the name '%s'", path);
        }
        if (!rc)
            rc = digest_file(l, to, key, file, err);
        free(key);
        free(file);
    }
    fm_file_list_release(&list);
    close(fd);
    return rc;
}

/* ---- entries ---- */

void fm_ledger_copy(cJSON *to, const cJSON *from)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, from)
    {
        if (item->string && cJSON_IsString(item))
            fm_json_add_string(to, item->string, item->valuestring);
    }
}

/* The key of a step; free() it.  NULL: out of memory. */
static char *key_of(const char *step, const char *of)
{
    char *key = NULL, *word = fm_ledger_word(of);
    if (word && asprintf(&key, "%s%s%s", step, *of ? " " : "", word) < 0)
        key = NULL;
    free(word);
    return key;
}

cJSON *fm_ledger_step(const struct fm_ledger *l, const char *step, const char *of)
{
    char *key = key_of(step, of);
    cJSON *steps = cJSON_GetObjectItemCaseSensitive(l->json, "steps");
    cJSON *entry = key ? cJSON_GetObjectItemCaseSensitive(steps, key) : NULL;
    free(key);
    return entry;
}

int fm_ledger_enter(struct fm_ledger *l, const char *step, const char *of, cJSON *entry,
                    struct fm_err *err)
{
    char *key = key_of(step, of);
    cJSON *steps = cJSON_GetObjectItemCaseSensitive(l->json, "steps");
    if (!key) {
        cJSON_Delete(entry);
        return fm_fail(err, FM_ENOMEM, "no memory for the record of a step");
    }
    cJSON_DeleteItemFromObjectCaseSensitive(steps, key);
    fm_json_add(steps, key, entry);
    free(key);
    return FM_OK;
}

int fm_ledger_unlock(const char *path, struct fm_err *err)
{
    struct fm_lock lock;
    int rc = fm_lock_acquire(&lock, path, err);
    fm_lock_drop(&lock);
    return rc;
}

void fm_ledger_identity(char text[FM_LEDGER_IDENTITY], const char *path)
{
    struct stat st;
    text[0] = '\0';
    if (lstat(path, &st) == 0)
        snprintf(text, FM_LEDGER_IDENTITY, "%ju %ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
}

static const char *text_of(const cJSON *item)
{
    return cJSON_IsString(item) ? item->valuestring : "";
}

static bool has_string(const cJSON *array, const char *text)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, array)
    {
        if (strcmp(text_of(item), text) == 0)
            return true;
    }
    return false;
}

/* An item of `a` that `b` does not have; *changed: it has another value there. */
static const cJSON *find_missing(const cJSON *a, const cJSON *b, bool *changed)
{
    const cJSON *item;
    *changed = false;
    cJSON_ArrayForEach(item, a)
    {
        const cJSON *other =
            item->string ? cJSON_GetObjectItemCaseSensitive(b, item->string) : NULL;
        *changed = other && strcmp(text_of(item), text_of(other)) != 0;
        if (*changed || (item->string ? !other : !has_string(b, text_of(item))))
            return item;
    }
    return NULL;
}

/* The value that `option`, --name=value of the list `now`, had in the list `was`; NULL: it is not
 * there, or still has that value too. */
static const char *earlier_value(const cJSON *was, const cJSON *now, const char *option)
{
    size_t name = strcspn(option, "=") + 1;
    const cJSON *item;
    cJSON_ArrayForEach(item, was)
    {
        if (option[name - 1] && strncmp(text_of(item), option, name) == 0 &&
            !has_string(now, text_of(item)))
            return text_of(item) + name;
    }
    return NULL;
}

bool fm_ledger_differ(char text[FM_LEDGER_TEXT], const cJSON *was, const cJSON *now, bool kept)
{
    bool changed, unused;
    const cJSON *gone = find_missing(was, now, &changed);
    const cJSON *added = kept || changed ? NULL : find_missing(now, was, &unused);
    if (!gone && !added) { /* the order of options can matter */
        char *a = kept ? NULL : cJSON_PrintUnformatted(was);
        char *b = kept ? NULL : cJSON_PrintUnformatted(now);
        bool same = kept || (a && b && strcmp(a, b) == 0);
        free(a);
        free(b);
        snprintf(text, FM_LEDGER_TEXT, "the options have another order");
        return !same;
    }
    bool list = cJSON_IsArray(was);
    const char *option = list && added ? text_of(added) : "";
    const char *value = earlier_value(was, now, option);
    int name = (int)strcspn(option, "=");
    const cJSON *item = added && !(list && gone) ? added : gone;
    if (value)
        snprintf(text, FM_LEDGER_TEXT, "%.*s was %.80s, now it is %.80s", name, option, value,
                 option + name + 1);
    else
        snprintf(text, FM_LEDGER_TEXT, "%.200s %s", item->string ? item->string : text_of(item),
                 changed         ? "has changed"
                 : item == added ? "is new"
                 : list          ? "was given before"
                                 : "is missing");
    return true;
}
