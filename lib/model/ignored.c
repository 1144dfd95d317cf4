/* Each entry of the list is compared with the module of every tensor of codes.  The list has either
 * a few patterns, or as many names as there are modules. */
#include "lib/model/ignored.h"

#include <fnmatch.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/block/storage.h"
#include "lib/model/stored.h"

struct entry {
    const char *text;
    size_t length;
    bool pattern, expression; /* contains `*`; starts with "re:" */
    regex_t regex;
};

/* Whether the entry matches the module or a module that contains it. */
static bool names(const struct entry *e, const char *module)
{
    char part[FM_ST_NAME_BYTES_MAX + 1];
    regmatch_t match[1];
    if (e->expression)
        return regexec(&e->regex, module, 1, match, 0) == 0 && match[0].rm_so == 0;
    if (!e->pattern)
        return strncmp(e->text, module, e->length) == 0 &&
               (module[e->length] == '\0' || module[e->length] == '.');
    snprintf(part, sizeof part, "%s.*", e->text);
    return fnmatch(e->text, module, 0) == 0 || fnmatch(part, module, 0) == 0;
}

static int check_tensor(const struct fm_tensor *t, const struct fm_config *c, const struct entry *e,
                        const char *key, struct fm_err *err)
{
    char name[FM_ST_NAME_BYTES_MAX + 1];
    if (!fm_stored_scale(name, c, t))
        return FM_OK;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(t->name) - strlen(c->storage->codes_end)),
             t->name);
    if (!names(e, name))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "tensor '%s' is codes, and quantization_config lists its module as not "
                   "quantised (%s: '%.64s'); correct config.json",
                   t->name, key, e->text);
}

static int check_entry(const struct fm_tensors *tensors, const struct fm_config *c,
                       const cJSON *entry, const char *key, struct fm_err *err)
{
    struct entry e = {.text = cJSON_GetStringValue(entry)};
    int rc = FM_OK;
    if (!e.text)
        return FM_OK;
    e.length = strlen(e.text);
    e.pattern = strchr(e.text, '*') != NULL;
    e.expression = strncmp(e.text, "re:", 3) == 0;
    if (e.expression && regcomp(&e.regex, e.text + 3, REG_EXTENDED))
        return FM_OK;
    for (size_t i = 0; i < tensors->files; i++) {
        const struct fm_safetensors *st = tensors->file[i].st;
        for (size_t t = 0; t < st->count && !rc; t++)
            rc = check_tensor(&st->tensor[t], c, &e, key, err);
    }
    if (e.expression)
        regfree(&e.regex);
    return rc;
}

int fm_ignored_check(const struct fm_tensors *tensors, const struct fm_config *c,
                     struct fm_err *err)
{
    static const char *const keys[] = {"ignore", "modules_to_not_convert"};
    const cJSON *entry;
    cJSON *json = NULL;
    int rc = FM_OK;
    if (!c->storage || tensors->naming != FM_NAMING_STOCK)
        return FM_OK;
    if (fm_json_tree(&json, tensors->config, tensors->config_bytes, err))
        return err->code;
    const cJSON *quant = cJSON_GetObjectItemCaseSensitive(json, "quantization_config");
    for (int k = 0; k < 2; k++) {
        cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(quant, keys[k]))
        {
            if (!rc)
                rc = check_entry(tensors, c, entry, keys[k], err);
        }
    }
    cJSON_Delete(json);
    return rc;
}
