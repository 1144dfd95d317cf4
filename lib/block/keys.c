/* Sizes from config.json.  A value that cannot be a size is an error in the file; one that is too
 * large is refused as an unsupported model, which has a different exit status. */
#include "lib/block/keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define EXACT_MAX (((int64_t)1 << 53) - 1)

int fm_keys_size(int *size, const cJSON *object, const char *key, int limit, struct fm_err *err)
{
    int64_t value = 0;
    int rc = fm_json_get_int(object, key, 1, EXACT_MAX, &value, err);
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

int fm_keys_layers(uint64_t *bits, int layers, const cJSON *object, const char *key,
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
        if (is_first && l < layers)
            bits[l / 64] |= (uint64_t)1 << l % 64;
        l++;
    }
    if (!cJSON_IsArray(list) || l != layers)
        return fm_fail(err, FM_EFORMAT, "%s has %d entries for %d layers", key, l, layers);
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
