/*
 * The scanner allocates nothing: it is a position in a text and a few functions that move it.  A
 * value that is not needed is skipped with all checks and without recursion, so nesting is limited
 * by a constant, not by the stack.  The scanner is written by hand because the packaged libraries
 * accept texts that two readers can understand differently, which hostile headers exploit.
 */
#include "formats/json/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Bytes of the UTF-8 sequence at s, 0 if it is invalid (overlong, surrogate, above U+10FFFF). */
static size_t utf8_length(const unsigned char *s, size_t left)
{
    static const struct {
        unsigned char first, last, low, high; /* lead byte; bounds of the second byte */
        size_t length;
    } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
                 {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
                 {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
                 {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    if (s[0] < 0x80)
        return 1;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        if (s[0] < forms[f].first || s[0] > forms[f].last)
            continue;
        if (left < forms[f].length || s[1] < forms[f].low || s[1] > forms[f].high)
            return 0;
        for (size_t i = 2; i < forms[f].length; i++)
            if (s[i] < 0x80 || s[i] > 0xbf)
                return 0;
        return forms[f].length;
    }
    return 0;
}

static size_t utf8_encode(char dst[4], uint32_t u)
{
    if (u < 0x80) {
        dst[0] = (char)u;
        return 1;
    }
    if (u < 0x800) {
        dst[0] = (char)(0xc0 | u >> 6);
        dst[1] = (char)(0x80 | (u & 0x3f));
        return 2;
    }
    if (u < 0x10000) {
        dst[0] = (char)(0xe0 | u >> 12);
        dst[1] = (char)(0x80 | (u >> 6 & 0x3f));
        dst[2] = (char)(0x80 | (u & 0x3f));
        return 3;
    }
    dst[0] = (char)(0xf0 | u >> 18);
    dst[1] = (char)(0x80 | (u >> 12 & 0x3f));
    dst[2] = (char)(0x80 | (u >> 6 & 0x3f));
    dst[3] = (char)(0x80 | (u & 0x3f));
    return 4;
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

/* Read the escape after a backslash, as UTF-8. */
static int parse_escape(struct fm_json *j, char dst[4], size_t *n, struct fm_err *err)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found = j->at < j->end && *j->at ? strchr(from, *j->at) : NULL;
    uint32_t u = 0;
    if (found) {
        j->at++;
        dst[0] = to[found - from];
        *n = 1;
        return FM_OK;
    }
    if (j->at >= j->end || *j->at != 'u')
        return fail_at(j, err, "an escape");
    j->at++;
    int rc = parse_unicode(j, &u, err);
    if (!rc && u == 0)
        return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": NUL in a string", position(j));
    *n = utf8_encode(dst, u);
    return rc;
}

/* C0, DEL and C1: the control characters of terminals. */
static bool is_control(const char *s, size_t n)
{
    unsigned char c = (unsigned char)s[0];
    return (n == 1 && (c < 0x20 || c == 0x7f)) ||
           (n == 2 && c == 0xc2 && (unsigned char)s[1] < 0xa0);
}

/* Read one character of a string, as UTF-8. */
static int parse_character(struct fm_json *j, bool controls, char dst[4], size_t *n,
                           struct fm_err *err)
{
    if (*j->at == '\\') {
        j->at++;
        int rc = parse_escape(j, dst, n, err);
        if (rc)
            return rc;
    } else {
        *n = utf8_length((const unsigned char *)j->at, (size_t)(j->end - j->at));
        if (*n == 0)
            return fail_at(j, err, "valid UTF-8");
        if ((unsigned char)*j->at < 0x20)
            return fm_fail(err, FM_EFORMAT,
                           "JSON at byte %" PRIu64 ": raw control byte 0x%02x in a string",
                           position(j), (unsigned char)*j->at);
        memcpy(dst, j->at, *n);
        j->at += *n;
    }
    if (!controls && is_control(dst, *n))
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
        if (v > (uint64_t)INT64_MAX / 10 || v * 10 > (uint64_t)INT64_MAX - (uint64_t)(*j->at - '0'))
            return fm_fail(err, FM_EFORMAT,
                           "JSON at byte %" PRIu64 ": an integer is too large (limit %" PRId64 ")",
                           begin, INT64_MAX);
        v = v * 10 + (uint64_t)(*j->at - '0');
        if (zero && v > 0)
            return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": leading zero", begin);
    }
    if (zero && position(j) - begin > 1)
        return fm_fail(err, FM_EFORMAT, "JSON at byte %" PRIu64 ": leading zero", begin);
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
