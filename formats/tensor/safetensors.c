/*
 * The header of a file is up to 100 MB of untrusted JSON.  It is read through a window of a
 * megabyte, entry by entry, into an index of limited size; the names are stored in one block.  At
 * the end the tensors, sorted by offset, must cover the data exactly: without gaps no data can be
 * hidden in a file, and without overlaps no bytes belong to two tensors.
 */
#include "formats/tensor/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/digest.h"
#include "formats/file/genuine.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/pool.h"

#define WINDOW_BYTES ((size_t)1 << 20)

/* The header while it is read: a window on its text, and the index so far. */
struct header {
    const struct fm_file *file;
    struct fm_safetensors *st;
    char *window;       /* WINDOW_BYTES, holds j.begin .. j.end */
    uint64_t next;      /* offset in the file of the text after the window */
    uint64_t left;      /* bytes of the header after the window */
    uint64_t data_size; /* bytes after the header */
    struct fm_json j;
    struct fm_hasher *hasher;
    size_t capacity;              /* of st->tensor */
    size_t pairs, pairs_capacity; /* of st->metadata */
    size_t text, text_capacity;   /* of st->names */
};

/* Advance the window until it holds the longest possible entry, or the end of the header. */
static int refill(struct header *h, struct fm_err *err)
{
    size_t kept = (size_t)(h->j.end - h->j.at);
    if (kept >= FM_ST_ENTRY_BYTES_MAX || h->left == 0)
        return FM_OK;
    h->j.base += (uint64_t)(h->j.at - h->j.begin);
    memmove(h->window, h->j.at, kept);
    size_t more = WINDOW_BYTES - kept;
    if (more > h->left)
        more = (size_t)h->left;
    int rc = fm_file_read(h->file, h->next, h->window + kept, more, err);
    if (rc)
        return rc;
    fm_hasher_add(h->hasher, h->window + kept, more);
    h->next += more;
    h->left -= more;
    h->j.begin = h->j.at = h->window;
    h->j.end = h->window + kept + more;
    return FM_OK;
}

/* White space may be longer than the window. */
static int skip_space(struct header *h, struct fm_err *err)
{
    int rc = FM_OK;
    do {
        while (h->j.at < h->j.end && strchr(" \t\r\n", *h->j.at) && *h->j.at)
            h->j.at++;
        rc = refill(h, err);
    } while (!rc && h->j.at < h->j.end && strchr(" \t\r\n", *h->j.at) && *h->j.at);
    return rc;
}

/* An entry that fails at the end of the window was too long. */
static int explain(struct header *h, struct fm_err *err)
{
    if (h->j.at >= h->j.end && h->left > 0)
        return fm_fail(err, FM_EFORMAT,
                       "an entry of the header has more than %zu bytes (at byte %" PRIu64 ")",
                       FM_ST_ENTRY_BYTES_MAX, h->j.base);
    return err->code;
}

/* Read the next string into st->names. */
static int keep_text(struct header *h, size_t limit, bool name, const char **kept,
                     struct fm_err *err)
{
    size_t left = h->text_capacity - h->text;
    char *dst = h->st->names + h->text;
    if (left <= 1)
        return fm_fail(err, FM_EFORMAT, "names and metadata take more than %zu bytes",
                       FM_ST_TEXT_BYTES_MAX);
    size_t capacity = left < limit ? left : limit;
    int rc =
        name ? fm_json_string(&h->j, dst, capacity, err) : fm_json_text(&h->j, dst, capacity, err);
    if (rc)
        return rc;
    h->text += strlen(dst) + 1;
    *kept = dst;
    return FM_OK;
}

/* Names that would be dangerous if a program used them as paths. */
static bool is_path(const char *name)
{
    if (*name == '/' || *name == 0)
        return true;
    for (const char *dots = strstr(name, ".."); dots; dots = strstr(dots + 1, ".."))
        if ((dots == name || dots[-1] == '/') && (dots[2] == '/' || dots[2] == 0))
            return true;
    return false;
}

