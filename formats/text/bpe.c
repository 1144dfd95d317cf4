/*
 * A word's symbols are a linked list, and the possible merges are a heap ordered by rank and
 * position, so a word of n characters takes n log n steps; hostile text has very long words.
 * Tables are open-addressed and read-only after they are built.  A small direct-mapped cache per
 * thread, from words to ids, does most of the work on ordinary text.
 */
#include "formats/text/bpe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "formats/text/unicode.h"
#include "lib/base/mem.h"
#include "lib/base/utf8.h"

#define POINTS 0x110000
#define CACHE_LINES 32768 /* a power of two; 2 MB for each thread */
#define CACHED_BYTES 22
#define CACHED_IDS 10

struct fm_bpe_symbol {
    int32_t id;
    uint32_t size; /* 0: merged into the previous symbol */
    int32_t before, next;
};

struct fm_bpe_cached {
    uint8_t size, n, dropped; /* size 0: empty slot */
    char word[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
};

/* --- the model --- */

int fm_bpe_add(struct fm_bpe *b, const char *text, size_t size, uint64_t id, struct fm_err *err)
{
    if (id > INT32_MAX - 1)
        return fm_fail(err, FM_EFORMAT, "token '%.40s' has id %" PRIu64 " (limit %d)", text, id,
                       INT32_MAX - 1);
    int rc = FM_GROW(b->entry, b->entry_capacity, b->entries + 1, "a vocabulary", err);
    if (rc)
        return rc;
    b->entry[b->entries++] =
        (struct fm_bpe_entry){.at = b->text.size, .size = (uint32_t)size, .id = (int32_t)id};
    fm_text_add(&b->text, text, size);
    b->last = b->last > (int32_t)id ? b->last : (int32_t)id;
    return b->text.failed ? fm_fail(err, FM_ENOMEM, "no memory for a vocabulary") : FM_OK;
}

/* The slot of the text in the table; the free slot where it belongs if it is not present. */
static uint32_t *find_slot(const struct fm_bpe *b, const char *text, size_t size)
{
    size_t at = (size_t)XXH3_64bits(text, size) & (b->slots - 1);
    for (; b->slot[at]; at = (at + 1) & (b->slots - 1)) {
        const struct fm_bpe_entry *e = &b->entry[b->slot[at] - 1];
        if (e->size == size && memcmp(b->text.data + e->at, text, size) == 0)
            break;
    }
    return &b->slot[at];
}

static size_t table_size(size_t n)
{
    size_t size = 1024;
    while (size < 2 * n)
        size *= 2;
    return size;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = ((const struct fm_bpe_entry *)a)->id, y = ((const struct fm_bpe_entry *)b)->id;
    return (x > y) - (x < y);
}

int fm_bpe_index(struct fm_bpe *b, struct fm_err *err)
{
    if (b->entries == 0)
        return fm_fail(err, FM_EFORMAT, "the vocabulary is empty");
    b->slots = table_size(b->entries);
    b->slot = fm_alloc(b->slots, sizeof *b->slot, "a vocabulary", err);
    b->of_point = fm_alloc(POINTS, sizeof *b->of_point, "a vocabulary", err);
    if (!b->slot || !b->of_point)
        return FM_ENOMEM;
    memset(b->of_point, 0xff, POINTS * sizeof *b->of_point);
    qsort(b->entry, b->entries, sizeof *b->entry, by_id);
    for (size_t i = 0; i < b->entries; i++) {
        const struct fm_bpe_entry *e = &b->entry[i];
        const char *text = b->text.data + e->at;
        uint32_t *slot = find_slot(b, text, e->size);
        int bytes = 0;
        if (i > 0 && e[-1].id == e->id)
            return fm_fail(err, FM_EFORMAT, "two tokens have id %" PRId32, e->id);
        if (*slot)
            return fm_fail(err, FM_EFORMAT, "token '%.*s' appears twice", (int)e->size, text);
        *slot = (uint32_t)i + 1;
        uint32_t c = e->size ? fm_unicode_at(text, &bytes) : 0;
        if (e->size && (size_t)bytes == e->size)
            b->of_point[c] = e->id;
    }
    return FM_OK;
}

int32_t fm_bpe_find(const struct fm_bpe *b, const char *text, size_t size)
{
    uint32_t slot = *find_slot(b, text, size);
    return slot ? b->entry[slot - 1].id : -1;
}

static int find_part(const struct fm_bpe *b, uint64_t *id, const char *text, size_t size,
                     struct fm_err *err)
{
    int32_t found = fm_bpe_find(b, text, size);
    if (found < 0)
        return fm_fail(err, FM_EFORMAT, "merge %zu names '%.*s', which is not in the vocabulary",
                       b->merges, (int)(size < 80 ? size : 80), text);
    *id = (uint64_t)found;
    return FM_OK;
}

int fm_bpe_add_merge(struct fm_bpe *b, const char *left, size_t left_size, const char *right,
                     size_t right_size, struct fm_err *err)
{
    uint64_t l = 0, r = 0, both = 0;
    struct fm_text joined = {0};
    if (FM_GROW(b->merge, b->merge_capacity, b->merges + 1, "a vocabulary", err) ||
        find_part(b, &l, left, left_size, err) || find_part(b, &r, right, right_size, err))
        return err->code;
    fm_text_add(&joined, left, left_size);
    fm_text_add(&joined, right, right_size);
    int rc = joined.failed ? fm_fail(err, FM_ENOMEM, "no memory for a merge")
                           : find_part(b, &both, joined.data, joined.size, err);
    free(joined.data);
    if (!rc) {
        b->merge[b->merges] = (struct fm_bpe_merge){
            .pair = l << 32 | r, .rank = (uint32_t)b->merges, .id = (int32_t)both};
        b->merges++;
    }
    return rc;
}

static struct fm_bpe_merge *find_cell(const struct fm_bpe *b, uint64_t pair)
{
    size_t at = (size_t)((pair * 0x9e3779b97f4a7c15u) >> 20) & (b->cells - 1);
    while (b->table[at].pair != pair && b->table[at].pair != UINT64_MAX)
        at = (at + 1) & (b->cells - 1);
    return &b->table[at];
}

/* The character that represents a byte in byte-level vocabularies: printable Latin-1 bytes
 * represent themselves, the other 68 are U+0100 and up. */
static uint32_t level_of(unsigned char byte)
{
    uint32_t c = byte;
    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || c >= 0xae)
        return c;
    return c <= 0x20 ? 0x100 + c : c <= 0xa0 ? 0x100 + 33 + (c - 0x7f) : 0x100 + 67;
}

