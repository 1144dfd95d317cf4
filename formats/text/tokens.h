/*
 * This room, formats/text: token ids from files: files of ids, documents in text files, and the
 * tokenizer that encodes a document.  lib/data makes sequences, batches and mixtures of the ids.
 * In reading order: tokens (files of ids), documents, tokenizer (the pipeline),
 * tokenizerparts.h with tokenizerjson.c (its parts, read from JSON), pretoken,
 * bpe, unicode and unicode_*, idlines.
 *
 * Token files: .npy (u2 u4 i4 i8; one or two dimensions), recognised by content, and raw
 * little-endian u16 or u32, recognised by name: X.u16, X.u32.
 */
#ifndef FM_TOKENS_H
#define FM_TOKENS_H

#include <stdint.h>

#include "formats/file/file.h"
#include "lib/base/err.h"

struct fm_tokens {
    struct fm_file file;
    const char *format;  /* "npy", "raw" */
    uint64_t data;       /* offset of the first token */
    uint64_t count;      /* tokens */
    uint64_t rows, cols; /* 2-D: a row is a sequence; 1-D: rows 0 */
    int width;           /* bytes per token: 2, 4, 8 */
    int is_signed;
};

/* FM_EFORMAT names the wrong field; also for a file without tokens, or whose length differs from
 * its header.  FM_EUSAGE for a raw file whose name states no type. */
int fm_tokens_open(struct fm_tokens *t, const char *path, struct fm_err *err);
void fm_tokens_close(struct fm_tokens *t);

/* Read n tokens from position `at` (which the caller keeps within count), each checked to be in
 * [0, vocabulary); vocabulary is below 2^31.  FM_EFORMAT names position and id. */
int fm_tokens_read(const struct fm_tokens *t, uint64_t at, int32_t *ids, uint64_t n,
                   uint32_t vocabulary, struct fm_err *err);

#endif
