/*
 * An index and its token file are untrusted and must agree.  Everything in the index (counts,
 * sizes, pointers, document bounds, types) is checked against the length of the other file; after
 * that the tokens are one sequence, and the index is no longer needed.
 */
#include "formats/text/tokenindex.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/names.h"

#define IDX_HEADER 34 /* magic 9, version 8, type 1, sequences 8, documents 8 */
#define CHUNK 4096    /* entries read at a time */

static const char idx_magic[9] = "MMIDIDX\0";

/* An array of `count` little-endian integers in a file, read sequentially. */
struct column {
    const struct fm_file *file;
    uint64_t at, left;
    int width;
    unsigned char chunk[CHUNK * 8];
    uint64_t have, used; /* entries in chunk; those already returned */
};

static void start(struct column *c, const struct fm_file *f, uint64_t at, uint64_t count, int width)
{
    c->file = f;
    c->at = at;
    c->left = count;
    c->width = width;
    c->have = c->used = 0;
}

static int next_value(struct column *c, uint64_t *value, struct fm_err *err)
{
    if (c->used == c->have) {
        c->used = 0;
        c->have = c->left < CHUNK ? c->left : CHUNK;
        size_t bytes = (size_t)c->have * (size_t)c->width;
        int rc = fm_file_read(c->file, c->at, c->chunk, bytes, err);
        if (rc)
            return rc;
        c->at += bytes;
        c->left -= c->have;
    }
    *value = fm_little_endian(c->chunk + c->used++ * (uint64_t)c->width, c->width);
    return FM_OK;
}

/* --- Megatron --- */

struct megatron {
    struct fm_file idx;
    uint64_t sequences, documents;
    struct column size, pointer, document;
};

static int set_type(struct fm_tokens *t, int type, struct fm_err *err)
{
    static const struct {
        int width, is_signed;
    } types[9] = {
        [1] = {1, 0}, [2] = {1, 1}, [3] = {2, 1}, [4] = {4, 1}, [5] = {8, 1}, [8] = {2, 0}};
    if (type == 6 || type == 7)
        return fm_fail(err, FM_EFORMAT, "its .idx: type %d is floating point, not token ids", type);
    if (type < 1 || type > 8)
        return fm_fail(err, FM_EFORMAT, "its .idx: type %d is unknown (supported: 1 to 5, and 8)",
                       type);
    t->width = types[type].width;
    t->is_signed = types[type].is_signed;
    return FM_OK;
}

/* Read the header and check that its arrays fill the file: sizes, pointers, documents and, in files
 * that mix text with images, a mode for each sequence. */
static int read_header(struct megatron *m, struct fm_tokens *t, struct fm_err *err)
{
    unsigned char b[IDX_HEADER];
    uint64_t body, sized, modes;
    if (m->idx.size < IDX_HEADER)
        return fm_fail(err, FM_EFORMAT,
                       "its .idx: %" PRIu64 " bytes are too few for the header (%d bytes)",
                       m->idx.size, IDX_HEADER);
    int rc = fm_file_read(&m->idx, 0, b, sizeof b, err);
    if (rc)
        return rc;
    if (memcmp(b, idx_magic, sizeof idx_magic) != 0)
        return fm_fail(err, FM_EFORMAT, "its .idx does not begin with MMIDIDX");
    if (fm_little_endian(b + 9, 8) != 1)
        return fm_fail(err, FM_EFORMAT, "its .idx: version %" PRIu64 " (supported: 1)",
                       fm_little_endian(b + 9, 8));
    if ((rc = set_type(t, b[17], err)))
        return rc;
    m->sequences = fm_little_endian(b + 18, 8);
    m->documents = fm_little_endian(b + 26, 8);
    if (__builtin_mul_overflow(m->sequences, (uint64_t)12, &sized) ||
        __builtin_mul_overflow(m->documents, (uint64_t)8, &body) ||
        __builtin_add_overflow(body, sized, &body) ||
        __builtin_add_overflow(body, (uint64_t)IDX_HEADER, &body) ||
        __builtin_add_overflow(body, m->sequences, &modes) ||
        (m->idx.size != body && m->idx.size != modes))
        return fm_fail(err, FM_EFORMAT,
                       "its .idx: %" PRIu64 " sequences and %" PRIu64
                       " document bounds do not fill its %" PRIu64 " bytes",
                       m->sequences, m->documents, m->idx.size);
    return FM_OK;
}

/* Check that sizes and pointers agree, and that the last sequence ends at the end of the .bin
 * file. */