/* True if U+2581 follows a different character. */
static bool has_inner_space(const char *text, size_t size)
{
    for (const char *at = text; (at = memmem(at, size - (size_t)(at - text), "\u2581", 3)); at += 3)
        if (at > text && (at < text + 3 || memcmp(at - 3, "\u2581", 3) != 0))
            return true;
    return false;
}

/* Symbols are single characters or results of merges, so it is enough to examine the merges. */
static bool is_parted(const struct fm_bpe *b)
{
    int bytes;
    if (b->byte_level || b->ignore_merges || b->of_point[fm_unicode_at("\u2581", &bytes)] < 0)
        return false;
    for (size_t i = 0; i < b->merges; i++) {
        struct fm_bpe_entry key = {.id = b->merge[i].id};
        const struct fm_bpe_entry *e = bsearch(&key, b->entry, b->entries, sizeof *b->entry, by_id);
        if (!e || has_inner_space(b->text.data + e->at, e->size))
            return false;
    }
    return true;
}

int fm_bpe_finish(struct fm_bpe *b, struct fm_err *err)
{
    b->cells = table_size(b->merges);
    b->table = fm_alloc(b->cells, sizeof *b->table, "merges", err);
    if (!b->table)
        return FM_ENOMEM;
    for (size_t i = 0; i < b->cells; i++)
        b->table[i].pair = UINT64_MAX;
    for (size_t i = 0; i < b->merges; i++) /* of two equal merges the last one counts */
        *find_cell(b, b->merge[i].pair) = b->merge[i];
    b->parted = is_parted(b);
    for (int i = 0; i < 256; i++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        b->of_byte[i] = b->byte_fallback ? fm_bpe_find(b, name, (size_t)n) : -1;
    }
    return FM_OK;
}

void fm_bpe_release(struct fm_bpe *b)
{
    free(b->text.data);
    free(b->entry);
    free(b->slot);
    free(b->merge);
    free(b->table);
    free(b->of_point);
    *b = (struct fm_bpe){0};
}

/* --- a word --- */

int fm_bpe_work_init(struct fm_bpe_work *w, struct fm_err *err)
{
    *w = (struct fm_bpe_work){0};
    w->cache = fm_alloc(CACHE_LINES, sizeof *w->cache, "a cache of words", err);
    return w->cache ? FM_OK : FM_ENOMEM;
}

