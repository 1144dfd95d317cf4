/*
 * The scanner allocates nothing: it is a position in a text and a few functions that move it.  A
 * value that is not needed is skipped with all checks and without recursion, so nesting is limited
 * by a constant, not by the stack.  The scanner is written by hand because the packaged libraries
 * accept texts that two readers can understand differently, which hostile headers exploit.
 */
#include "formats/json/json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/utf8.h"

void fm_json_init(struct fm_json *j, const char *text, size_t size)
{
    *j = (struct fm_json){
        .begin = text, .at = text, .end = text + size, .depth_max = FM_JSON_DEPTH_MAX};
}

static uint64_t position(const struct fm_json *j)
{
    return j->base + (uint64_t)(j->at - j->begin);
}

/* A description of the text at j->at, for messages. */
static const char *name_next(const struct fm_json *j, char word[16])
{
    if (j->at >= j->end)
        return "the end";
    unsigned char c = (unsigned char)*j->at;
    if (c > 0x20 && c < 0x7f)
        snprintf(word, 16, "'%c'", c);
    else
        snprintf(word, 16, "byte 0x%02x", c);
    return word;
}

static int fail_at(const struct fm_json *j, struct fm_err *err, const char *wanted)
{
    char word[16];
    return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": %s where %s was expected",
                   position(j), name_next(j, word), wanted);
}

static void skip_space(struct fm_json *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t'))
        j->at++;
}

int fm_json_expect(struct fm_json *j, char c, struct fm_err *err)
{
    if (fm_json_accept(j, c))
        return FM_OK;
    char wanted[4] = {'\'', c, '\''};
    return fail_at(j, err, wanted);
}

bool fm_json_accept(struct fm_json *j, char c)
{
    skip_space(j);
    if (j->at >= j->end || *j->at != c)
        return false;
    j->at++;
    return true;
}

int fm_json_end(struct fm_json *j, struct fm_err *err)
{
    skip_space(j);
    return j->at == j->end ? FM_OK : fail_at(j, err, "the end of the text");
}

/* Read the four hex digits at j->at. */
static int parse_hex(struct fm_json *j, uint32_t *u, struct fm_err *err)
{
    *u = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        int c = j->at < j->end ? (unsigned char)*j->at : 0;
        if (c >= '0' && c <= '9')
            *u = *u << 4 | (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            *u = *u << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else
            return fail_at(j, err, "a hexadecimal digit");
    }
    return FM_OK;
}

/* Read the code point after \u: two escapes if the first is a high surrogate. */
static int parse_unicode(struct fm_json *j, uint32_t *u, struct fm_err *err)
{
    uint32_t low = 0;
    int rc = parse_hex(j, u, err);
    if (rc || *u < 0xd800 || *u > 0xdfff)
        return rc;
    if (*u > 0xdbff || j->end - j->at < 2 || j->at[0] != '\\' || j->at[1] != 'u')
        return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": lone surrogate \\u%04x",
                       position(j), (unsigned)*u);
    j->at += 2;
    if ((rc = parse_hex(j, &low, err)))
        return rc;
    if (low < 0xdc00 || low > 0xdfff)
        return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": lone surrogate \\u%04x",
                       position(j), (unsigned)*u);
    *u = 0x10000 + ((*u - 0xd800) << 10) + (low - 0xdc00);
    return FM_OK;
}

/* Read the code point of the escape after a backslash. */
static int parse_escape(struct fm_json *j, uint32_t *u, struct fm_err *err)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found = j->at < j->end && *j->at ? strchr(from, *j->at) : NULL;
    if (found) {
        j->at++;
        *u = (uint32_t)to[found - from];
        return FM_OK;
    }
    if (j->at >= j->end || *j->at != 'u')
        return fail_at(j, err, "an escape");
    j->at++;
    int rc = parse_unicode(j, u, err);
    if (!rc && *u == 0)
        return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": NUL in a string", position(j));
    return rc;
}

