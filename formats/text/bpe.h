/*
 * Byte-pair encoding: a vocabulary, its merges, and the encoding of a word.  The ids are those of
 * the tokenizers library's BPE model, which also fixes the order of equal merges.  A model is
 * read-only once built and shared by threads; each thread encodes through a struct fm_bpe_work.
 */
#ifndef FM_BPE_H
#define FM_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/file/text.h"
#include "lib/base/err.h"

struct fm_bpe_entry {
    size_t at; /* in text */
    uint32_t size;
    int32_t id;
};

struct fm_bpe_merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank;
    int32_t id;
};

struct fm_bpe {
    struct fm_text text;
    struct fm_bpe_entry *entry;
    uint32_t *slot; /* open addressing: entry + 1, 0: empty */
    size_t entries, entry_capacity, slots;
    struct fm_bpe_merge *merge; /* in file order */
    struct fm_bpe_merge *table; /* hash table of the merges; pair UINT64_MAX: empty */
    size_t merges, merge_capacity, cells;
    int32_t *of_point;    /* id of each single character, or -1 */
    int32_t of_byte[256]; /* byte_fallback: id of <0xNN>, or -1 */
    int32_t unknown;      /* id for characters that are not in the vocabulary; -1: they are dropped,
                             as the library does (byte_level: characters stand for bytes, and
                             SmolLM2, Granite and StarCoder lack some that UTF-8 rarely has) */
    int32_t last;         /* the largest id */
    bool byte_level, byte_fallback, fuse_unknown, ignore_merges;
    bool parted; /* no merge crosses the start of a word: U+2581 after a different character */
};

/* Add an entry, which fm_bpe_index checks and hashes. */
int fm_bpe_add(struct fm_bpe *bpe, const char *text, size_t size, uint64_t id, struct fm_err *err);
/* Call after the last entry.  FM_EFORMAT if there is no entry, or a text or an id occurs twice. */
int fm_bpe_index(struct fm_bpe *bpe, struct fm_err *err);
/* The id of a text, or -1. */
int32_t fm_bpe_find(const struct fm_bpe *bpe, const char *text, size_t size);
/* Add the next merge, of two entries into a third; FM_EFORMAT names a text that is not an entry. */
int fm_bpe_add_merge(struct fm_bpe *bpe, const char *left, size_t left_size, const char *right,
                     size_t right_size, struct fm_err *err);
/* Call after the last merge, with all flags set. */
int fm_bpe_finish(struct fm_bpe *bpe, struct fm_err *err);
void fm_bpe_release(struct fm_bpe *bpe);

/* The ids so far, and scratch memory for encoding. */
struct fm_bpe_work {
    int32_t *ids;
    size_t n, capacity;
    size_t dropped; /* bytes of the words so far that became no id */
    bool failed;    /* an allocation failed */
    struct fm_bpe_symbol *symbol;
    uint64_t *heap;
    size_t symbols, steps;
    struct fm_bpe_cached *cache;
    struct fm_text level;
};

int fm_bpe_work_init(struct fm_bpe_work *work, struct fm_err *err);
void fm_bpe_work_release(struct fm_bpe_work *work);
void fm_bpe_push(struct fm_bpe_work *work, int32_t id);

/* Append the ids of one word, which is UTF-8 (byte_level: any bytes). */
void fm_bpe_encode(const struct fm_bpe *bpe, struct fm_bpe_work *work, const char *word,
                   size_t size);

#endif
