/*
 * The pipeline works as the library's does: added tokens are cut out of the text first; the text
 * between them is normalised and split into words, and each word is encoded.  Every detail of the
 * order matters (which white space an lstrip takes, the input of a normaliser), because the ids
 * must be identical to the library's.  The tokenizer is written by hand because the
 * library is in Rust and has no C interface; --tokenizer-cmd is for tokenizers that are not
 * supported here.
 */
#include "formats/text/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/file.h"
#include "formats/file/genuine.h"
#include "formats/text/tokenizerparts.h"
#include "formats/text/unicode.h"
#include "lib/base/mem.h"

struct fm_encoder {
    const struct fm_tokenizer *t;
    const uint16_t *class;
    struct fm_bpe_work work;
    struct fm_text normal, other, piece;
};

static void release_matcher(struct fm_matcher *m)
{
    for (int i = 0; i < m->count; i++)
        free(m->token[i].content);
    free(m->token);
}

void fm_tokenizer_close(struct fm_tokenizer *t)
{
    if (!t)
        return;
    fm_bpe_release(&t->bpe);
    release_matcher(&t->raw);
    release_matcher(&t->normalized);
    free(t);
}

int fm_tokenizer_parse(struct fm_tokenizer **out, const char *text, size_t size, struct fm_err *err)
{
    struct fm_tokenizer *t = fm_alloc(1, sizeof *t, "a tokenizer", err);
    int rc = t ? fm_tokenizer_read(t, text, size, err) : FM_ENOMEM;
    *out = NULL;
    if (!rc) {
        t->digest = fm_digest_of(text, size);
        *out = t;
    } else {
        fm_tokenizer_close(t);
    }
    return rc;
}

int fm_tokenizer_open(struct fm_tokenizer **t, const char *path, struct fm_err *err)
{
    struct fm_file f;
    char *text = NULL;
    size_t size = 0;
    *t = NULL;
    int rc = fm_file_open(&f, path, err);
    if (rc)
        return rc;
    rc = fm_file_slurp(&f, FM_TOKENIZER_BYTES_MAX, &text, &size, err);
    if (!rc && ((rc = fm_genuine_text(text, size, true, err)) ||
                (rc = fm_tokenizer_parse(t, text, size, err))))
        fm_within(err, "%s", path);
    fm_file_close(&f);
    free(text);
    return rc;
}

struct fm_digest fm_tokenizer_digest(const struct fm_tokenizer *t)
{
    return t->digest;
}

void fm_tokenizer_template(const struct fm_tokenizer *t, const int32_t **front, int *fronts,
                           const int32_t **back, int *backs)
{
    *front = t->front;
    *fronts = t->fronts;
    *back = t->back;
    *backs = t->backs;
}

int32_t fm_tokenizer_last(const struct fm_tokenizer *t)
{
    return t->last;
}

static const struct fm_added *added_with(const struct fm_matcher *m, const char *text, size_t size)
{
    for (int i = 0; i < m->count; i++)
        if (m->token[i].size == size && memcmp(m->token[i].content, text, size) == 0)
            return &m->token[i];
    return NULL;
}

int32_t fm_tokenizer_find(const struct fm_tokenizer *t, const char *text)
{
    size_t size = strlen(text);
    const struct fm_added *a = added_with(&t->raw, text, size);
    if (a || size == 0)
        return a ? a->id : -1;
    int32_t id = fm_bpe_find(&t->bpe, text, size);
    a = id < 0 ? added_with(&t->normalized, text, size) : NULL;
    return a ? a->id : id;
}

bool fm_tokenizer_name(const struct fm_tokenizer *t, int32_t id, char text[FM_TOKENIZER_NAME])
{
    const struct fm_matcher *const added[] = {&t->raw, &t->normalized};
    const char *from = NULL;
    size_t size = 0;
    for (size_t i = 0; !from && i < t->bpe.entries; i++)
        if (t->bpe.entry[i].id == id) {
            from = t->bpe.text.data + t->bpe.entry[i].at;
            size = t->bpe.entry[i].size;
        }
    for (int m = 0; m < 2; m++)
        for (int i = 0; !from && i < added[m]->count; i++)
            if (added[m]->token[i].id == id) {
                from = added[m]->token[i].content;
                size = added[m]->token[i].size;
            }
    size = size < FM_TOKENIZER_NAME ? size : 0;
    if (from)
        memcpy(text, from, size);
    text[size] = '\0';
    return from != NULL;
}