/* Read one character of a string, as UTF-8. */
static int parse_character(struct fm_json *j, bool controls, char dst[4], size_t *n,
                           struct fm_err *err)
{
    uint32_t u;
    if (*j->at == '\\') {
        j->at++;
        int rc = parse_escape(j, &u, err);
        if (rc)
            return rc;
    } else {
        int bytes = fm_utf8_decode(j->at, (size_t)(j->end - j->at), &u);
        if (bytes == 0)
            return fail_at(j, err, "valid UTF-8");
        if (u < 0x20)
            return fm_fail(err, FM_EFORMAT,
                           "JSON at byte %" PRIu64 ": raw control byte 0x%02x in a string",
                           position(j), (unsigned)u);
        j->at += bytes;
    }
    *n = (size_t)fm_utf8_encode(dst, u);
    /* C0, DEL and C1: the control characters of terminals. */
    if (!controls && (u < 0x20 || (u >= 0x7f && u < 0xa0)))
        return fm_fail(err, FM_EFORMAT, "JSON before byte %" PRIu64 ": control character in a name",
                       position(j));
    return FM_OK;
}

/* Read a string into dst, or skip it if dst is NULL. */
static int parse_string(struct fm_json *j, bool controls, char *dst, size_t capacity,
                        struct fm_err *err)
{
    size_t used = 0, n = 0;
    char c[4] = {0};
    assert(!dst || capacity > 0); /* room for the NUL */
    skip_space(j);
    if (j->at >= j->end || *j->at != '"')
        return fail_at(j, err, "a string");
    uint64_t begin = position(j);
    j->at++;
    while (j->at < j->end && *j->at != '"') {
        int rc = parse_character(j, controls, c, &n, err);
        if (rc)
            return rc;
        if (!dst)
            continue;
        if (capacity - used <= n)
            return fm_fail(err, FM_EFORMAT,
                           "JSON at byte %" PRIu64 ": a string is too long (limit %zu bytes)",
                           begin, capacity - 1);
        memcpy(dst + used, c, n);
        used += n;
    }
    if (j->at >= j->end)
        return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": a string is not terminated",
                       begin);
    j->at++;
    if (dst)
        dst[used] = 0;
    return FM_OK;
}

int fm_json_string(struct fm_json *j, char *dst, size_t capacity, struct fm_err *err)
{
    return parse_string(j, false, dst, capacity, err);
}

int fm_json_text(struct fm_json *j, char *dst, size_t capacity, struct fm_err *err)
{
    return parse_string(j, true, dst, capacity, err);
}

static bool is_digit(const struct fm_json *j)
{
    return j->at < j->end && *j->at >= '0' && *j->at <= '9';
}

int fm_json_uint(struct fm_json *j, uint64_t *value, struct fm_err *err)
{
    skip_space(j);
    if (!is_digit(j))
        return fail_at(j, err, "a non-negative integer");
    uint64_t begin = position(j), v = 0;
    bool zero = *j->at == '0';
    for (; is_digit(j); j->at++) {
        if (zero && position(j) > begin)
            return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": leading zero", begin);
        if (v > (uint64_t)INT64_MAX / 10 || v * 10 > (uint64_t)INT64_MAX - (uint64_t)(*j->at - '0'))
            return fm_fail(err, FM_EFORMAT,
                           "JSON at byte %" PRIu64 ": an integer is too large (limit %" PRId64 ")",
                           begin, INT64_MAX);
        v = v * 10 + (uint64_t)(*j->at - '0');
    }
    if (j->at < j->end && (*j->at == '.' || *j->at == 'e' || *j->at == 'E'))
        return fail_at(j, err, "the end of an integer");
    *value = v;
    return FM_OK;
}

/* Skip at least one digit. */
static int parse_digits(struct fm_json *j, struct fm_err *err)
{
    if (!is_digit(j))
        return fail_at(j, err, "a digit");
    while (is_digit(j))
        j->at++;
    return FM_OK;
}

static bool next_is(struct fm_json *j, const char *set)
{
    return j->at < j->end && *j->at && strchr(set, *j->at);
}