static int parse_dtype(struct fm_json *j, struct fm_tensor *t, struct fm_err *err)
{
    char name[32];
    int rc = fm_json_string(j, name, sizeof name, err);
    if (rc)
        return rc;
    int dtype = fm_dtype_from_name(name, strlen(name));
    if (dtype < 0)
        return fm_fail(err, FM_EFORMAT, "dtype '%s' is unknown", name);
    t->dtype = (enum fm_dtype)dtype;
    return FM_OK;
}

/* "[", at most `max` integers, "]". */
static int parse_integers(struct fm_json *j, const char *what, uint64_t *value, int max, int *count,
                          struct fm_err *err)
{
    *count = 0;
    int rc = fm_json_expect(j, '[', err);
    if (rc || fm_json_accept(j, ']'))
        return rc;
    do {
        if (*count == max)
            return fm_fail(err, FM_EFORMAT, "%s has more than %d numbers", what, max);
        if ((rc = fm_json_uint(j, &value[(*count)++], err)))
            return fm_within(err, "%s", what);
    } while (fm_json_accept(j, ','));
    return fm_json_expect(j, ']', err);
}

static int parse_offsets(struct fm_json *j, struct fm_tensor *t, struct fm_err *err)
{
    uint64_t span[2] = {0, 0};
    int count = 0;
    int rc = parse_integers(j, "data_offsets", span, 2, &count, err);
    if (rc)
        return rc;
    if (count != 2)
        return fm_fail(err, FM_EFORMAT, "data_offsets has %d numbers, not 2", count);
    if (span[0] > span[1])
        return fm_fail(err, FM_EFORMAT,
                       "data_offsets begin at %" PRIu64 ", after their end %" PRIu64, span[0],
                       span[1]);
    t->offset = span[0];
    t->size = span[1] - span[0];
    return FM_OK;
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

/* Read one key of a tensor's object and its value; sets its bit in *has. */
static int parse_field(struct fm_json *j, struct fm_tensor *t, int *has, struct fm_err *err)
{
    char key[64];
    int rc = fm_json_string(j, key, sizeof key, err);
    if (!rc)
        rc = fm_json_expect(j, ':', err);
    if (rc)
        return rc;
    int bit = !strcmp(key, "dtype")          ? HAS_DTYPE
              : !strcmp(key, "shape")        ? HAS_SHAPE
              : !strcmp(key, "data_offsets") ? HAS_OFFSETS
                                             : 0;
    if (bit == 0 || (*has & bit))
        return fm_fail(err, FM_EFORMAT, "key '%s' %s", key, bit ? "appears twice" : "is unknown");
    *has |= bit;
    if (bit == HAS_DTYPE)
        return parse_dtype(j, t, err);
    if (bit == HAS_OFFSETS)
        return parse_offsets(j, t, err);
    return parse_integers(j, "shape", t->shape, FM_ST_DIMS_MAX, &t->dims, err);
}

/* The shape must fill the span exactly.  The product of the nonzero dimensions must not overflow
 * either, so that later arithmetic cannot. */
static int check_span(const struct fm_tensor *t, uint64_t data_size, struct fm_err *err)
{
    uint64_t bits = (uint64_t)fm_dtype_bits(t->dtype);
    bool empty = false;
    for (int d = 0; d < t->dims; d++) {
        if (t->shape[d] == 0)
            empty = true;
        else if (__builtin_mul_overflow(bits, t->shape[d], &bits) || bits > INT64_MAX)
            return fm_fail(err, FM_EFORMAT, "the product of its shape is too large");
    }
    if (empty)
        bits = 0;
    if (bits % 8 != 0)
        return fm_fail(err, FM_EFORMAT, "%" PRIu64 " bits of %s are not whole bytes", bits,
                       fm_dtype_name(t->dtype));
    if (bits / 8 != t->size)
        return fm_fail(err, FM_EFORMAT,
                       "its shape needs %" PRIu64 " bytes, but data_offsets span %" PRIu64,
                       bits / 8, t->size);
    if (t->offset > data_size || t->size > data_size - t->offset)
        return fm_fail(err, FM_EFORMAT,
                       "its data ends at %" PRIu64 ", past the end of the file (%" PRIu64
                       " bytes of data): it is cut off; copy it again",
                       t->offset + t->size, data_size);
    return FM_OK;
}

static int parse_tensor(struct header *h, struct fm_tensor *t, struct fm_err *err)
{
    int has = 0;
    int rc = fm_json_expect(&h->j, '{', err);
    if (!rc && !fm_json_accept(&h->j, '}')) {
        do
            rc = parse_field(&h->j, t, &has, err);
        while (!rc && fm_json_accept(&h->j, ','));
        if (!rc)
            rc = fm_json_expect(&h->j, '}', err);
    }
    if (rc)
        return explain(h, err);
    if (has != HAS_ALL)
        return fm_fail(err, FM_EFORMAT, "key '%s' is missing",
                       !(has & HAS_DTYPE)   ? "dtype"
                       : !(has & HAS_SHAPE) ? "shape"
                                            : "data_offsets");
    return check_span(t, h->data_size, err);
}

static int add_tensor(struct header *h, const char *name, struct fm_err *err)
{
    struct fm_safetensors *st = h->st;
    if (is_path(name))
        return fm_fail(err, FM_EFORMAT, "tensor '%s': a name must not be empty or a path", name);
    if (st->count == FM_ST_TENSORS_MAX)
        return fm_fail(err, FM_EFORMAT, "more than %d tensors", FM_ST_TENSORS_MAX);
    if (FM_GROW(st->tensor, h->capacity, st->count + 1, "the index of tensors", err))
        return err->code;
    struct fm_tensor *t = &st->tensor[st->count++];
    *t = (struct fm_tensor){.name = name};
    int rc = parse_tensor(h, t, err);
    return rc ? fm_within(err, "tensor '%s'", name) : FM_OK;
}

static int add_pair(struct header *h, struct fm_err *err)
{
    struct fm_safetensors *st = h->st;
    /* The pair and the final NULL. */
    if (FM_GROW(st->metadata, h->pairs_capacity, 2 * h->pairs + 3, "metadata", err))
        return err->code;
    const char **pair = st->metadata + 2 * h->pairs;
    if (keep_text(h, FM_ST_NAME_BYTES_MAX + 1, true, &pair[0], err) ||
        fm_json_expect(&h->j, ':', err) ||
        keep_text(h, FM_ST_ENTRY_BYTES_MAX, false, &pair[1], err))
        return explain(h, err);
    h->pairs++;
    pair[2] = NULL;
    return FM_OK;
}

static int parse_metadata(struct header *h, struct fm_err *err)
{
    int rc = fm_json_expect(&h->j, '{', err);
    if (!rc && !fm_json_accept(&h->j, '}')) {
        do {
            rc = skip_space(h, err);
            if (!rc)
                rc = add_pair(h, err);
        } while (!rc && fm_json_accept(&h->j, ','));
        if (!rc)
            rc = fm_json_expect(&h->j, '}', err);
    }
    if (rc || h->pairs == 0)
        return rc;
    const char **m = h->st->metadata;
    h->st->pairs = h->pairs;
    fm_names_sort(m, h->pairs, 2 * sizeof *m);
    const char *twin = fm_names_twin(m, h->pairs, 2 * sizeof *m);
    return twin ? fm_fail(err, FM_EFORMAT, "key '%s' appears twice", twin) : FM_OK;
}

/* Parse one entry of the header: a name and its object. */
static int parse_entry(struct header *h, bool *metadata, struct fm_err *err)
{
    const char *name = NULL;
    int rc = skip_space(h, err);
    if (rc)
        return rc;
    rc = keep_text(h, FM_ST_NAME_BYTES_MAX + 1, true, &name, err);
    if (!rc)
        rc = fm_json_expect(&h->j, ':', err);
    if (rc)
        return explain(h, err);
    if (strcmp(name, "__metadata__") != 0)
        return add_tensor(h, name, err);
    if (*metadata)
        return fm_fail(err, FM_EFORMAT, "__metadata__ appears twice");
    *metadata = true;
    rc = parse_metadata(h, err);
    return rc ? fm_within(err, "__metadata__") : FM_OK;
}

/* The whole text of the header. */
static int parse_header(struct header *h, struct fm_err *err)
{
    bool metadata = false;
    int rc = refill(h, err);
    if (rc)
        return rc;
    if (h->j.at == h->j.end || *h->j.at != '{')
        return fm_fail(err, FM_EFORMAT, "the header does not begin with '{'");
    h->j.at++;
    if ((rc = skip_space(h, err)))
        return rc;
    if (!fm_json_accept(&h->j, '}')) {
        do {
            if ((rc = parse_entry(h, &metadata, err)))
                return rc;
            if ((rc = skip_space(h, err)))
                return rc;
        } while (fm_json_accept(&h->j, ','));
        if ((rc = fm_json_expect(&h->j, '}', err)))
            return rc;
    }
    if ((rc = skip_space(h, err)))
        return rc;
    return fm_json_end(&h->j, err);
}

static int compare_spans(const void *a, const void *b)
{
    const struct fm_tensor *s = *(const struct fm_tensor *const *)a;
    const struct fm_tensor *t = *(const struct fm_tensor *const *)b;
    if (s->offset != t->offset)
        return s->offset < t->offset ? -1 : 1;
    return s->size < t->size ? -1 : s->size > t->size;
}

/* Check that the spans, in order, cover the data without a gap or an overlap. */
static int check_tiling(struct fm_tensor **order, size_t count, uint64_t data_size,
                        struct fm_err *err)
{
    uint64_t at = 0;
    qsort(order, count, sizeof *order, compare_spans);
    for (size_t i = 0; i < count; i++) {
        const struct fm_tensor *t = order[i];
        if (t->offset > at)
            return fm_fail(err, FM_EFORMAT,
                           "tensor '%s': %" PRIu64 " unused bytes before it at %" PRIu64, t->name,
                           t->offset - at, at);
        if (t->offset < at)
            return fm_fail(err, FM_EFORMAT,
                           "tensor '%s': overlaps tensor '%s' by %" PRIu64 " bytes", t->name,
                           order[i - 1]->name, at - t->offset);
        at += t->size;
    }
    if (at != data_size)
        return fm_fail(err, FM_EFORMAT,
                       "the tensors end at byte %" PRIu64 " of the data, which has %" PRIu64
                       " bytes",
                       at, data_size);
    return FM_OK;
}

/* Sort by name, refuse duplicates, check the tiling, make offsets absolute. */
static int finish_index(struct header *h, uint64_t data, struct fm_err *err)
{
    struct fm_safetensors *st = h->st;
    fm_names_sort(st->tensor, st->count, sizeof *st->tensor);
    const char *twin = fm_names_twin(st->tensor, st->count, sizeof *st->tensor);
    if (twin)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' appears twice", twin);
    struct fm_tensor **order = malloc((st->count + 1) * sizeof(struct fm_tensor *));
    if (!order)
        return fm_fail(err, FM_ENOMEM, "no memory for the order of %zu tensors", st->count);
    for (size_t i = 0; i < st->count; i++)
        order[i] = &st->tensor[i];
    int rc = check_tiling(order, st->count, h->data_size, err);
    free(order);
    for (size_t i = 0; i < st->count; i++)
        st->tensor[i].offset += data;
    return rc;
}

/* The eight bytes that give the length of the header. */
static int read_length(struct header *h, uint64_t base, uint64_t size, struct fm_err *err)
{
    unsigned char b[8];
    if (base > h->file->size || size > h->file->size - base)
        return fm_fail(err, FM_EFORMAT,
                       "%" PRIu64 " bytes at %" PRIu64 " are past the end (%" PRIu64 ")", size,
                       base, h->file->size);
    if (size < sizeof b && base == 0 && fm_genuine_file(h->file, true, err))
        return err->code;
    if (size < sizeof b)
        return fm_fail(err, FM_EFORMAT, "%" PRIu64 " bytes are too few for a safetensors file",
                       size);
    int rc = fm_file_read(h->file, base, b, sizeof b, err);
    if (rc)
        return rc;
    uint64_t n = fm_little_endian(b, sizeof b);
    if (n > FM_ST_HEADER_BYTES_MAX && base == 0 && fm_genuine_file(h->file, true, err))
        return err->code;
    if (n > FM_ST_HEADER_BYTES_MAX)
        return fm_fail(err, FM_EFORMAT, "a header of %" PRIu64 " bytes (limit %u)", n,
                       FM_ST_HEADER_BYTES_MAX);
    if (n > size - sizeof b)
        return fm_fail(err, FM_EFORMAT, "a header of %" PRIu64 " bytes in a file of %" PRIu64, n,
                       size);
    fm_hasher_add(h->hasher, b, sizeof b);
    h->next = base + sizeof b;
    h->left = n;
    h->data_size = size - sizeof b - n;
    h->st->header_bytes = sizeof b + n;
    return FM_OK;
}

static void note_digest(struct header *h)
{
    struct fm_digest d = fm_hasher_done(h->hasher);
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < 8; i++)
            h->st->header_digest[w] = h->st->header_digest[w] << 8 | d.byte[8 * w + i];
}

