/*
 * This room, formats/json: JSON read strictly, written exactly, and edited in place.  It does not
 * interpret keys: lib/model reads config.json, lib/stage the manifest.  In reading order: json.c
 * (the scanner), jsontree.c (trees, and their printing), jsonedit.
 *
 * Untrusted JSON: a strict pull scanner for headers that may be huge (safetensors, shard index),
 * and a checked entry to cJSON for small files (config.json, our manifest).
 *
 * Strict: valid UTF-8; numbers as in RFC 8259, finite and at most FM_JSON_NUMBER_MAX characters; no
 * raw control bytes and no NUL, escaped or not, inside strings; no lone surrogates; nothing but
 * white space after the value; nesting at most FM_JSON_DEPTH_MAX, unless the caller of the scanner
 * sets another limit.  fm_json_check and fm_json_tree also refuse texts of more than
 * FM_JSON_VALUES_MAX values, and fm_json_tree duplicate keys.  Errors give the byte position.
 */
#ifndef FM_JSON_H
#define FM_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "lib/base/err.h"

#define FM_JSON_DEPTH_MAX 16
#define FM_JSON_SKIPPED_DEPTH_MAX 1024 /* as deep as Python's json module reads */
#define FM_JSON_NUMBER_MAX 48
#define FM_JSON_INTEGER_MAX 9007199254740991 /* 2^53 - 1: beyond it doubles skip integers */
#define FM_JSON_VALUES_MAX 250000            /* each takes at least 64 bytes in a cJSON tree */

struct fm_json {
    const char *begin, *at, *end;
    uint64_t base;  /* position of `begin` in the whole text, if this is a window on it */
    int depth_max;  /* nesting of a value that is skipped, at most FM_JSON_SKIPPED_DEPTH_MAX */
    bool text_keys; /* skipped keys are any text, not names, and may contain escaped control
                       characters */
};

void fm_json_init(struct fm_json *j, const char *text, size_t size);

/* The functions below skip white space and consume one item; FM_EFORMAT, with the byte position, if
 * it is not there. */
int fm_json_expect(struct fm_json *j, char c, struct fm_err *err);
/* If the next byte is c, consume it and return true. */
bool fm_json_accept(struct fm_json *j, char c);
/* Read a string into dst, unescaped; FM_EFORMAT if it and its NUL do not fit into `capacity` bytes.
 * For names: control characters are refused, even if escaped. */
int fm_json_string(struct fm_json *j, char *dst, size_t capacity, struct fm_err *err);
/* As fm_json_string, for values: escaped control characters such as a line feed are accepted, but
 * not NUL. */
int fm_json_text(struct fm_json *j, char *dst, size_t capacity, struct fm_err *err);
/* Read an integer from 0 to 2^63 - 1, without sign, fraction, exponent or leading zeros. */
int fm_json_uint(struct fm_json *j, uint64_t *value, struct fm_err *err);
/* Check and skip any value. */
int fm_json_skip(struct fm_json *j, struct fm_err *err);
/* FM_EFORMAT unless only white space is left. */
int fm_json_end(struct fm_json *j, struct fm_err *err);

/* Check that the whole text is one value as above, except for duplicate keys. */
int fm_json_check(const char *text, size_t size, struct fm_err *err);

/* Check the whole text as above, then parse it with cJSON.  The value is an object or an array.
 * The caller frees the tree with cJSON_Delete. */
int fm_json_tree(cJSON **tree, const char *text, size_t size, struct fm_err *err);

/*
 * Getters for trees; `key` is case-sensitive, errors name it.  Integers are exact below 2^53
 * and checked to be in [min, max].  The fm_json_opt functions do not change *value if the key is
 * absent or null.
 */
bool fm_json_has(const cJSON *object, const char *key);           /* null or not */
const cJSON *fm_json_value(const cJSON *object, const char *key); /* NULL if absent or null */
/* Borrowed from the tree; NULL if absent or not a string. */
const char *fm_json_string_value(const cJSON *object, const char *key);
int fm_json_get_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *value,
                    struct fm_err *err);
int fm_json_opt_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *value,
                    struct fm_err *err);
/* An integer of at least `min`, which is not negative. */
int fm_json_get_uint(const cJSON *object, const char *key, int64_t min, uint64_t *value,
                     struct fm_err *err);
int fm_json_opt_double(const cJSON *object, const char *key, double min, double max, double *value,
                       struct fm_err *err);
int fm_json_opt_bool(const cJSON *object, const char *key, bool *value, struct fm_err *err);
/* Borrowed from the tree. */
int fm_json_get_string(const cJSON *object, const char *key, const char **value,
                       struct fm_err *err);

/*
 * Building a tree.  Each function adds an item to `to`: under a key to an object, with key NULL to
 * an array.  Callers need not check each call: if there is no memory for an item, its object or
 * array is marked as incomplete, and adding to NULL does nothing.  fm_json_print refuses such a
 * tree, and its caller reports the lack of memory.
 *
 *     cJSON *tree = cJSON_CreateObject();
 *     cJSON *sizes = fm_json_add_array(tree, "sizes");
 *     fm_json_add_uint(sizes, NULL, 64);
 *     char *text = fm_json_print(tree);
 *     cJSON_Delete(tree);
 *     return text ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for the sizes");
 */
cJSON *fm_json_add_object(cJSON *to, const char *key); /* the new one, borrowed; NULL: no memory */
cJSON *fm_json_add_array(cJSON *to, const char *key);
void fm_json_add_string(cJSON *to, const char *key, const char *value);
void fm_json_add_bool(cJSON *to, const char *key, bool value);
void fm_json_add_null(cJSON *to, const char *key);
/* For numbers that cJSON would print wrongly: exact integers, and doubles with the fewest digits
 * that read back the same (17 at most); NaN and Inf become null. */
void fm_json_add_uint(cJSON *to, const char *key, uint64_t value);
void fm_json_add_double(cJSON *to, const char *key, double value);
/* Add any item and take ownership of it, also on failure; item NULL: no memory to create it. */
cJSON *fm_json_add(cJSON *to, const char *key, cJSON *item);
/* True if the tree exists and no item is missing; for trees that fm_json_print does not print. */
bool fm_json_is_whole(const cJSON *tree);

/* The fewest digits that read back the same, 17 at most; "null" for NaN and Inf. */
#define FM_JSON_DOUBLE 32
void fm_json_double(char text[FM_JSON_DOUBLE], double value);

/* The text, indented by two spaces, with a newline at the end, the same on every machine and
 * locale; arrays without containers are on one line. free() it.  NULL: no memory, now or when
 * the tree was built. */
char *fm_json_print(const cJSON *tree);

#endif
