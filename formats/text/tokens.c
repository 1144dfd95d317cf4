/*
 * A .npy file is recognised by its first bytes; all others are raw.  The size is checked against
 * the file's length, so a truncated file is refused when it is opened.  Each format is an array of
 * integers of 2, 4 or 8 bytes at an offset; ids are compared with the vocabulary as they are read.
 */
#include "formats/text/tokens.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "formats/file/genuine.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"

#define NPY_HEADER_MAX 4096 /* numpy writes 118 bytes */
#define CHUNK_TOKENS 4096

/* The text of a .npy header: a Python dict literal, which numpy always writes in the same form. */
struct literal {
    const char *at, *end;
};

static void skip_space(struct literal *l)
{
    while (l->at < l->end && (*l->at == ' ' || *l->at == '\n'))
        l->at++;
}

static bool accept(struct literal *l, const char *word)
{
    size_t n = strlen(word);
    skip_space(l);
    if ((size_t)(l->end - l->at) < n || memcmp(l->at, word, n) != 0)
        return false;
    l->at += n;
    return true;
}

static int fail_header(const struct literal *l, struct fm_err *err, const char *wanted)
{
    int left = (int)(l->end - l->at < 24 ? l->end - l->at : 24);
    return fm_fail(err, FM_EFORMAT, "the .npy header has '%.*s' where %s was expected", left, l->at,
                   wanted);
}

static int parse_number(struct literal *l, uint64_t *value, struct fm_err *err)
{
    skip_space(l);
    const char *begin = l->at;
    uint64_t v = 0;
    for (; l->at < l->end && *l->at >= '0' && *l->at <= '9'; l->at++)
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*l->at - '0'), &v))
            return fm_fail(err, FM_EFORMAT, "a dimension in the .npy header is too large");
    if (l->at == begin)
        return fail_header(l, err, "a dimension");
    *value = v;
    return FM_OK;
}