int fm_safetensors_open(struct fm_safetensors *st, const struct fm_file *file, uint64_t base,
                        uint64_t size, struct fm_err *err)
{
    *st = (struct fm_safetensors){0};
    struct header h = {.file = file, .st = st, .hasher = fm_hasher_new()};
    int rc = FM_OK;
    if (!h.hasher)
        rc = fm_fail(err, FM_ENOMEM, "no memory to index '%s'", file->path);
    else
        rc = read_length(&h, base, size, err);
    if (rc)
        goto out;
    /* Unescaping never makes text longer, so it needs no more memory than the header has. */
    h.text_capacity = (size_t)(h.left < FM_ST_TEXT_BYTES_MAX ? h.left : FM_ST_TEXT_BYTES_MAX) + 1;
    st->names = malloc(h.text_capacity);
    h.window = malloc(WINDOW_BYTES);
    st->metadata = calloc(1, sizeof *st->metadata);
    h.pairs_capacity = 1;
    if (!st->names || !h.window || !st->metadata) {
        rc = fm_fail(err, FM_ENOMEM, "no memory to index '%s'", file->path);
        goto out;
    }
    fm_json_init(&h.j, h.window, 0);
    rc = parse_header(&h, err);
    if (!rc)
        rc = finish_index(&h, base + st->header_bytes, err);
    if (!rc)
        note_digest(&h);
out:
    if (rc == FM_EFORMAT)
        fm_within(err, "%s", file->path);
    if (rc)
        fm_safetensors_close(st);
    free(h.window);
    fm_hasher_free(h.hasher);
    return rc;
}