void fm_bpe_work_release(struct fm_bpe_work *w)
{
    free(w->ids);
    free(w->symbol);
    free(w->heap);
    free(w->cache);
    free(w->level.data);
    *w = (struct fm_bpe_work){0};
}

void fm_bpe_push(struct fm_bpe_work *w, int32_t id)
{
    struct fm_err ignored = {0};
    if (FM_GROW(w->ids, w->capacity, w->n + 1, "a text's tokens", &ignored)) {
        w->failed = true;
        return;
    }
    w->ids[w->n++] = id;
}

static void sink(uint64_t *heap, size_t n, size_t at)
{
    uint64_t step = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (step <= heap[child])
            break;
        heap[at] = heap[child];
    }
    heap[at] = step;
}

static size_t rise(uint64_t *heap, size_t n, uint64_t step)
{
    size_t at = n;
    for (; at > 0 && step < heap[(at - 1) / 2]; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = step;
    return n + 1;
}

static const struct fm_bpe_merge *merge_of(const struct fm_bpe *b, int32_t left, int32_t right)
{
    const struct fm_bpe_merge *m = find_cell(b, (uint64_t)left << 32 | (uint32_t)right);
    return m->pair == UINT64_MAX ? NULL : m;
}

/* The heap entry of a possible merge: rank << 32 | position, so that the smallest comes first. */
static uint64_t step_at(const struct fm_bpe_merge *m, int32_t place)
{
    return (uint64_t)m->rank << 32 | (uint32_t)place;
}

/* Merge until no merge is possible.  A heap entry whose pair has changed is still used if the new
 * pair makes the same token: the library does so, and it affects the order of merges. */
static void merge_all(const struct fm_bpe *b, struct fm_bpe_symbol *s, uint64_t *heap, int32_t n)
{
    size_t steps = 0;
    const struct fm_bpe_merge *m;
    for (int32_t i = 0; i + 1 < n; i++)
        if ((m = merge_of(b, s[i].id, s[i + 1].id)))
            heap[steps++] = step_at(m, i);
    for (size_t i = steps / 2; i-- > 0;)
        sink(heap, steps, i);
    while (steps > 0) {
        uint64_t top = heap[0];
        int32_t id = b->merge[top >> 32].id;
        heap[0] = heap[--steps];
        if (steps > 0)
            sink(heap, steps, 0);
        struct fm_bpe_symbol *left = &s[(uint32_t)top];
        if (left->size == 0 || left->next < 0)
            continue;
        struct fm_bpe_symbol *right = &s[left->next];
        m = merge_of(b, left->id, right->id);
        if (!m || m->id != id)
            continue;
        left->id = id;
        left->size += right->size;
        left->next = right->next;
        right->size = 0;
        if (left->next >= 0)
            s[left->next].before = (int32_t)(left - s);
        if (left->before >= 0 && (m = merge_of(b, s[left->before].id, left->id)))
            steps = rise(heap, steps, step_at(m, left->before));
        if (left->next >= 0 && (m = merge_of(b, left->id, s[left->next].id)))
            steps = rise(heap, steps, step_at(m, (int32_t)(left - s)));
    }
}

static void add_symbol(struct fm_bpe_symbol *s, int32_t *n, int32_t id, uint32_t size)
{
    s[*n] = (struct fm_bpe_symbol){id, size, *n - 1, *n + 1};
    ++*n;
}

/* The symbols of a word while they are made. */
struct symbols {
    struct fm_bpe_symbol *symbol;
    int32_t n;
    uint32_t unknown; /* bytes of a pending unknown character, emitted before the next known one */
    size_t dropped;   /* bytes of the word that became no symbol */
};

static void flush_unknown(const struct fm_bpe *b, struct symbols *s)
{
    if (s->unknown > 0)
        add_symbol(s->symbol, &s->n, b->unknown, s->unknown);
    s->unknown = 0;
}

/* True if a character has byte tokens that replace it. */
static bool is_spelled(const struct fm_bpe *b, const char *text, int bytes)
{
    bool spelled = b->byte_fallback;
    for (int i = 0; i < bytes && spelled; i++)
        spelled = b->of_byte[(unsigned char)text[i]] >= 0;
    return spelled;
}

/* Add the symbols of a character c, encoded as `bytes` bytes of text, that represents `size` bytes
 * of the word.  Byte tokens that replace a character do not end a run of unknown characters; the
 * token of the run comes after them. */
static void add_character(const struct fm_bpe *b, struct symbols *s, uint32_t c, const char *text,
                          int bytes, int size)
{
    int32_t id = b->of_point[c];
    if (id >= 0) {
        flush_unknown(b, s);
        add_symbol(s->symbol, &s->n, id, (uint32_t)size);
    } else if (is_spelled(b, text, bytes)) {
        for (int i = 0; i < bytes; i++)
            add_symbol(s->symbol, &s->n, b->of_byte[(unsigned char)text[i]], 1);
    } else if (b->unknown < 0) {
        s->dropped += (size_t)size;
    } else {
        if (!b->fuse_unknown)
            flush_unknown(b, s);
        s->unknown += (uint32_t)size;
    }
}

static void split_characters(const struct fm_bpe *b, struct symbols *s, const char *word,
                             size_t size)
{
    int bytes;
    for (size_t at = 0; at < size; at += (size_t)bytes) {
        uint32_t c = fm_unicode_at(word + at, &bytes);
        add_character(b, s, c, word + at, bytes, bytes);
    }
    flush_unknown(b, s);
}

static void split_bytes(const struct fm_bpe *b, struct symbols *s, const char *word, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        char text[4];
        uint32_t c = level_of((unsigned char)word[i]);
        add_character(b, s, c, text, fm_utf8_encode(text, c), 1);
    }
    flush_unknown(b, s);
}