/* RFC 8259: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static int skip_number(struct fm_json *j, struct fm_err *err)
{
    const char *begin = j->at;
    uint64_t where = position(j);
    int rc = FM_OK;
    if (next_is(j, "-"))
        j->at++;
    if (next_is(j, "0"))
        j->at++;
    else
        rc = parse_digits(j, err);
    if (!rc && is_digit(j))
        return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": leading zero", where);
    if (!rc && next_is(j, ".")) {
        j->at++;
        rc = parse_digits(j, err);
    }
    if (!rc && next_is(j, "eE")) {
        j->at++;
        if (next_is(j, "+-"))
            j->at++;
        rc = parse_digits(j, err);
    }
    if (rc)
        return rc;
    size_t length = (size_t)(j->at - begin);
    if (length > FM_JSON_NUMBER_MAX)
        return fm_fail(err, FM_EFORMAT,
                       "JSON at byte %" PRIu64 ": a number of %zu characters (limit %d)", where,
                       length, FM_JSON_NUMBER_MAX);
    char copy[FM_JSON_NUMBER_MAX + 1];
    memcpy(copy, begin, length);
    copy[length] = 0;
    if (!isfinite(strtod(copy, NULL)))
        return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": number %s is not finite", where,
                       copy);
    return FM_OK;
}

static int skip_word(struct fm_json *j, struct fm_err *err)
{
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(j->end - j->at) >= n && memcmp(j->at, words[i], n) == 0) {
            j->at += n;
            return FM_OK;
        }
    }
    return fail_at(j, err, "a value");
}

static int skip_scalar(struct fm_json *j, struct fm_err *err)
{
    if (next_is(j, "\""))
        return parse_string(j, true, NULL, 0, err);
    if (next_is(j, "-0123456789"))
        return skip_number(j, err);
    return skip_word(j, err);
}

/* Skip a key and its colon, after the '{' or a ',' of an object. */
static int skip_key(struct fm_json *j, struct fm_err *err)
{
    int rc = parse_string(j, j->text_keys, NULL, 0, err);
    return !rc ? fm_json_expect(j, ':', err) : rc;
}

/*
 * No recursion: `closer` is the stack of brackets that are still open.  After each value the loop
 * pops the brackets that close there and skips the comma; *values counts down.
 */
static int skip_values(struct fm_json *j, size_t *values, struct fm_err *err)
{
    char closer[FM_JSON_SKIPPED_DEPTH_MAX];
    int depth = 0, rc = FM_OK;
    assert(j->depth_max <= FM_JSON_SKIPPED_DEPTH_MAX);
    for (;;) {
        skip_space(j);
        if ((*values)-- == 0)
            return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": more than %d values",
                           position(j), FM_JSON_VALUES_MAX);
        if (next_is(j, "{[")) {
            if (depth == j->depth_max)
                return fm_fail(err, FM_EFORMAT,
                               "JSON at byte %" PRIu64 ": nested too deeply (limit %d)",
                               position(j), j->depth_max);
            closer[depth++] = *j->at++ == '{' ? '}' : ']';
            if (!fm_json_accept(j, closer[depth - 1])) {
                if (closer[depth - 1] == '}' && (rc = skip_key(j, err)))
                    return rc;
                continue;
            }
            depth--;
        } else if ((rc = skip_scalar(j, err))) {
            return rc;
        }
        while (depth > 0 && fm_json_accept(j, closer[depth - 1]))
            depth--;
        if (depth == 0)
            return FM_OK;
        if (!fm_json_accept(j, ','))
            return fail_at(j, err, closer[depth - 1] == '}' ? "',' or '}'" : "',' or ']'");
        if (closer[depth - 1] == '}' && (rc = skip_key(j, err)))
            return rc;
    }
}

int fm_json_skip(struct fm_json *j, struct fm_err *err)
{
    size_t unlimited = SIZE_MAX;
    return skip_values(j, &unlimited, err);
}

int fm_json_check(const char *text, size_t size, struct fm_err *err)
{
    struct fm_json j;
    size_t values = FM_JSON_VALUES_MAX;
    fm_json_init(&j, text, size);
    int rc = skip_values(&j, &values, err);
    return rc ? rc : fm_json_end(&j, err);
}