void fm_safetensors_close(struct fm_safetensors *st)
{
    free(st->tensor);
    free(st->names);
    free(st->metadata);
    *st = (struct fm_safetensors){0};
}

const struct fm_tensor *fm_safetensors_find(const struct fm_safetensors *st, const char *name)
{
    return fm_names_find(st->tensor, st->count, sizeof *st->tensor, name);
}

const char *fm_safetensors_metadata(const struct fm_safetensors *st, const char *key)
{
    const char **pair = fm_names_find(st->metadata, st->pairs, 2 * sizeof *st->metadata, key);
    return pair ? pair[1] : NULL;
}

uint64_t fm_tensor_count(const struct fm_tensor *t)
{
    uint64_t n = 1;
    for (int d = 0; d < t->dims; d++)
        n *= t->shape[d];
    return n;
}

bool fm_tensor_shaped(const struct fm_tensor *t, const uint64_t *shape, int dims)
{
    return t->dims == dims &&
           (dims == 0 || memcmp(t->shape, shape, (size_t)dims * sizeof *shape) == 0);
}

bool fm_tensor_fit(struct fm_tensor *t)
{
    size_t bits = (size_t)fm_dtype_bits(t->dtype);
    assert(t->dims >= 0 && t->dims <= FM_ST_DIMS_MAX);
    for (int d = 0; d < t->dims; d++)
        if (!fm_mul(&bits, bits, t->shape[d]))
            return false;
    t->size = bits / 8;
    return bits % 8 == 0;
}

