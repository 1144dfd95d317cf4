/*
 * llama.cpp's base-logits file, which llama-perplexity --kl-divergence-base writes, and with which
 * llama-perplexity --kl-divergence compares another model (tools/perplexity/perplexity.cpp, commit
 * 050fc7f3):
 *
 *     "_logits_"                         8 bytes, without NUL
 *     int32 n_ctx, n_vocab, n_chunk
 *     int32 tokens[n_chunk * n_ctx]      the tokens of the text
 *     rows, n_ctx - 1 - n_ctx / 2 of each chunk, for positions from n_ctx / 2 on:
 *         float32 scale, low             log p = scale * code + low
 *         uint16 code[n_vocab]           and one more if n_vocab is odd
 *
 * All numbers are little-endian.  A writer keeps 16 nats below the largest logit; smaller logits
 * get the log p of that floor.  A reader ignores values of -16 or less, so the floor does not count
 * in a divergence.
 *
 * Rows are written and read one at a time, in any order and by several threads, so memory does not
 * grow with the file.
 */
#ifndef FM_KLBASE_H
#define FM_KLBASE_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/file/file.h"
#include "lib/base/err.h"

/* Log-probabilities of at most this do not count in a divergence. */
#define FM_KLBASE_LEAST (-16.0f)

struct fm_klbase_shape {
    int32_t n_ctx, vocabulary, chunks;
};

/* The number of rows of a chunk; the bytes of a row, and of a file. */
int fm_klbase_rows(int32_t n_ctx);
size_t fm_klbase_row_bytes(int32_t vocabulary);
uint64_t fm_klbase_bytes(const struct fm_klbase_shape *shape);

/* FM_EUSAGE for an impossible shape: a context without rows, an empty vocabulary, or more tokens
 * than an int32 can count. */
int fm_klbase_check(const struct fm_klbase_shape *shape, struct fm_err *err);

/* Encode a row (fm_klbase_row_bytes) from logits (vocabulary), as llama.cpp does. */
void fm_klbase_encode(void *row, const float *logits, int32_t vocabulary);

struct fm_klbase_writer {
    struct fm_output out;
    struct fm_klbase_shape shape;
};

/* Reserve the whole file and write its head.  The shape was checked.  FM_ECREATE, FM_EIO.  Call
 * fm_output_end(&w->out, ...) in any case. */
int fm_klbase_create(struct fm_klbase_writer *w, const char *path, bool force,
                     const struct fm_klbase_shape *shape, struct fm_err *err);
/* Write the tokens (n_ctx) of one chunk. */
int fm_klbase_put_tokens(struct fm_klbase_writer *w, int32_t chunk, const int32_t *ids,
                         struct fm_err *err);
/* Write row i of a chunk, encoded; safe from several threads at once. */
int fm_klbase_put_row(struct fm_klbase_writer *w, int32_t chunk, int i, const void *row,
                      struct fm_err *err);

struct fm_klbase {
    struct fm_file file;
    struct fm_klbase_shape shape;
};

/* FM_EFORMAT names the fault: the magic, a number of the head, or the length. */
int fm_klbase_open(struct fm_klbase *b, const char *path, struct fm_err *err);
void fm_klbase_close(struct fm_klbase *b);
/* Read the tokens (n_ctx) of one chunk; FM_EFORMAT for an id outside the vocabulary. */
int fm_klbase_tokens(const struct fm_klbase *b, int32_t chunk, int32_t *ids, struct fm_err *err);
/* Read the log-probabilities (vocabulary) of row i of a chunk, in float32 as in llama.cpp; row
 * (fm_klbase_row_bytes) is scratch.  FM_EFORMAT if scale and low do not give probabilities.
 * Safe from several threads at once. */
int fm_klbase_logprobs(const struct fm_klbase *b, int32_t chunk, int i, float *logprob, void *row,
                       struct fm_err *err);

#endif
