/* Sizes from config.json.  A value that cannot be a size is an error in the file; one that is too
 * large is refused as an unsupported model, which has a different exit status. */
#include "lib/block/keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/names.h"

int fm_keys_size(int *size, const cJSON *object, const char *key, int limit, struct fm_err *err)
{
    int64_t value = 0;
    int rc = fm_json_get_int(object, key, 1, FM_JSON_INTEGER_MAX, &value, err);
    if (rc)
        return rc;
    if (value > limit)
        return fm_fail(err, FM_ECONFIG, "key '%s' is %" PRId64 " (limit %d)", key, value, limit);
    *size = (int)value;
    return FM_OK;
}

int fm_keys_size_opt(int *size, const cJSON *object, const char *key, int limit, struct fm_err *err)
{
    return fm_json_value(object, key) ? fm_keys_size(size, object, key, limit, err) : FM_OK;
}

int fm_keys_array(const cJSON **list, const cJSON *object, const char *key, struct fm_err *err)
{
    *list = fm_json_value(object, key);
    return !*list || cJSON_IsArray(*list)
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "key '%s' is not an array", key);
}

int fm_keys_list(const cJSON **list, const cJSON *object, const char *key, int L,
                 struct fm_err *err)
{
    int rc = fm_keys_array(list, object, key, err), n = cJSON_GetArraySize(*list);
    return rc || !*list || n == L
               ? rc
               : fm_fail(err, FM_EFORMAT, "%s has %d entries for %d layers", key, n, L);
}

int fm_keys_agree(const cJSON *list, const struct fm_layers *layers, bool in, const char *key,
                  struct fm_err *err)
{
    const cJSON *entry;
    int l = 0;
    cJSON_ArrayForEach(entry, list)
    {
        int want = fm_layers_has(layers, l) == in;
        if (!cJSON_IsNumber(entry) || entry->valuedouble != want)
            return fm_fail(err, FM_ECONFIG,
                           "%s of layer %d is not %d, which contradicts %s or its default; "
                           "programs differ in which they read",
                           list->string, l, want, key);
        l++;
    }
    return FM_OK;
}

int fm_keys_layers(struct fm_layers *layers, int L, const cJSON *object, const char *key,
                   const char *first, const char *second, struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(object, key), *type;
    int l = 0;
    cJSON_ArrayForEach(type, list)
    {
        const char *name = cJSON_IsString(type) ? type->valuestring : "?";
        bool is_first = strcmp(name, first) == 0;
        if (!is_first && strcmp(name, second) != 0)
            return fm_fail(err, FM_ECONFIG, "%s '%.64s' is not supported; supported: %s, %s", key,
                           name, first, second);
        if (is_first && l < L)
            fm_layers_add(layers, l);
        l++;
    }
    if (!cJSON_IsArray(list) || l != L)
        return fm_fail(err, FM_EFORMAT, "%s has %d entries for %d layers", key, l, L);
    return FM_OK;
}

/* Print a value in the notation of fm_keys_only's lists; long strings are truncated. */
static void print_value(char *text, size_t size, const cJSON *value)
{
    if (cJSON_IsBool(value))
        snprintf(text, size, "%s", cJSON_IsTrue(value) ? "true" : "false");
    else if (cJSON_IsNumber(value))
        snprintf(text, size, "%.17g", value->valuedouble);
    else if (cJSON_IsString(value))
        snprintf(text, size, "'%.64s'", value->valuestring);
    else
        snprintf(text, size, "%s", cJSON_IsArray(value) ? "[...]" : "{...}");
}

int fm_keys_word(int *which, const struct fm_keys *keys, const char *key, const char *const *known,
                 struct fm_err *err)
{
    const cJSON *value = fm_json_value(keys->json, key);
    const char *name = cJSON_GetStringValue(value);
    char text[80];
    int i = name ? fm_names_index(known, name) : -1;
    if (i >= 0)
        *which = i;
    if (i >= 0 || !value)
        return FM_OK;
    print_value(text, sizeof text, value);
    return fm_fail(err, FM_ECONFIG, "%s %s is not supported for %s; supported: %s%s%s", key, text,
                   keys->family, known[0], known[1] ? ", " : "", known[1] ? known[1] : "");
}

int fm_keys_only(const struct fm_keys *keys, const struct fm_keys_only *list, struct fm_err *err)
{
    for (; list->key; list++) {
        const cJSON *value = fm_json_value(keys->json, list->key);
        char text[80];
        if (!value)
            continue;
        print_value(text, sizeof text, value);
        if (strcmp(text, list->value) != 0)
            return fm_fail(err, FM_ECONFIG, "%s %s is not supported for %s; supported: %s",
                           list->key, text, keys->family, list->value);
    }
    return FM_OK;
}

int fm_keys_same(const cJSON *object, const char *groups, struct fm_err *err)
{
    const cJSON *first = NULL;
    char word[64];
    for (int n = 0; sscanf(groups, "%63s%n", word, &n) == 1; groups += n) {
        char *end = strchr(word, ';');
        if (end)
            *end = '\0';
        const cJSON *value = fm_json_value(object, word);
        if (value && first && !cJSON_Compare(value, first, true)) {
            char a[80], b[80];
            print_value(a, sizeof a, value);
            print_value(b, sizeof b, first);
            return fm_fail(err, FM_ECONFIG,
                           "%s %s differs from %s %s, and programs differ in which they read",
                           value->string, a, first->string, b);
        }
        first = end ? NULL : first ? first : value;
    }
    return FM_OK;
}
