/*
 * The record is validated when it is read, because another program may have written the file.  It
 * is locked for the whole run and rewritten, whole or not at all, around each step.
 */
#include "lib/run/ledger.h"

#include <assert.h>
#include <errno.h>
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
#include "lib/base/printable.h"
#include "lib/base/signals.h"

#define NAME ".fm-family"
#define KEY "fm_family"
#define RECORD_BYTES_MAX ((size_t)16 << 20)
#define PIECE_BYTES ((size_t)4 << 20)
#define LOCK_SECONDS 3
#define IDENTITY 64
#define TEXT 256
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
    int rc = fm_file_open_at(&f, folder, NAME, false, &unread);
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

int fm_ledger_open(struct fm_ledger *l, const char *folder, bool lock, struct fm_err *err)
{
    struct stat st;
    assert(l->step && l->steps > 0 && !l->json);
    l->folder = strdup(folder);
    l->path = fm_file_join(folder, NAME, err);
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

static int save(struct fm_ledger *l, struct fm_err *err)
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

/* A copy of a name or an option as the record holds it: JSON has no control characters in keys,
 * and no bytes that are not UTF-8, so in a text with such bytes, or with '%', whatever is not plain
 * ASCII is %XX.  Distinct texts give distinct words.  NULL: out of memory. */
static char *word_of(const char *text)
{
    char *shown = strdup(text), *word = shown ? calloc(3, strlen(text) + 1) : NULL, *end = word;
    if (!word) {
        free(shown);
        return NULL;
    }
    fm_printable(shown, false);
    bool same = strcmp(shown, text) == 0 && !strchr(text, '%');
    for (const char *p = text; *p; p++)
        end += snprintf(end, 4, same || (*p > ' ' && *p < 0x7f && *p != '%') ? "%c" : "%%%02X",
                        (unsigned char)*p);
    free(shown);
    return word;
}

/* Print what identifies a version of the file: it changes if the file is replaced or written. */
static void print_state(char text[160], const struct stat *st)
{
    snprintf(text, 160, "%ju %ju %jd %jd.%09ld %jd.%09ld ", (uintmax_t)st->st_dev,
             (uintmax_t)st->st_ino, (intmax_t)st->st_size, (intmax_t)st->st_mtim.tv_sec,
             st->st_mtim.tv_nsec, (intmax_t)st->st_ctim.tv_sec, st->st_ctim.tv_nsec);
}

/* Wait until a write from now on gives the file another time than it has.  False if its time is in
 * the future, as on a server with another clock. */
static bool is_past(const struct stat *st)
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

static int digest_file(struct fm_ledger *l, cJSON *to, const char *what, const char *path,
                       struct fm_err *err)
{
    cJSON *files = cJSON_GetObjectItemCaseSensitive(l->json, "files");
    char state[160 + FM_DIGEST_HEX], *key = word_of(what), *word = word_of(path);
    const char *has = fm_json_string_value(files, word);
    struct fm_file f = {0};
    struct stat st;
    int rc = key && word ? fm_file_open(&f, path, err)
                         : fm_fail(err, FM_ENOMEM, "no memory for the name '%s'", path);
    if (!rc && fstat(f.fd, &st) != 0)
        rc = fm_fail_errno(err, "cannot examine '%s'", path);
    if (!rc) {
        print_state(state, &st);
        size_t length = strlen(state);
        /* A recorded digest holds if the file has the same state, and nothing but a digest follows.
         */
        if (!has || strncmp(has, state, length) != 0 || strlen(has) != length + FM_DIGEST_HEX - 1) {
            /* Call is_past before reading, so that a later write changes the file's time. */
            bool past = is_past(&st);
            rc = read_digest(state + length, l, &f, err);
            if (!rc)
                cJSON_DeleteItemFromObjectCaseSensitive(files, word);
            if (!rc && past)
                fm_json_add_string(files, word, state);
            has = state;
        }
        if (!rc)
            fm_json_add_string(to, key, has + length);
    }
    fm_file_close(&f);
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

/* ---- differences ---- */

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

/* The first difference between two arrays of strings, or between two objects of strings, as a
 * phrase in `text`: "--seq-len was 64, now it is 32", "mine.txt has changed".  False if they are
 * equal. `kept`: members that only `now` has do not count. */
static bool differ(char text[TEXT], const cJSON *was, const cJSON *now, bool kept)
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
        snprintf(text, TEXT, "the options have another order");
        return !same;
    }
    bool list = cJSON_IsArray(was);
    const char *option = list && added ? text_of(added) : "";
    const char *value = earlier_value(was, now, option);
    int name = (int)strcspn(option, "=");
    const cJSON *item = added && !(list && gone) ? added : gone;
    if (value)
        snprintf(text, TEXT, "%.*s was %.80s, now it is %.80s", name, option, value,
                 option + name + 1);
    else
        snprintf(text, TEXT, "%.200s %s", item->string ? item->string : text_of(item),
                 changed         ? "has changed"
                 : item == added ? "is new"
                 : list          ? "was given before"
                                 : "is missing");
    return true;
}

