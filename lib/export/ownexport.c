/*
 * --force replaces an export, but never files that the user added to it: a file belongs to the
 * export only if fm-export.json lists it, or if it is the export's signature, which is invalid for
 * a different export.
 */
#include "lib/export/ownexport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "formats/sign/oms.h"
#include "lib/export/filetable.h"
#include "lib/export/plan.h"
#include "lib/model/source.h"

#define JSON_BYTES_MAX ((size_t)64 << 20)

static bool has(const void *self, const char *name)
{
    const struct fm_ownexport *r = self;
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(r->json, FM_EXPORT_FILES), *file;
    const cJSON *suite = cJSON_GetObjectItemCaseSensitive(r->json, "suite");
    if (!cJSON_IsString(suite) || strcmp(suite->valuestring, "fm") != 0)
        return false;
    if (strcmp(name, FM_OMS_NAME) == 0)
        return true;
    cJSON_ArrayForEach(file, files)
    {
        if (file->string && strcmp(file->string, name) == 0)
            return true;
    }
    return false;
}

int fm_ownexport_open(struct fm_ownexport *r, const char *path, struct fm_err *err)
{
    struct fm_err unread = {0};
    char *text = NULL;
    size_t size;
    *r = (struct fm_ownexport){.listed = {FM_EXPORT_JSON, has, r}};
    int rc = fm_file_slurp_in(path, FM_EXPORT_JSON, JSON_BYTES_MAX, &text, &size, &unread);
    if (!rc)
        rc = fm_json_tree(&r->json, text, size, &unread);
    free(text);
    if (rc != FM_ENOMEM && rc != FM_EIO)
        return FM_OK; /* not one of our exports; an error only if it would have to be replaced */
    *err = unread;
    return rc;
}

void fm_ownexport_close(struct fm_ownexport *r)
{
    cJSON_Delete(r->json);
    *r = (struct fm_ownexport){0};
}

int fm_ownexport_check(const char *path, bool force, struct fm_err *err)
{
    struct fm_ownexport old = {0};
    int rc = force ? fm_ownexport_open(&old, path, err) : FM_OK;
    if (!rc)
        rc = fm_outdir_check(path, force ? &old.listed : NULL, err);
    fm_ownexport_close(&old);
    return rc;
}