int fm_encoder_new(struct fm_encoder **out, const struct fm_tokenizer *t, struct fm_err *err)
{
    struct fm_encoder *e = fm_alloc(1, sizeof *e, "an encoder", err);
    *out = NULL;
    if (!e)
        return FM_ENOMEM;
    e->t = t;
    e->class = fm_unicode_classes();
    int rc = fm_bpe_work_init(&e->work, err);
    if (rc)
        free(e);
    else
        *out = e;
    return rc;
}

void fm_encoder_free(struct fm_encoder *e)
{
    if (!e)
        return;
    fm_bpe_work_release(&e->work);
    free(e->normal.data);
    free(e->other.data);
    free(e->piece.data);
    free(e);
}

/* --- words --- */

/* Split before each replacement character. */
static size_t next_metaspace(const struct fm_tokenizer *t, const char *text, size_t size)
{
    size_t n = strlen(t->replacement);
    const char *hit = size > n ? memmem(text + 1, size - 1, t->replacement, n) : NULL;
    return hit ? (size_t)(hit - text) : size;
}

/* Split before each U+2581 that follows a different character.  The ids are the same, but words are
 * found in the cache and take little memory. */
static size_t next_part(const char *text, size_t size)
{
    size_t at = 0, n = strlen("\u2581");
    while (size - at >= n && memcmp(text + at, "\u2581", n) == 0)
        at += n;
    const char *hit = memmem(text + at, size - at, "\u2581", n);
    return hit ? (size_t)(hit - text) : size;
}

static size_t next_word(const struct fm_tokenizer *t, const char *text, size_t size)
{
    if (t->metaspace_split)
        return next_metaspace(t, text, size);
    return t->bpe.parted ? next_part(text, size) : size;
}

/* Split a piece further by the pre-tokenizers from `step` on. */
static void encode_pieces(struct fm_encoder *e, int step, const char *text, size_t size)
{
    const struct fm_tokenizer *t = e->t;
    while (size > 0) {
        size_t n = fm_pretoken_next(&t->pretoken[step], text, size);
        if (step + 1 < t->pretokens)
            encode_pieces(e, step + 1, text, n);
        else
            fm_bpe_encode(&t->bpe, &e->work, text, n);
        text += n;
        size -= n;
    }
}

static void encode_words(struct fm_encoder *e, const char *text, size_t size)
{
    const struct fm_tokenizer *t = e->t;
    if (t->pretokens > 0) {
        encode_pieces(e, 0, text, size);
        return;
    }
    while (size > 0) {
        size_t n = next_word(t, text, size);
        fm_bpe_encode(&t->bpe, &e->work, text, n);
        text += n;
        size -= n;
    }
}

static bool begins_with(const char *text, size_t size, const char *begin)
{
    size_t n = strlen(begin);
    return size >= n && memcmp(text, begin, n) == 0;
}

/* Encode a stretch without added tokens; `first`: the text begins with it. */
static void encode_plain(struct fm_encoder *e, const char *text, size_t size, bool first)
{
    const struct fm_tokenizer *t = e->t;
    struct fm_text *piece = &e->piece;
    bool space = t->prefix_space && size > 0 && text[0] != ' ';
    if (!space && t->metaspace == FM_METASPACE_NONE) {
        encode_words(e, text, size);
        return;
    }
    piece->size = 0;
    if (space) {
        fm_text_add(piece, " ", 1);
        fm_text_add(piece, text, size);
    } else {
        bool there = begins_with(text, size, t->replacement) || (size > 0 && text[0] == ' ');
        if (!there &&
            (t->metaspace == FM_METASPACE_ALWAYS || (t->metaspace == FM_METASPACE_FIRST && first)))
            fm_text_add(piece, t->replacement, strlen(t->replacement));
        fm_tokenizer_replace(piece, text, size, " ", t->replacement);
    }
    e->work.failed = e->work.failed || piece->failed;
    if (!piece->failed)
        encode_words(e, piece->data, piece->size);
}

/* --- added tokens --- */

