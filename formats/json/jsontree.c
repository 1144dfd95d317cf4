/*
 * cJSON builds the trees, but only from texts that the strict scanner has accepted, because cJSON
 * itself accepts much that is not JSON.  Printing is ours: doubles with the fewest digits that read
 * back the same, exact integers, and lists of numbers on one line, so that a manifest is the same
 * on every machine and easy to read.
 */
#include "formats/json/json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/text.h"
#include "lib/base/names.h"

/* `keys` has room for the keys of any object of the tree.  The scanner has bounded the depth. */
static int refuse_twins(const cJSON *node, const char **keys, struct fm_err *err)
{
    size_t n = 0;
    const cJSON *c;
    if (cJSON_IsObject(node)) {
        for (c = node->child; c; c = c->next)
            keys[n++] = c->string;
        fm_names_sort(keys, n, sizeof *keys);
    }
    const char *twin = fm_names_twin(keys, n, sizeof *keys);
    if (twin)
        return fm_fail(err, FM_EFORMAT, "JSON: key '%s' appears twice", twin);
    for (c = node->child; c; c = c->next) {
        int rc = c->child ? refuse_twins(c, keys, err) : FM_OK;
        if (rc)
            return rc;
    }
    return FM_OK;
}

int fm_json_tree(cJSON **tree, const char *text, size_t size, struct fm_err *err)
{
    *tree = NULL;
    int rc = fm_json_check(text, size, err);
    if (rc)
        return rc;
    const char *end = NULL;
    cJSON *t = cJSON_ParseWithLengthOpts(text, size, &end, 0);
    const char **keys = malloc(FM_JSON_VALUES_MAX * sizeof *keys);
    if (!t || !keys)
        rc = fm_fail(err, FM_ENOMEM, "no memory for a JSON tree of %zu bytes", size);
    else if (!cJSON_IsObject(t) && !cJSON_IsArray(t))
        rc = fm_fail(err, FM_EFORMAT, "JSON at byte 0: an object or array was expected");
    else
        rc = refuse_twins(t, keys, err);
    free(keys);
    if (rc)
        cJSON_Delete(t);
    else
        *tree = t;
    return rc;
}

bool fm_json_has(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key) != NULL;
}

const cJSON *fm_json_value(const cJSON *object, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(v) ? NULL : v;
}

const char *fm_json_string_value(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

static int fail_missing(const char *key, struct fm_err *err)
{
    return fm_fail(err, FM_EFORMAT, "key '%s' is missing", key);
}

int fm_json_opt_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *value,
                    struct fm_err *err)
{
    const cJSON *v = fm_json_value(object, key);
    if (!v)
        return FM_OK;
    if (!cJSON_IsNumber(v) || v->valuedouble != trunc(v->valuedouble) ||
        fabs(v->valuedouble) > (double)FM_JSON_INTEGER_MAX)
        return fm_fail(err, FM_EFORMAT, "key '%s' is not an integer (limit 2^53)", key);
    int64_t i = (int64_t)v->valuedouble;
    if (i < min || i > max)
        return fm_fail(err, FM_EFORMAT,
                       "key '%s' is %" PRId64 " (limits %" PRId64 " to %" PRId64 ")", key, i, min,
                       max);
    *value = i;
    return FM_OK;
}

int fm_json_get_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *value,
                    struct fm_err *err)
{
    if (!fm_json_value(object, key))
        return fail_missing(key, err);
    return fm_json_opt_int(object, key, min, max, value, err);
}

int fm_json_get_uint(const cJSON *object, const char *key, int64_t min, uint64_t *value,
                     struct fm_err *err)
{
    int64_t i = 0;
    int rc = fm_json_get_int(object, key, min, FM_JSON_INTEGER_MAX, &i, err);
    *value = (uint64_t)i;
    return rc;
}

int fm_json_opt_double(const cJSON *object, const char *key, double min, double max, double *value,
                       struct fm_err *err)
{
    const cJSON *v = fm_json_value(object, key);
    if (!v)
        return FM_OK;
    if (!cJSON_IsNumber(v))
        return fm_fail(err, FM_EFORMAT, "key '%s' is not a number", key);
    if (!(v->valuedouble >= min && v->valuedouble <= max))
        return fm_fail(err, FM_EFORMAT, "key '%s' is %g (limits %g to %g)", key, v->valuedouble,
                       min, max);
    *value = v->valuedouble;
    return FM_OK;
}

int fm_json_opt_bool(const cJSON *object, const char *key, bool *value, struct fm_err *err)
{
    const cJSON *v = fm_json_value(object, key);
    if (!v)
        return FM_OK;
    if (!cJSON_IsBool(v))
        return fm_fail(err, FM_EFORMAT, "key '%s' is neither true nor false", key);
    *value = cJSON_IsTrue(v);
    return FM_OK;
}