void fm_tensor_describe(char text[FM_TENSOR_TEXT], const struct fm_tensor *t)
{
    int at = snprintf(text, FM_TENSOR_TEXT, "%s", fm_dtype_name(t->dtype));
    for (int d = 0; d < t->dims; d++)
        at += snprintf(text + at, FM_TENSOR_TEXT - (size_t)at, " %" PRIu64, t->shape[d]);
}

/* Elements [first, first + n) of a matrix whose row is in nibbles of AWQ's words: those of rows 8 i
 * to 8 i + 7 of a column are in one word, in this order. */
static void take_nibbles(uint8_t *to, const struct fm_tensor *t, const char *words, size_t first,
                         size_t n)
{
    static const int place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    size_t element = (size_t)fm_dtype_bits(t->dtype) / 8, per = element == 4 ? 8 : 1;
    size_t columns = (size_t)t->shape[1], wide = (size_t)t->shape[0] / 8;
    for (size_t i = first; i < first + n; i++, to += element) {
        size_t row = i / columns, column = i % columns * per;
        uint32_t element_of = 0, word;
        for (size_t c = 0; c < per; c++) {
            memcpy(&word, words + ((column + c) * wide + row / 8) * sizeof word, sizeof word);
            element_of |= (word >> 4 * place[row % 8] & 15) << 4 * c;
        }
        memcpy(to, &element_of, element);
    }
}