static const struct fm_added *match_at(const struct fm_matcher *m, const char *text, size_t size)
{
    int b = (unsigned char)text[0];
    for (int i = m->first[b]; i < m->first[b + 1]; i++)
        if (m->token[i].size <= size && memcmp(m->token[i].content, text, m->token[i].size) == 0)
            return &m->token[i];
    return NULL;
}

/* The class of the character that ends at `at`, and its start. */
static int class_before(const struct fm_encoder *e, const char *text, size_t at, size_t *begin)
{
    int bytes;
    do
        at--;
    while (((unsigned char)text[at] & 0xc0) == 0x80);
    *begin = at;
    return e->class[fm_unicode_at(text + at, &bytes)];
}

static int class_at(const struct fm_encoder *e, const char *text, size_t at, size_t *end)
{
    int bytes;
    int class = e->class[fm_unicode_at(text + at, &bytes)];
    *end = at + (size_t)bytes;
    return class;
}

static bool is_single_word(const struct fm_encoder *e, const char *text, size_t size, size_t begin,
                           size_t end)
{
    size_t ignored;
    return (begin == 0 || !(class_before(e, text, begin, &ignored) & FM_WORD)) &&
           (end == size || !(class_at(e, text, end, &ignored) & FM_WORD));
}

typedef void encode_piece(struct fm_encoder *e, const char *text, size_t size, bool first);

/*
 * Find the tokens of m in text, from left to right, the longest at each place; the text between
 * them goes to `plain`.  White space that an rstrip takes may be a token itself, which is still
 * found.
 */
static void encode_around(struct fm_encoder *e, const struct fm_matcher *m, const char *text,
                          size_t size, bool first, encode_piece *plain)
{
    size_t done = 0, next;
    for (size_t at = 0; at < size; at = next) {
        const struct fm_added *a = m->count ? match_at(m, text + at, size - at) : NULL;
        next = a ? at + a->size : m->count ? at + 1 : size;
        if (!a || (a->single_word && !is_single_word(e, text, size, at, next)))
            continue;
        size_t begin = at, end = next, p;
        while (a->lstrip && begin > 0 && (class_before(e, text, begin, &p) & FM_SPACE))
            begin = p;
        if (a->lstrip && begin < done)
            begin = done;
        while (a->rstrip && end < size && (class_at(e, text, end, &p) & FM_SPACE))
            end = p;
        if (done < begin)
            plain(e, text + done, begin - done, first && done == 0);
        if (begin < end)
            fm_bpe_push(&e->work, a->id);
        done = end;
    }
    if (done < size)
        plain(e, text + done, size - done, first && done == 0);
}

/* Encode a stretch of the original text between added tokens. */
static void encode_stretch(struct fm_encoder *e, const char *text, size_t size, bool first)
{
    const struct fm_tokenizer *t = e->t;
    if (t->normals > 0) {
        e->normal.size = 0;
        fm_tokenizer_normalise(t, &e->normal, &e->other, text, size);
        if (e->normal.failed) {
            e->work.failed = true;
            return;
        }
        text = e->normal.data;
        size = e->normal.size;
    }
    encode_around(e, &t->normalized, text, size, first, encode_plain);
}

int fm_encoder_run(struct fm_encoder *e, const char *text, size_t size, const int32_t **ids,
                   size_t *n, struct fm_err *err)
{
    const struct fm_tokenizer *t = e->t;
    size_t valid = fm_unicode_check(text, size);
    assert(size <= FM_TOKENIZER_TEXT_MAX);
    if (valid < size)
        return fm_fail(err, FM_EFORMAT, "byte %zu of the text is not UTF-8", valid);
    e->work.n = e->work.dropped = 0;
    for (int i = 0; i < t->fronts; i++)
        fm_bpe_push(&e->work, t->front[i]);
    encode_around(e, &t->raw, text, size, true, encode_stretch);
    for (int i = 0; i < t->backs; i++)
        fm_bpe_push(&e->work, t->back[i]);
    if (e->work.failed)
        return fm_fail(err, FM_ENOMEM, "no memory to encode a text of %zu bytes", size);
    *ids = e->work.ids;
    *n = e->work.n;
    return FM_OK;
}

size_t fm_encoder_dropped(const struct fm_encoder *e)
{
    return e->work.dropped;
}