static int check_sequences(struct megatron *m, struct fm_tokens *t, struct fm_err *err)
{
    uint64_t tokens = 0, w = (uint64_t)t->width;
    start(&m->size, &m->idx, IDX_HEADER, m->sequences, 4);
    start(&m->pointer, &m->idx, IDX_HEADER + 4 * m->sequences, m->sequences, 8);
    for (uint64_t i = 0; i < m->sequences; i++) {
        uint64_t size = 0, pointer = 0;
        int rc = next_value(&m->size, &size, err);
        if (rc || (rc = next_value(&m->pointer, &pointer, err)))
            return rc;
        if (size > INT32_MAX)
            return fm_fail(err, FM_EFORMAT,
                           "its .idx: sequence %" PRIu64 " has a negative size (%" PRId32 ")", i,
                           (int32_t)(uint32_t)size);
        if (pointer != tokens * w)
            return fm_fail(err, FM_EFORMAT,
                           "its .idx: sequence %" PRIu64 " begins at byte %" PRId64
                           ", but those before it end at %" PRIu64,
                           i, (int64_t)pointer, tokens * w);
        tokens += size;
        if (tokens > t->file.size / w)
            return fm_fail(err, FM_EFORMAT,
                           "its .idx: sequence %" PRIu64 " ends past the %" PRIu64
                           " bytes of tokens",
                           i, t->file.size);
    }
    if (tokens * w != t->file.size)
        return fm_fail(err, FM_EFORMAT,
                       "its .idx announces %" PRIu64
                       " tokens of %d bytes, but the .bin has %" PRIu64 " bytes",
                       tokens, t->width, t->file.size);
    t->count = tokens;
    t->format = "megatron";
    return FM_OK;
}

/* Check the document bounds: from 0 up to the number of sequences. */
static int check_documents(struct megatron *m, struct fm_err *err)
{
    uint64_t last = 0;
    start(&m->document, &m->idx, IDX_HEADER + 12 * m->sequences, m->documents, 8);
    for (uint64_t i = 0; i < m->documents; i++) {
        uint64_t bound = 0;
        int rc = next_value(&m->document, &bound, err);
        if (rc)
            return rc;
        if (bound > m->sequences || bound < last || (i == 0 && bound != 0))
            return fm_fail(err, FM_EFORMAT,
                           "its .idx: document bound %" PRIu64 " is %" PRId64
                           " (bounds go from 0 up to %" PRIu64 " sequences)",
                           i, (int64_t)bound, m->sequences);
        last = bound;
    }
    if (last != m->sequences)
        return fm_fail(err, FM_EFORMAT,
                       "its .idx: documents end at sequence %" PRIu64 " of %" PRIu64, last,
                       m->sequences);
    return FM_OK;
}

/* Check that the mode of every sequence is 0, which is text. */
static int check_modes(struct megatron *m, struct fm_err *err)
{
    uint64_t at = IDX_HEADER + 12 * m->sequences + 8 * m->documents;
    start(&m->document, &m->idx, at, m->idx.size - at, 1);
    for (uint64_t i = 0; i < m->idx.size - at; i++) {
        uint64_t mode = 0;
        int rc = next_value(&m->document, &mode, err);
        if (rc)
            return rc;
        if (mode != 0)
            return fm_fail(err, FM_EFORMAT,
                           "its .idx: sequence %" PRIu64 " has mode %d, which is not text", i,
                           (int)mode);
    }
    return FM_OK;
}

static int read_megatron(struct fm_tokens *t, struct fm_file *idx, struct fm_err *err)
{
    struct megatron *m = fm_alloc(1, sizeof *m, "a Megatron index", err);
    if (!m)
        return FM_ENOMEM;
    m->idx = *idx;
    int rc = FM_OK;
    if (read_header(m, t, err) || check_sequences(m, t, err) || check_documents(m, err) ||
        check_modes(m, err))
        rc = err->code;
    free(m);
    return rc;
}

/* --- datatrove --- */