int fm_tensor_read(const struct fm_tensor *t, const struct fm_file *file, uint64_t at, void *dst,
                   size_t size, struct fm_err *err)
{
    assert(at <= t->size && size <= t->size - at);
    if (t->form == FM_TENSOR_STORED)
        return fm_file_read(file, t->offset + at, dst, size, err);
    if (t->form == FM_TENSOR_SIZES) {
        memcpy(dst, (const char *)t->sizes + at, size);
        return FM_OK;
    }
    size_t element = (size_t)fm_dtype_bits(t->dtype) / 8, first = (size_t)at / element;
    size_t rows = (size_t)t->shape[0], columns = (size_t)t->shape[1], n = size / element;
    bool nibbles = t->form == FM_TENSOR_NIBBLES;
    size_t stored = (size_t)fm_tensor_scratch(t);
    struct fm_mark mark = fm_scratch_mark();
    char *whole = fm_scratch(stored), *to = dst;
    assert(at % element == 0 && size % element == 0);
    int rc = fm_file_read(file, t->offset, whole, stored, err);
    if (!rc && nibbles)
        take_nibbles(dst, t, whole, first, n);
    for (size_t i = first; i < first + n && !rc && !nibbles; i++, to += element)
        memcpy(to, whole + (i % columns * rows + i / columns) * element, element);
    fm_scratch_release(mark);
    return rc;
}