int fm_json_get_string(const cJSON *object, const char *key, const char **value, struct fm_err *err)
{
    const cJSON *v = fm_json_value(object, key);
    if (!v)
        return fail_missing(key, err);
    if (!cJSON_IsString(v))
        return fm_fail(err, FM_EFORMAT, "key '%s' is not a string", key);
    *value = v->valuestring;
    return FM_OK;
}

void fm_json_double(char text[FM_JSON_DOUBLE], double d)
{
    if (!isfinite(d)) {
        memcpy(text, "null", 5);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, FM_JSON_DOUBLE, "%.*g", digits, d);
        if (strtod(text, NULL) == d)
            return;
    }
}

/* Stored in valueint of an object or array, where cJSON does not use it, if an item could not be
 * added. */
enum { INCOMPLETE = -1 };

cJSON *fm_json_add(cJSON *to, const char *key, cJSON *item)
{
    assert(!to || (key ? cJSON_IsObject(to) : cJSON_IsArray(to)));
    if (item && (key ? cJSON_AddItemToObject(to, key, item) : cJSON_AddItemToArray(to, item)))
        return item;
    cJSON_Delete(item);
    if (to)
        to->valueint = INCOMPLETE;
    return NULL;
}

cJSON *fm_json_add_object(cJSON *to, const char *key)
{
    return fm_json_add(to, key, cJSON_CreateObject());
}

cJSON *fm_json_add_array(cJSON *to, const char *key)
{
    return fm_json_add(to, key, cJSON_CreateArray());
}

void fm_json_add_string(cJSON *to, const char *key, const char *value)
{
    fm_json_add(to, key, cJSON_CreateString(value));
}

void fm_json_add_bool(cJSON *to, const char *key, bool value)
{
    fm_json_add(to, key, cJSON_CreateBool(value));
}

void fm_json_add_null(cJSON *to, const char *key)
{
    fm_json_add(to, key, cJSON_CreateNull());
}

void fm_json_add_uint(cJSON *to, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    fm_json_add(to, key, cJSON_CreateRaw(text));
}

void fm_json_add_double(cJSON *to, const char *key, double value)
{
    char text[FM_JSON_DOUBLE];
    fm_json_double(text, value);
    fm_json_add(to, key, cJSON_CreateRaw(text));
}

static bool is_container(const cJSON *v)
{
    return cJSON_IsObject(v) || cJSON_IsArray(v);
}

bool fm_json_is_whole(const cJSON *tree)
{
    if (!tree || (is_container(tree) && tree->valueint == INCOMPLETE))
        return false;
    for (const cJSON *c = tree->child; c; c = c->next)
        if (!fm_json_is_whole(c))
            return false;
    return true;
}

static void print_scalar(struct fm_text *t, const cJSON *v)
{
    char number[32];
    if (cJSON_IsString(v)) {
        fm_text_quote(t, v->valuestring);
    } else if (cJSON_IsRaw(v)) {
        fm_text_add(t, v->valuestring, strlen(v->valuestring));
    } else if (cJSON_IsNumber(v)) {
        double d = v->valuedouble;
        if (d == trunc(d) && fabs(d) <= (double)FM_JSON_INTEGER_MAX && !(d == 0 && signbit(d)))
            snprintf(number, sizeof number, "%" PRId64, (int64_t)d);
        else
            fm_json_double(number, d);
        fm_text_add(t, number, strlen(number));
    } else {
        fm_text_printf(t, "%s", cJSON_IsTrue(v) ? "true" : cJSON_IsFalse(v) ? "false" : "null");
    }
}

static bool fits_one_line(const cJSON *v)
{
    const cJSON *c;
    if (cJSON_IsObject(v))
        return !v->child;
    for (c = v->child; c; c = c->next)
        if (is_container(c))
            return false;
    return true;
}

static void print_node(struct fm_text *t, const cJSON *v, int indent)
{
    if (!is_container(v)) {
        print_scalar(t, v);
        return;
    }
    bool one_line = fits_one_line(v), object = cJSON_IsObject(v);
    fm_text_add(t, object ? "{" : "[", 1);
    for (const cJSON *c = v->child; c; c = c->next) {
        if (!one_line)
            fm_text_printf(t, "\n%*s", indent + 2, "");
        if (object) {
            fm_text_quote(t, c->string);
            fm_text_add(t, ": ", 2);
        }
        print_node(t, c, indent + 2);
        if (c->next)
            fm_text_add(t, ", ", one_line ? 2 : 1);
    }
    if (!one_line)
        fm_text_printf(t, "\n%*s", indent, "");
    fm_text_add(t, object ? "}" : "]", 1);
}

char *fm_json_print(const cJSON *tree)
{
    struct fm_text t = {0};
    if (!fm_json_is_whole(tree))
        return NULL;
    print_node(&t, tree, 0);
    fm_text_add(&t, "\n", 1);
    if (t.failed) {
        free(t.data);
        return NULL;
    }
    return t.data;
}