/* Read the ends of documents, in tokens; the width of a token follows from the last one. */
static int read_datatrove(struct fm_tokens *t, const struct fm_file *index, struct fm_err *err)
{
    if (index->size == 0 || index->size % 8 != 0)
        return fm_fail(err, FM_EFORMAT, "its .index has %" PRIu64 " bytes, not 8 for each document",
                       index->size);
    struct column *ends = fm_alloc(1, sizeof *ends, "a datatrove index", err);
    uint64_t end = 0, last = 0;
    int rc = ends ? FM_OK : FM_ENOMEM;
    if (ends)
        start(ends, index, 0, index->size / 8, 8);
    for (uint64_t i = 0; !rc && i < index->size / 8; i++, last = end) {
        rc = next_value(ends, &end, err);
        if (!rc && end < last)
            rc = fm_fail(err, FM_EFORMAT,
                         "its .index: document %" PRIu64 " ends at token %" PRIu64
                         ", before the previous one (%" PRIu64 ")",
                         i, end, last);
        if (!rc && end > t->file.size / 2)
            rc = fm_fail(err, FM_EFORMAT,
                         "its .index: document %" PRIu64 " ends at token %" PRIu64
                         ", past the %" PRIu64 " bytes of tokens",
                         i, end, t->file.size);
    }
    free(ends);
    if (rc)
        return rc;
    if (last == 0)
        return fm_fail(err, FM_EFORMAT, "it has no tokens");
    t->width = last == t->file.size / 4 ? 4 : 2;
    t->count = last;
    t->format = "datatrove";
    if (last * (uint64_t)t->width != t->file.size)
        return fm_fail(err, FM_EFORMAT,
                       "its .index announces %" PRIu64 " tokens, which %" PRIu64
                       " bytes hold neither as u16 nor as u32",
                       last, t->file.size);
    return FM_OK;
}

/* ---- which of the formats ---- */

/* path with its last `cut` bytes replaced; NULL: no memory. */
static char *sibling(const char *path, size_t cut, const char *end, struct fm_err *err)
{
    size_t n = strlen(path) - cut;
    char *name = fm_alloc(n + strlen(end) + 1, 1, "a file name", err);
    if (!name)
        return NULL;
    memcpy(name, path, n);
    strcpy(name + n, end);
    return name;
}

/* Open the other file of a pair; *there is false if it does not exist. */
static int open_sibling(struct fm_file *f, bool *there, const char *path, size_t cut,
                        const char *end, struct fm_err *err)
{
    struct fm_err mine = {0};
    char *name = sibling(path, cut, end, err);
    *there = false;
    if (!name)
        return FM_ENOMEM;
    int rc = fm_file_open(f, name, &mine);
    free(name);
    *there = !rc;
    if (!rc || rc == FM_ENOENT)
        return FM_OK;
    *err = mine;
    return rc;
}

bool fm_tokens_beside(char *name, const char *path, int which)
{
    static const struct {
        const char *cut, *end;
    } pair[] = {
        {"", ".index"}, {".bin", ".idx"}, {".idx", ".bin"}}; /* the pairs that are read below */
    size_t n = strlen(path);
    for (int i = 0; i < (int)(sizeof pair / sizeof *pair); i++) {
        size_t cut = strlen(pair[i].cut), end = strlen(pair[i].end);
        if (n <= cut || !fm_ends_with(path, pair[i].cut) || which-- > 0)
            continue;
        if (n - cut + end >= PATH_MAX)
            return false;
        memcpy(name, path, n - cut);
        memcpy(name + n - cut, pair[i].end, end + 1);
        return true;
    }
    return false;
}

static bool is_idx(const struct fm_file *f)
{
    char begin[sizeof idx_magic];
    struct fm_err ignored = {0};
    return f->size >= sizeof begin && !fm_file_read(f, 0, begin, sizeof begin, &ignored) &&
           memcmp(begin, idx_magic, sizeof begin) == 0;
}

/* Open a pair by its X.idx. */
static int from_idx(struct fm_tokens *t, struct fm_err *err)
{
    struct fm_file idx = t->file, bin;
    bool there = false;
    if (!fm_ends_with(idx.path, ".idx"))
        return fm_fail(err, FM_EFORMAT, "a Megatron index; its name must end in .idx");
    int rc = open_sibling(&bin, &there, idx.path, 4, ".bin", err);
    if (rc)
        return rc;
    if (!there)
        return fm_fail(err, FM_ENOENT, "its tokens, the .bin file beside it, are missing");
    t->file = bin;
    rc = read_megatron(t, &idx, err);
    fm_file_close(&idx);
    return rc;
}

int fm_tokenindex_open(struct fm_tokens *t, bool *found, struct fm_err *err)
{
    struct fm_file index;
    *found = is_idx(&t->file);
    if (*found)
        return from_idx(t, err);
    bool bin = fm_ends_with(t->file.path, ".bin");
    int rc = bin ? open_sibling(&index, found, t->file.path, 4, ".idx", err) : FM_OK;
    if (!rc && *found) {
        rc = read_megatron(t, &index, err);
        fm_file_close(&index);
        return rc;
    }
    if (!rc)
        rc = open_sibling(&index, found, t->file.path, 0, ".index", err);
    if (!rc && *found) {
        rc = read_datatrove(t, &index, err);
        fm_file_close(&index);
    }
    return rc;
}