/* ---- steps ---- */

static bool exists(const char *path)
{
    struct stat st;
    return path && lstat(path, &st) == 0;
}

/* The device and inode of a file or directory, or "" if it does not exist. */
static void identify(char text[IDENTITY], const char *path)
{
    struct stat st;
    text[0] = '\0';
    if (lstat(path, &st) == 0)
        snprintf(text, IDENTITY, "%ju %ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
}

int fm_ledger_before(const struct fm_ledger_step *step, int i)
{
    assert(i >= 0);
    do
        i--;
    while (i >= 0 && step[i].skip);
    return i;
}

/* The key of a step's entry; free() it.  NULL: out of memory. */
static char *key_of(const struct fm_ledger_step *s)
{
    char *key = NULL, *word = word_of(s->of);
    if (word && asprintf(&key, "%s%s%s", s->name, *s->of ? " " : "", word) < 0)
        key = NULL;
    free(word);
    return key;
}

/* The entry of step i, or NULL. */
static cJSON *entry_of(const struct fm_ledger *l, int i)
{
    char *key = key_of(&l->step[i]);
    cJSON *steps = cJSON_GetObjectItemCaseSensitive(l->json, "steps");
    cJSON *entry = key ? cJSON_GetObjectItemCaseSensitive(steps, key) : NULL;
    free(key);
    return entry;
}

/* Copy an object's strings to another object, and ignore its other values. */
static void copy_strings(cJSON *to, const cJSON *from)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, from)
    {
        if (item->string && cJSON_IsString(item))
            fm_json_add_string(to, item->string, item->valuestring);
    }
}

/* The entry of step i before it runs; delete it also on failure. */
static int make_entry(cJSON **entry, const struct fm_ledger *l, int i, struct fm_err *err)
{
    const struct fm_ledger_step *s = &l->step[i];
    int before = fm_ledger_before(l->step, i);
    char identity[IDENTITY];
    bool failed = false;
    *entry = cJSON_CreateObject();
    cJSON *options = fm_json_add_array(*entry, "options");
    for (char **o = s->options; o && *o; o++) {
        char *word = word_of(*o);
        failed = failed || !word;
        fm_json_add_string(options, NULL, word ? word : "");
        free(word);
    }
    cJSON *inputs = fm_json_add_object(*entry, "inputs");
    copy_strings(inputs, s->inputs);
    if (before >= 0)
        copy_strings(inputs, cJSON_GetObjectItemCaseSensitive(entry_of(l, before), "output"));
    if (s->output) {
        identify(identity, s->path);
        fm_json_add_string(*entry, "before", identity);
    }
    return failed || !fm_json_is_whole(*entry)
               ? fm_fail(err, FM_ENOMEM, "no memory for the record of a step")
               : FM_OK;
}

/* Add the digests of a step's output. */
static int add_output(struct fm_ledger *l, int i, cJSON *entry, struct fm_err *err)
{
    const struct fm_ledger_step *s = &l->step[i];
    cJSON *output = cJSON_CreateObject();
    int rc = s->output ? fm_ledger_digest(l, output, s->output, s->path, err) : FM_OK;
    /* Users may edit the card, and fm-export.json has its digest. */
    cJSON_DeleteItemFromObjectCaseSensitive(output, "export README.md");
    cJSON_DeleteItemFromObjectCaseSensitive(output, "export fm-export.json");
    fm_json_add(entry, "output", output);
    return rc;
}

/* Whether the output of a step is still what was recorded. */
static int is_intact(bool *intact, struct fm_ledger *l, int i, struct fm_err *err)
{
    const cJSON *was = cJSON_GetObjectItemCaseSensitive(entry_of(l, i), "output");
    char text[TEXT];
    cJSON *now = cJSON_CreateObject();
    int rc = exists(l->step[i].path) ? add_output(l, i, now, err) : FM_OK;
    *intact = !rc && !differ(text, was, cJSON_GetObjectItemCaseSensitive(now, "output"), true);
    cJSON_Delete(now);
    if (rc == FM_ESAVED || rc == FM_ENOMEM)
        return rc;
    *err = (struct fm_err){0};
    return FM_OK;
}

/* Record a step that finished just before this program was killed: its output is not the file that
 * existed when the step began, and its state file is gone. */
static int settle(struct fm_ledger *l, int i, struct fm_err *err)
{
    const struct fm_ledger_step *s = &l->step[i];
    cJSON *was = entry_of(l, i);
    const char *old = fm_json_string_value(was, "before");
    char identity[IDENTITY];
    struct fm_lock left = {0};
    if (!old || !s->output || cJSON_GetObjectItemCaseSensitive(was, "output"))
        return FM_OK;
    identify(identity, s->path);
    if (!identity[0] || strcmp(identity, old) == 0 || exists(s->state))
        return FM_OK;
    /* Remove the lock that the killed process may have left. */
    int rc = fm_lock_acquire(&left, l->lock.path ? s->state : NULL, err);
    fm_lock_drop(&left);
    return rc ? rc : add_output(l, i, was, err);
}

