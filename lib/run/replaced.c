/*
 * --force replaces an export, never what somebody put beside it: a file counts as the export's when
 * fm-export.json lists it, or, from before there was a list, when exports have files of that name.
 */
#include "lib/run/replaced.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/carried.h"
#include "formats/json/json.h"
#include "formats/tensor/hfwriter.h"

#define JSON_BYTES_MAX ((size_t)64 << 20)

/* layers-00003.safetensors, model-00001-of-00002.safetensors: what is `#` in `like` is a number. */
static bool is_like(const char *name, const char *like)
{
    for (; *like; like++) {
        size_t digits = strspn(name, "0123456789");
        if (*like == '#' ? digits == 0 : *name != *like)
            return false;
        name += *like == '#' ? digits : 1;
    }
    return *name == '\0';
}

static bool is_usual(const char *name)
{
    static const char *const usual[] = {"model.safetensors", "model-#-of-#.safetensors",
                                        FM_HFWRITER_INDEX, "layers-#.safetensors",
                                        "rest.safetensors"};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (is_like(name, usual[i]))
            return true;
    return !fm_carried_refuse(name);
}

static bool has(const void *self, const char *name)
{
    const struct fm_replaced *r = self;
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(r->json, "files"), *file;
    const cJSON *suite = cJSON_GetObjectItemCaseSensitive(r->json, "suite");
    if (!cJSON_IsString(suite) || strcmp(suite->valuestring, "fm") != 0)
        return false;
    if (!files)
        return is_usual(name);
    cJSON_ArrayForEach(file, files)
    {
        if (cJSON_IsString(file) && strcmp(file->valuestring, name) == 0)
            return true;
    }
    return false;
}

int fm_replaced_open(struct fm_replaced *r, const char *path, struct fm_err *err)
{
    struct fm_file f = {0};
    struct fm_err unread = {0};
    char *name = NULL, *text = NULL;
    size_t size;
    *r = (struct fm_replaced){.listed = {has, r}};
    if (asprintf(&name, "%s/" FM_OUTDIR_MARK, path) < 0)
        return fm_fail(err, FM_ENOMEM, "no memory for the name '%s'", path);
    int rc = fm_file_open(&f, name, &unread);
    if (!rc)
        rc = fm_file_slurp(&f, JSON_BYTES_MAX, &text, &size, &unread);
    if (!rc)
        rc = fm_json_tree(&r->json, text, size, &unread);
    fm_file_close(&f);
    free(text);
    free(name);
    if (rc != FM_ENOMEM && rc != FM_EIO)
        return FM_OK; /* not an export of ours; that is reported where it is in the way */
    *err = unread;
    return rc;
}

void fm_replaced_close(struct fm_replaced *r)
{
    cJSON_Delete(r->json);
    *r = (struct fm_replaced){0};
}