/* Make room for the worst case: a symbol for each byte, or two if byte tokens replace the
 * characters of byte_level; and three heap entries for each symbol, one at the start and two for
 * each merge. */
static bool reserve(struct fm_bpe_work *w, size_t size)
{
    struct fm_err ignored = {0};
    /* Symbols are numbered with int32_t, and a rule may replace each byte of a text by many. */
    if (size < INT32_MAX && !FM_GROW(w->symbol, w->symbols, size, "a word", &ignored) &&
        !FM_GROW(w->heap, w->steps, 3 * size, "a word", &ignored))
        return true;
    w->failed = true;
    return false;
}

static void encode_word(const struct fm_bpe *b, struct fm_bpe_work *w, const char *word,
                        size_t size)
{
    if (!reserve(w, b->byte_level && b->byte_fallback ? 2 * size : size))
        return;
    struct symbols s = {.symbol = w->symbol};
    if (b->byte_level)
        split_bytes(b, &s, word, size);
    else
        split_characters(b, &s, word, size);
    w->dropped += s.dropped;
    if (s.n == 0)
        return;
    s.symbol[s.n - 1].next = -1;
    merge_all(b, s.symbol, w->heap, s.n);
    for (int32_t i = 0; i >= 0; i = s.symbol[i].next)
        fm_bpe_push(w, s.symbol[i].id);
}

/* Use the whole word if it is an entry (Llama 3). */
static int32_t find_word(const struct fm_bpe *b, struct fm_bpe_work *w, const char *word,
                         size_t size)
{
    if (!b->byte_level)
        return fm_bpe_find(b, word, size);
    w->level.size = 0;
    for (size_t i = 0; i < size; i++) {
        char c[4];
        int n = fm_utf8_encode(c, level_of((unsigned char)word[i]));
        fm_text_add(&w->level, c, (size_t)n);
    }
    w->failed = w->failed || w->level.failed;
    return w->level.failed ? -1 : fm_bpe_find(b, w->level.data, w->level.size);
}

static void encode_anew(const struct fm_bpe *b, struct fm_bpe_work *w, const char *word,
                        size_t size)
{
    int32_t whole = b->ignore_merges ? find_word(b, w, word, size) : -1;
    if (whole >= 0)
        fm_bpe_push(w, whole);
    else
        encode_word(b, w, word, size);
}

void fm_bpe_encode(const struct fm_bpe *b, struct fm_bpe_work *w, const char *word, size_t size)
{
    if (size == 0)
        return;
    if (size > CACHED_BYTES) {
        encode_anew(b, w, word, size);
        return;
    }
    struct fm_bpe_cached *line = &w->cache[XXH3_64bits(word, size) & (CACHE_LINES - 1)];
    if (line->size == size && memcmp(line->word, word, size) == 0) {
        for (int i = 0; i < line->n; i++)
            fm_bpe_push(w, line->ids[i]);
        w->dropped += line->dropped;
        return;
    }
    size_t before = w->n, dropped = w->dropped;
    encode_anew(b, w, word, size);
    if (w->n - before > CACHED_IDS || w->failed)
        return;
    line->size = (uint8_t)size;
    line->n = (uint8_t)(w->n - before);
    line->dropped = (uint8_t)(w->dropped - dropped);
    memcpy(line->word, word, size);
    if (line->n) /* else w->ids may be NULL */
        memcpy(line->ids, w->ids + before, line->n * sizeof *line->ids);
}