/* Compare a step with its entry; *why says what differs, or is empty. */
static int compare(char why[TEXT], const struct fm_ledger *l, int i, struct fm_err *err)
{
    static const char *const part[] = {"options", "inputs"};
    const cJSON *was = entry_of(l, i);
    cJSON *now = NULL;
    bool differs = false;
    int rc = make_entry(&now, l, i, err);
    for (int k = 0; k < 2 && !rc && was && !differs; k++)
        differs = differ(why, cJSON_GetObjectItemCaseSensitive(was, part[k]),
                         cJSON_GetObjectItemCaseSensitive(now, part[k]), false);
    why[0] = differs ? why[0] : '\0';
    cJSON_Delete(now);
    return rc;
}

/* Do not replace a ranking, or the state of an unfinished step, by one made with other options: it
 * may be hours of work. */
static int protect(const struct fm_ledger *l, int i, const char *why, struct fm_err *err)
{
    for (int k = i; k < l->steps && why[0]; k++) {
        const struct fm_ledger_step *s = &l->step[k];
        if (s->skip || !s->state)
            continue;
        if (i == 0 && (exists(s->path) || exists(s->state)))
            return fm_fail(err, FM_ECONFIG,
                           "'%s' has stages made with other options (%s); use another --work, or "
                           "remove it",
                           l->folder, why);
        if (exists(s->state))
            return fm_fail(err, FM_ECONFIG,
                           "'%s' is the state of an unfinished run (%s); repeat that command, use "
                           "another --work, or remove the file",
                           s->state, why);
    }
    return FM_OK;
}

/* Check that the steps from `first` on replace nothing but their own earlier outputs. */
static int check_owner(const struct fm_ledger *l, int first, struct fm_err *err)
{
    for (int i = first; i < l->steps; i++)
        if (!l->step[i].skip && exists(l->step[i].path) && !fm_ledger_made(l, i))
            return fm_fail(err, FM_ECREATE,
                           "'%s' exists, and fm-family did not make it; choose another --work",
                           l->step[i].path);
    return FM_OK;
}

int fm_ledger_first(int *first, struct fm_ledger *l, struct fm_err *err)
{
    char why[TEXT];
    bool intact = true;
    int rc = FM_OK, last = l->steps - 1;
    *first = l->steps;
    /* Find the first step that did not finish, or whose options or inputs differ from those in the
     * record.  The inputs of the steps after it do not exist yet, so they are not compared. */
    for (int i = 0; i < l->steps && *first == l->steps; i++) {
        if (l->step[i].skip)
            continue;
        if (settle(l, i, err) || compare(why, l, i, err) || protect(l, i, why, err))
            return err->code;
        if (why[0] || !cJSON_GetObjectItemCaseSensitive(entry_of(l, i), "output"))
            *first = i;
        if (why[0])
            fm_run_note(l->run, "%s again: %s", l->step[i].doing, why);
    }
    /* If all have ended, only the last output must still be there: users may remove the others. */
    for (; !l->step[last].output; last--)
        assert(last > 0);
    if (*first > last) {
        rc = is_intact(&intact, l, last, err);
        *first = intact ? *first : last;
    }
    /* A step can begin only if the output that it reads is as it was; else the step that makes it
     * comes first, and so on. */
    for (int i; !rc && *first < l->steps && (i = fm_ledger_before(l->step, *first)) >= 0;) {
        rc = is_intact(&intact, l, i, err);
        if (rc || intact)
            break;
        fm_run_note(l->run, "%s again: '%s' is missing or has changed", l->step[i].doing,
                    l->step[i].path);
        *first = i;
    }
    return rc ? rc : check_owner(l, *first, err);
}

bool fm_ledger_made(const struct fm_ledger *l, int i)
{
    return l->step[i].of[0] || entry_of(l, i);
}

int fm_ledger_begin(struct fm_ledger *l, int i, struct fm_err *err)
{
    assert(i >= 0 && i < l->steps && !l->step[i].skip);
    cJSON *entry = NULL, *steps = cJSON_GetObjectItemCaseSensitive(l->json, "steps");
    char *key = key_of(&l->step[i]);
    int rc = key ? make_entry(&entry, l, i, err)
                 : fm_fail(err, FM_ENOMEM, "no memory for the record of a step");
    if (rc) {
        cJSON_Delete(entry);
    } else {
        cJSON_DeleteItemFromObjectCaseSensitive(steps, key);
        fm_json_add(steps, key, entry);
    }
    free(key);
    return rc ? rc : save(l, err);
}

int fm_ledger_end(struct fm_ledger *l, int i, struct fm_err *err)
{
    assert(i >= 0 && i < l->steps && !l->step[i].skip);
    int rc = add_output(l, i, entry_of(l, i), err);
    return rc ? rc : save(l, err);
}
