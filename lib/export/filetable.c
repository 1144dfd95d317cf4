/*
 * The table is read from untrusted JSON, so each entry is checked before its file is opened; the
 * JSON reader refuses duplicate names.
 *
 * --force replaces an export, but never files that the user added to it: a file belongs to the
 * export only if fm-export.json lists it, or if it is the export's signature, which is invalid for
 * a different export.
 */
#include "lib/export/filetable.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/text.h"
#include "formats/json/json.h"
#include "formats/json/jsonedit.h"
#include "formats/sign/oms.h"
#include "lib/base/mem.h"
#include "lib/model/source.h"

/* Fits the L2 cache, from which the digest reads it. */
#define PIECE_BYTES ((size_t)256 << 10)
#define JSON_BYTES_MAX ((size_t)64 << 20)

static int compare_entries(const void *a, const void *b)
{
    const struct fm_filetable_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int compare_name(const void *name, const void *entry)
{
    return strcmp(name, ((const struct fm_filetable_entry *)entry)->name);
}

void fm_filetable_sort(struct fm_filetable *t)
{
    if (t->entries)
        qsort(t->entry, t->entries, sizeof *t->entry, compare_entries);
}

struct fm_filetable_entry *fm_filetable_find(const struct fm_filetable *t, const char *name)
{
    if (!t->entries)
        return NULL;
    return bsearch(name, t->entry, t->entries, sizeof *t->entry, compare_name);
}

/* True for a valid name of a file next to fm-export.json. */
static bool name_ok(const char *name)
{
    return *name && strlen(name) < FM_FILETABLE_NAME && !strchr(name, '/') &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, FM_EXPORT_JSON) != 0;
}

static int read_entry(struct fm_filetable_entry *e, const cJSON *json, struct fm_err *err)
{
    const char *hex = NULL;
    if (!name_ok(json->string))
        return fm_fail(err, FM_EFORMAT,
                       "is not the name of a file in the directory of " FM_EXPORT_JSON);
    if (!cJSON_IsObject(json))
        return fm_fail(err, FM_EFORMAT, "is not an object with 'bytes' and 'digest'");
    if (fm_json_get_uint(json, "bytes", 0, &e->bytes, err) ||
        fm_json_get_string(json, "digest", &hex, err))
        return err->code;
    if (!fm_digest_parse(&e->digest, hex, strlen(hex)))
        return fm_fail(err, FM_EFORMAT, "'digest' is not 32 lower-case hex digits");
    memcpy(e->name, json->string, strlen(json->string) + 1);
    return FM_OK;
}

int fm_filetable_read(struct fm_filetable *t, const cJSON *json, struct fm_err *err)
{
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, FM_EXPORT_FILES), *file;
    *t = (struct fm_filetable){0};
    if (!cJSON_IsObject(files))
        return fm_fail(err, FM_EFORMAT,
                       "'" FM_EXPORT_FILES "' is not an object of files with their sizes and "
                       "digests; make the export again");
    t->entry = fm_alloc((size_t)cJSON_GetArraySize(files) + 1, sizeof *t->entry,
                        "the table of files", err);
    if (!t->entry)
        return err->code;
    cJSON_ArrayForEach(file, files)
    {
        if (read_entry(&t->entry[t->entries++], file, err))
            return fm_within(err, "'" FM_EXPORT_FILES "': '%.200s'", file->string);
    }
    fm_filetable_sort(t);
    return FM_OK;
}

void fm_filetable_release(struct fm_filetable *t)
{
    free(t->entry);
    *t = (struct fm_filetable){0};
}

int fm_filetable_write(const struct fm_filetable *t, char **text, size_t *size, struct fm_err *err)
{
    struct fm_text value = {0};
    fm_text_printf(&value, "{");
    for (size_t i = 0; i < t->entries; i++) {
        char hex[FM_DIGEST_HEX];
        fm_digest_hex(hex, &t->entry[i].digest);
        fm_text_printf(&value, "%s\n    ", i ? "," : "");
        fm_text_quote(&value, t->entry[i].name);
        fm_text_printf(&value, ": {\"bytes\": %" PRIu64 ", \"digest\": \"%s\"}", t->entry[i].bytes,
                       hex);
    }
    fm_text_printf(&value, "\n  }");
    const struct fm_jsonedit edit = {FM_EXPORT_FILES, value.data};
    int rc = value.failed ? fm_fail(err, FM_ENOMEM, "no memory for the table of files")
                          : fm_jsonedit_set(text, size, &edit, 1, err);
    free(value.data);
    return rc;
}

int fm_filetable_hash(struct fm_digest *digest, const struct fm_file *file,
                      struct fm_taskgroup *tasks, bool tell, struct fm_err *err)
{
    struct fm_hasher *hasher = fm_hasher_new();
    struct fm_mark mark = fm_scratch_mark();
    char *piece = fm_scratch(PIECE_BYTES);
    int rc = hasher ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    for (uint64_t at = 0; at < file->size && !rc && fm_taskgroup_going(tasks);) {
        size_t n = file->size - at < PIECE_BYTES ? (size_t)(file->size - at) : PIECE_BYTES;
        rc = fm_file_read(file, at, piece, n, err);
        if (!rc)
            fm_hasher_add(hasher, piece, n);
        if (!rc && tell)
            fm_taskgroup_add(tasks, n);
        at += n;
    }
    if (!rc)
        *digest = fm_hasher_done(hasher);
    fm_scratch_release(mark);
    fm_hasher_free(hasher);
    return rc;
}

/* ---- what --force may replace ---- */

static bool has(const void *self, const char *name)
{
    const struct fm_filetable_own *r = self;
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(r->json, FM_EXPORT_FILES);
    const char *suite = fm_json_string_value(r->json, "suite");
    return suite && strcmp(suite, "fm") == 0 &&
           (strcmp(name, FM_OMS_NAME) == 0 || fm_json_has(files, name));
}

int fm_filetable_own_open(struct fm_filetable_own *r, const char *path, struct fm_err *err)
{
    struct fm_err unread = {0};
    char *text = NULL;
    size_t size;
    *r = (struct fm_filetable_own){.listed = {FM_EXPORT_JSON, has, r}};
    int rc = fm_file_slurp_in(path, FM_EXPORT_JSON, JSON_BYTES_MAX, &text, &size, &unread);
    if (!rc)
        rc = fm_json_tree(&r->json, text, size, &unread);
    free(text);
    if (rc != FM_ENOMEM && rc != FM_EIO)
        return FM_OK; /* not one of our exports; an error only if it would have to be replaced */
    *err = unread;
    return rc;
}

void fm_filetable_own_close(struct fm_filetable_own *r)
{
    cJSON_Delete(r->json);
    *r = (struct fm_filetable_own){0};
}

int fm_filetable_own_check(const char *path, bool force, struct fm_err *err)
{
    struct fm_filetable_own old = {0};
    int rc = force ? fm_filetable_own_open(&old, path, err) : FM_OK;
    if (!rc)
        rc = fm_outdir_check(path, force ? &old.listed : NULL, err);
    fm_filetable_own_close(&old);
    return rc;
}
