/*
 * The file is read in pieces into one buffer that grows only as far as the limit of a document, so
 * a file may be larger than memory and a line that never ends is refused.  A row's text is
 * extracted from its JSON without building a tree.
 */
#include "formats/text/documents.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/genuine.h"
#include "formats/file/spool.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"

#define PIECE (1 << 20)

/* Fields of rows in public data sets that hold text, or the parts of a chat. */
static const char *const text_fields[] = {"text",        "content",       "raw_content",
                                          "messages",    "conversations", "prompt",
                                          "instruction", "question",      "body"};

static bool is_blank(const char *s, size_t n)
{
    while (n > 0 && strchr(" \t\r\n", s[n - 1]) && s[n - 1])
        n--;
    return n == 0;
}

/* Append more of the file to the buffer; nothing at its end. */
static int fill(struct fm_documents *d, struct fm_err *err)
{
    uint64_t left = d->file.size - d->at;
    size_t piece = left < PIECE ? (size_t)left : PIECE;
    if (d->used > 0) {
        memmove(d->buffer, d->buffer + d->used, d->have - d->used);
        d->have -= d->used;
        d->used = 0;
    }
    if (FM_GROW(d->buffer, d->capacity, d->have + piece, "a document", err))
        return err->code;
    int rc = fm_file_read(&d->file, d->at, d->buffer + d->have, piece, err);
    if (rc)
        return rc;
    d->at += piece;
    d->have += piece;
    return FM_OK;
}