static int parse_descr(struct fm_tokens *t, struct literal *l, struct fm_err *err)
{
    static const struct {
        const char *descr;
        int width, is_signed;
    } types[] = {{"'<u2'", 2, 0}, {"'<u4'", 4, 0}, {"'<i4'", 4, 1}, {"'<i8'", 8, 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (accept(l, types[i].descr)) {
            t->width = types[i].width;
            t->is_signed = types[i].is_signed;
            return FM_OK;
        }
    return fail_header(l, err, "descr '<u2', '<u4', '<i4' or '<i8'");
}

/* Parse a shape: (n,) or (n, m). */
static int parse_shape(struct fm_tokens *t, struct literal *l, struct fm_err *err)
{
    uint64_t dim[2] = {0, 0};
    if (!accept(l, "("))
        return fail_header(l, err, "a shape");
    int rc = parse_number(l, &dim[0], err);
    if (rc)
        return rc;
    if (!accept(l, ","))
        return fail_header(l, err, "','");
    t->count = dim[0];
    if (accept(l, ")"))
        return FM_OK;
    if ((rc = parse_number(l, &dim[1], err)))
        return rc;
    if (!accept(l, ")"))
        return fail_header(l, err, "one or two dimensions");
    t->rows = dim[0];
    t->cols = dim[1];
    if (__builtin_mul_overflow(dim[0], dim[1], &t->count))
        return fm_fail(err, FM_EFORMAT, "%" PRIu64 " x %" PRIu64 " tokens are too many", dim[0],
                       dim[1]);
    return FM_OK;
}

enum { HAS_DESCR = 1, HAS_ORDER = 2, HAS_SHAPE = 4, HAS_ALL = 7 };

static int parse_field(struct fm_tokens *t, struct literal *l, int *has, struct fm_err *err)
{
    int bit = accept(l, "'descr'")           ? HAS_DESCR
              : accept(l, "'fortran_order'") ? HAS_ORDER
              : accept(l, "'shape'")         ? HAS_SHAPE
                                             : 0;
    if (bit == 0 || (*has & bit))
        return fail_header(l, err, "each of descr, fortran_order and shape once");
    *has |= bit;
    if (!accept(l, ":"))
        return fail_header(l, err, "':'");
    if (bit == HAS_DESCR)
        return parse_descr(t, l, err);
    if (bit == HAS_SHAPE)
        return parse_shape(t, l, err);
    if (accept(l, "True"))
        return fm_fail(err, FM_EFORMAT, "the array is in Fortran order; save it in C order");
    return accept(l, "False") ? FM_OK : fail_header(l, err, "fortran_order False");
}

static int parse_dict(struct fm_tokens *t, struct literal *l, struct fm_err *err)
{
    int has = 0, rc = FM_OK;
    if (!accept(l, "{"))
        return fail_header(l, err, "'{'");
    do
        rc = parse_field(t, l, &has, err);
    while (!rc && accept(l, ",") && has != HAS_ALL);
    if (rc)
        return rc;
    if (!accept(l, "}") || has != HAS_ALL)
        return fail_header(l, err, "each of descr, fortran_order and shape once");
    skip_space(l);
    return l->at == l->end ? FM_OK : fail_header(l, err, "the end of the dictionary");
}

/* Check that the announced size is that of the file. */
static int check_length(const struct fm_tokens *t, struct fm_err *err)
{
    uint64_t bytes = 0;
    if (t->count == 0)
        return fm_fail(err, FM_EFORMAT, "it has no tokens");
    if (__builtin_mul_overflow(t->count, (uint64_t)t->width, &bytes) ||
        bytes != t->file.size - t->data)
        return fm_fail(err, FM_EFORMAT,
                       "%" PRIu64 " tokens of %d bytes are announced, but there are %" PRIu64
                       " bytes",
                       t->count, t->width, t->file.size - t->data);
    return FM_OK;
}

/* begin: the first bytes of the file, at least 12. */
static int open_npy(struct fm_tokens *t, const unsigned char *begin, struct fm_err *err)
{
    char text[NPY_HEADER_MAX];
    int version = begin[6];
    if ((version != 1 && version != 2) || begin[7] != 0)
        return fm_fail(err, FM_EFORMAT, ".npy version %d.%d (supported: 1.0 and 2.0)", version,
                       begin[7]);
    uint64_t at = version == 1 ? 10 : 12;
    uint64_t length = fm_little_endian(begin + 8, version == 1 ? 2 : 4);
    if (length > NPY_HEADER_MAX)
        return fm_fail(err, FM_EFORMAT, "a .npy header of %" PRIu64 " bytes (limit %d)", length,
                       NPY_HEADER_MAX);
    if (length > t->file.size - at)
        return fm_fail(err, FM_EFORMAT, "a .npy header of %" PRIu64 " bytes in a file of %" PRIu64,
                       length, t->file.size);
    int rc = fm_file_read(&t->file, at, text, (size_t)length, err);
    if (rc)
        return rc;
    struct literal l = {text, text + length};
    if ((rc = parse_dict(t, &l, err)))
        return rc;
    t->data = at + length;
    t->format = "npy";
    return check_length(t, err);
}

static int open_raw(struct fm_tokens *t, struct fm_err *err)
{
    if (t->file.size % (uint64_t)t->width != 0)
        return fm_fail(err, FM_EFORMAT, "%" PRIu64 " bytes are not whole tokens of %d bytes",
                       t->file.size, t->width);
    t->count = t->file.size / (uint64_t)t->width;
    t->format = "raw";
    return check_length(t, err);
}

/* True for printable text: users pass .jsonl and .txt files as tokens by mistake. */
static bool looks_like_text(const unsigned char *begin, size_t n)
{
    size_t i = 0;
    while (i < n && ((begin[i] >= ' ' && begin[i] != 0x7f) || strchr("\t\r\n", begin[i])))
        i++;
    return n > 1 && i == n && !memchr(begin, 0, n);
}

static int recognise(struct fm_tokens *t, struct fm_err *err)
{
    unsigned char begin[12] = {0};
    if (t->file.size == 0) {
        fm_fail(err, FM_EFORMAT, "the file is empty");
        return fm_advise(err, FM_ADVISE_TOKENS_OR_TEXT);
    }
    size_t n = t->file.size < sizeof begin ? (size_t)t->file.size : sizeof begin;
    if (fm_file_read(&t->file, 0, begin, n, err) || fm_genuine_file(&t->file, false, err))
        return err->code;
    if (memcmp(begin, "\x93NUMPY", 6) == 0)
        return n == sizeof begin
                   ? open_npy(t, begin, err)
                   : fm_fail(err, FM_EFORMAT, "%zu bytes are too few for a .npy file", n);
    uint64_t magic = fm_little_endian(begin, 4);
    if (magic == 20240520 || magic == 20240801)
        return fm_fail(
            err, FM_EFORMAT,
            "it has a header of llm.c; convert it to .npy, without its first 1024 bytes");
    t->width = fm_ends_with(t->file.path, ".u16") ? 2 : fm_ends_with(t->file.path, ".u32") ? 4 : 0;
    if (t->width)
        return open_raw(t, err);
    if (looks_like_text(begin, n)) {
        fm_fail(err, FM_EUSAGE, "it is text, not tokens");
        return fm_advise(err, FM_ADVISE_TEXT);
    }
    fm_fail(err, FM_EUSAGE, "it is not a .npy file");
    return fm_advise(err, FM_ADVISE_TOKEN_TYPE);
}

int fm_tokens_open(struct fm_tokens *t, const char *path, struct fm_err *err)
{
    *t = (struct fm_tokens){.file.fd = -1};
    int rc = fm_file_open(&t->file, path, err);
    if (rc)
        return rc;
    if ((rc = recognise(t, err))) {
        fm_within(err, "%s", path);
        fm_tokens_close(t);
    }
    return rc;
}

void fm_tokens_close(struct fm_tokens *t)
{
    fm_file_close(&t->file);
    *t = (struct fm_tokens){.file.fd = -1};
}

int fm_tokens_read(const struct fm_tokens *t, uint64_t at, int32_t *ids, uint64_t n,
                   uint32_t vocabulary, struct fm_err *err)
{
    unsigned char chunk[CHUNK_TOKENS * 8];
    assert(at <= t->count && n <= t->count - at && vocabulary <= INT32_MAX);
    uint64_t w = (uint64_t)t->width;
    for (uint64_t done = 0; done < n;) {
        uint64_t some = n - done < CHUNK_TOKENS ? n - done : CHUNK_TOKENS;
        int rc = fm_file_read(&t->file, t->data + (at + done) * w, chunk, (size_t)(some * w), err);
        if (rc)
            return rc;
        for (uint64_t i = 0; i < some; i++, done++) {
            uint64_t id = fm_little_endian(chunk + i * w, t->width);
            int unused = 64 - 8 * t->width;
            if (t->is_signed)
                id = (uint64_t)((int64_t)(id << unused) >> unused);
            if (id >= vocabulary) /* as unsigned, a negative number is too large as well */
                return fm_fail(err, FM_EFORMAT,
                               "%s: token %" PRIu64 " is %" PRId64 " (vocabulary %" PRIu32 ")",
                               t->file.path, at + done, (int64_t)id, vocabulary);
            ids[done] = (int32_t)id;
        }
    }
    return FM_OK;
}
