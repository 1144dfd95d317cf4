/* Each entry of a list, a name or a pattern, is compared with the module of every tensor of codes,
 * so the number of regular expressions in a list is limited. */
#include "lib/model/ignored.h"

#include <stdio.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/modules.h"
#include "lib/model/stored.h"

static int check_tensor(const struct fm_stored *s, const struct fm_modules *e, const char *key,
                        struct fm_err *err)
{
    char module[FM_ST_NAME_BYTES_MAX + 1];
    const struct fm_tensor *t = s->tensor;
    if (!fm_stored_is_codes(s))
        return FM_OK;
    int length = (int)(strlen(t->name) - strlen(s->scheme.storage->codes_end));
    snprintf(module, sizeof module, "%.*s", length, t->name);
    if (!fm_modules_match(e, module))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "tensor '%s' contains codes, but quantization_config lists its module as not "
                   "quantised (%s: '%.64s'); correct config.json",
                   t->name, key, e->text);
}

static int check_entry(const struct fm_tensors *tensors, const cJSON *entry, const char *key,
                       struct fm_err *err)
{
    struct fm_modules e;
    const char *text = cJSON_GetStringValue(entry);
    int rc = FM_OK;
    if (!text || !fm_modules_read(&e, text))
        return FM_OK;
    for (size_t i = 0; i < tensors->entries && !rc; i++)
        rc = check_tensor(&tensors->entry[i], &e, key, err);
    fm_modules_release(&e);
    return rc;
}

int fm_ignored_check(const struct fm_tensors *tensors, struct fm_err *err)
{
    static const char *const keys[] = {"ignore", "modules_to_not_convert"};
    const cJSON *entry;
    cJSON *json = NULL;
    int rc = FM_OK;
    if (tensors->naming != FM_NAMING_STOCK)
        return FM_OK;
    if (fm_json_tree(&json, tensors->config, tensors->config_bytes, err))
        return err->code;
    const cJSON *quant = cJSON_GetObjectItemCaseSensitive(json, "quantization_config");
    for (int k = 0; k < 2; k++) {
        int expressions = 0;
        cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(quant, keys[k]))
        {
            const char *text = cJSON_GetStringValue(entry);
            if (!rc && text && strncmp(text, "re:", 3) == 0 && ++expressions > FM_PATTERNS_MAX)
                rc = fm_fail(err, FM_ECONFIG,
                             "quantization_config: %s has more than %d regular expressions",
                             keys[k], FM_PATTERNS_MAX);
            if (!rc)
                rc = check_entry(tensors, entry, keys[k], err);
        }
    }
    cJSON_Delete(json);
    return rc;
}