/* Refuse formats that users pass as text by mistake, recognised by their first bytes. */
static int check_beginning(const struct fm_documents *d, struct fm_err *err)
{
    static const struct {
        const char *begin;
        size_t size;
        const char *what, *convert; /* NULL: it can be decompressed */
    } known[] = {{"\x1f\x8b", 2, "compressed with gzip", NULL},
                 {"\x28\xb5\x2f\xfd", 4, "compressed with zstd", NULL},
                 {"BZh", 3, "compressed with bzip2", NULL},
                 {"\xfd"
                  "7zXZ",
                  5, "compressed with xz", NULL},
                 {"PAR1", 4, "Parquet", "export its rows as JSONL"},
                 {"\xff\xfe", 2, "UTF-16", "convert it to UTF-8"},
                 {"\xfe\xff", 2, "UTF-16", "convert it to UTF-8"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *convert = known[i].convert;
        if (d->have < known[i].size || memcmp(d->buffer, known[i].begin, known[i].size) != 0)
            continue;
        fm_fail(err, FM_EFORMAT, "'%s' is %s, not text%s%s", d->file.path, known[i].what,
                convert ? "; " : "", convert ? convert : "");
        return convert ? err->code : fm_advise(err, FM_ADVISE_DECOMPRESS);
    }
    return fm_genuine_text(d->buffer, d->have, false, err) ? fm_within(err, "%s", d->file.path)
                                                           : FM_OK;
}

void fm_documents_close(struct fm_documents *d)
{
    free(d->buffer);
    fm_file_close(&d->file);
    *d = (struct fm_documents){.file.fd = -1};
}

/* Find the line at `from`, of *size bytes without its end; *next is the start of the next line. */
static int find_line(struct fm_documents *d, size_t from, size_t *size, size_t *next, bool *there,
                     struct fm_err *err)
{
    size_t seen = from;
    for (;;) {
        char *begin = d->buffer + d->used;
        size_t held = d->have - d->used;
        char *end = held > seen ? memchr(begin + seen, '\n', held - seen) : NULL;
        size_t so_far = end ? (size_t)(end - begin) : held;
        if (so_far > FM_DOCUMENT_BYTES_MAX) {
            fm_fail(err, FM_EFORMAT, "%s: the document on line %" PRIu64 " is over %d bytes",
                    d->file.path, d->line + 1, FM_DOCUMENT_BYTES_MAX);
            return d->rows ? err->code : fm_advise(err, FM_ADVISE_ROWS);
        }
        if (end || d->at == d->file.size) {
            *there = end || held > from;
            *size = so_far - from;
            *next = so_far + (end != NULL);
            return FM_OK;
        }
        seen = held;
        int rc = fill(d, err);
        if (rc)
            return rc;
    }
}

/* Find one row, or all lines. */
int fm_documents_next(struct fm_documents *d, const char **record, size_t *size, uint64_t *line,
                      struct fm_err *err)
{
    size_t begin = 0, end = 0, next = 0, n = 0;
    uint64_t lines = 0;
    bool there = true, any = false;
    int rc = FM_OK;
    *record = NULL;
    while (there && !(any && d->rows)) {
        size_t from = next;
        if ((rc = find_line(d, from, &n, &next, &there, err)))
            return rc;
        if (!there)
            break;
        lines++;
        bool blank = is_blank(d->buffer + d->used + from, n);
        if (blank && d->rows) {
            d->used += next;
            d->line += lines;
            next = lines = 0;
            continue;
        }
        begin = any ? begin : from;
        end = d->rows ? from + n : next;
        any = true;
    }
    if (any) {
        *record = d->buffer + d->used + begin;
        *size = end - begin;
        *line = d->line + 1;
    }
    d->used += next;
    d->line += lines;
    return FM_OK;
}

/* Read a key of any length: one that does not fit into `key` is not the one searched for. */
static int parse_key(struct fm_json *j, char *key, size_t capacity, struct fm_err *err)
{
    struct fm_json before = *j;
    struct fm_err ignored = {0};
    int rc = FM_OK;
    if (fm_json_text(j, key, capacity, &ignored)) {
        *key = '\0';
        *j = before;
        if (!fm_json_accept(j, '"'))
            return fm_json_text(j, key, capacity, err);
        *j = before;
        rc = fm_json_skip(j, err);
    }
    return !rc ? fm_json_expect(j, ':', err) : rc;
}

/* What is known about a row after its members were scanned. */
struct row {
    const char *field;
    char *text; /* of the field; NULL: it is skipped like the others */
    size_t capacity;
    bool found, chat;
    bool known;      /* it has a field of text_fields */
    bool not_finite; /* valid JSON up to a NaN or Infinity */
};

/* A word where a value belongs. */
static bool word_is(const struct fm_json *j, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(j->end - j->at) >= n && memcmp(j->at, word, n) == 0;
}

/* What Python's json module writes for floats that are not finite. */
static const char *not_finite(const struct fm_json *j)
{
    return word_is(j, "NaN") ? "NaN" : word_is(j, "Infinity") ? "Infinity" : NULL;
}

static int take_text(struct fm_json *j, const struct row *r, struct fm_err *err)
{
    if (fm_json_accept(j, '"')) {
        j->at--;
        return fm_json_text(j, r->text, r->capacity, err);
    }
    if (word_is(j, "null"))
        return fm_fail(
            err, FM_EFORMAT,
            "field '%.80s' is null, not a string; remove such rows (jq -c 'select(.[\"%.80s\"] "
            "!= null)')",
            r->field, r->field);
    fm_fail(err, FM_EFORMAT, "field '%.80s' is not a string", r->field);
    return fm_advise(err, FM_ADVISE_TEXT_FIELD);
}

static int scan_value(struct fm_json *j, struct row *r, const char *key, struct fm_err *err)
{
    r->chat = r->chat || strcmp(key, "messages") == 0 || strcmp(key, "conversations") == 0;
    for (size_t i = 0; i < sizeof text_fields / sizeof *text_fields; i++)
        r->known = r->known || strcmp(key, text_fields[i]) == 0;
    if (strcmp(key, r->field) != 0)
        return fm_json_skip(j, err);
    if (r->found)
        return fm_fail(err, FM_EFORMAT, "'%.80s' appears twice", r->field);
    r->found = true;
    return r->text ? take_text(j, r, err) : fm_json_skip(j, err);
}

static int scan_members(struct fm_json *j, struct row *r, struct fm_err *err)
{
    char key[256];
    int rc = fm_json_expect(j, '{', err);
    if (rc || fm_json_accept(j, '}'))
        return rc;
    do {
        if ((rc = parse_key(j, key, sizeof key, err)) || (rc = scan_value(j, r, key, err)))
            return rc;
    } while (fm_json_accept(j, ','));
    return fm_json_expect(j, '}', err);
}

/* Scan a row; where the strict scanner's message would not say what to do, use another one. */
static int scan_row(struct row *r, const char *record, size_t size, struct fm_err *err)
{
    struct fm_json j;
    fm_json_init(&j, record, size);
    j.text_keys = true;
    j.depth_max = FM_JSON_SKIPPED_DEPTH_MAX;
    int rc = scan_members(&j, r, err);
    if (!rc)
        rc = fm_json_end(&j, err);
    r->not_finite = rc && not_finite(&j);
    if (r->not_finite)
        return fm_fail(err, FM_EFORMAT, "JSON at byte %td: %s is not JSON; write null in its place",
                       j.at - j.begin, not_finite(&j));
    fm_json_init(&j, record, size);
    if (rc && fm_json_accept(&j, '['))
        return fm_fail(
            err, FM_EFORMAT,
            "it is an array; write each row as an object on a line of its own (jq -c '.[]')");
    if (rc && fm_json_accept(&j, '{') && is_blank(j.at, (size_t)(j.end - j.at)))
        return fm_fail(
            err, FM_EFORMAT,
            "its object continues on the next line; write each row on one line (jq -c .)");
    return rc;
}

static int parse_row(const char *field, const char *record, size_t size, char *dst,
                     struct fm_err *err)
{
    struct row r = {.field = field, .text = dst, .capacity = size + 1};
    int rc = scan_row(&r, record, size, err);
    if (rc || r.found)
        return rc;
    if (r.chat)
        return fm_fail(err, FM_EFORMAT,
                       "no field '%.80s'; turn chat messages into text with fm-chat2text", field);
    fm_fail(err, FM_EFORMAT, "no field '%.80s'", field);
    return fm_advise(err, FM_ADVISE_TEXT_FIELD);
}

/* --- rows or plain text --- */

static bool has_name_of_rows(const char *path)
{
    const char *point = strrchr(path, '.');
    return point && (strcasecmp(point, ".jsonl") == 0 || strcasecmp(point, ".ndjson") == 0 ||
                     strcasecmp(point, ".json") == 0);
}

/* True if a line begins an object with a key, or an array of such objects. */
static bool begins_like_json(const char *line, size_t size)
{
    struct fm_json j;
    fm_json_init(&j, line, size);
    fm_json_accept(&j, '[');
    return fm_json_accept(&j, '{') && fm_json_accept(&j, '"');
}

/*
 * Recognise rows by the first line that is not blank: an object with the field, or with another
 * field that holds text.  Plain text may begin with a brace, too, such as C or TeX.
 */
static void recognise_rows(struct fm_documents *d, bool named)
{
    size_t from = 0, size = 0, next = 0, i = d->used;
    bool there = true;
    struct fm_err ignored = {0};
    while (i < d->have && is_blank(d->buffer + i, 1))
        i++;
    if (i < d->have && d->buffer[i] != '{' && d->buffer[i] != '[')
        return;
    do {
        from = next;
        if (find_line(d, from, &size, &next, &there, &ignored) || !there)
            return; /* fm_documents_next gives the error */
    } while (is_blank(d->buffer + d->used + from, size));
    struct row r = {.field = d->field};
    const char *line = d->buffer + d->used + from;
    if (!begins_like_json(line, size))
        return;
    bool valid = scan_row(&r, line, size, &ignored) == FM_OK;
    d->rows = d->recognised = r.not_finite || (valid && (named || r.found || r.known));
    d->doubtful = !d->rows;
}

int fm_documents_open(struct fm_documents *d, const char *path, const char *field,
                      struct fm_err *err)
{
    *d = (struct fm_documents){.file.fd = -1, .field = field ? field : "text"};
    int rc = FM_OK;
    if (fm_spool_open(&d->file, path, err) || fill(d, err) || check_beginning(d, err)) {
        rc = err->code;
        fm_documents_close(d);
        return rc;
    }
    if (d->have >= 3 && memcmp(d->buffer, "\xef\xbb\xbf", 3) == 0)
        d->used = 3; /* a byte-order mark */
    d->rows = has_name_of_rows(path);
    if (!d->rows)
        recognise_rows(d, field != NULL);
    return FM_OK;
}

int fm_documents_text(const struct fm_documents *d, const char *record, size_t size, char *dst,
                      size_t *length, struct fm_err *err)
{
    if (d->rows) {
        int rc = parse_row(d->field, record, size, dst, err);
        *length = !rc ? strlen(dst) : 0;
        return rc;
    }
    const char *nul = memchr(record, 0, size);
    if (nul)
        return fm_fail(err, FM_EFORMAT, "byte %zu is NUL, which text may not contain",
                       (size_t)(nul - record));
    memcpy(dst, record, size);
    *length = size;
    return FM_OK;
}
