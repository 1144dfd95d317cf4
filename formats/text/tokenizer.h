/*
 * Converts text to the ids that the Hugging Face tokenizers library gives for the same
 * tokenizer.json, for the pipelines that mixture-of-experts models use:
 *
 *     normalizer      none, NFC, Prepend and Replace of plain strings, a Sequence of them
 *     pre-tokenizer   none, Metaspace, ByteLevel; before ByteLevel also Digits, and Splits by known
 *                     patterns or by a class of characters
 *     model           BPE, with byte fallback, fused unknowns and ignore_merges
 *     added tokens    lstrip, rstrip, single_word, normalized, special
 *     post-processor  none, ByteLevel, a template, a Sequence of them
 *
 * Anything else is an error that names it, because otherwise the ids would be silently wrong.
 */
#ifndef FM_TOKENIZER_H
#define FM_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/file/digest.h"
#include "lib/base/err.h"

#define FM_TOKENIZER_BYTES_MAX (64 << 20) /* limit of a tokenizer.json, in bytes */
#define FM_TOKENIZER_TEXT_MAX (1 << 30)   /* limit of one text */
#define FM_TOKENIZER_NAME 128             /* limit of a token's text, with its NUL */

struct fm_tokenizer; /* read-only after it was opened: threads share it */

/* FM_EFORMAT names the malformed part, FM_ECONFIG the unsupported one. */
int fm_tokenizer_open(struct fm_tokenizer **t, const char *path, struct fm_err *err);
/* Parse the text of a tokenizer.json in the same way. */
int fm_tokenizer_parse(struct fm_tokenizer **t, const char *text, size_t size, struct fm_err *err);
void fm_tokenizer_close(struct fm_tokenizer *t);

/* The digest of the file. */
struct fm_digest fm_tokenizer_digest(const struct fm_tokenizer *t);
/* The ids that its template puts before and after a text. */
void fm_tokenizer_template(const struct fm_tokenizer *t, const int32_t **front, int *fronts,
                           const int32_t **back, int *backs);

/* The largest id, added or of the vocabulary. */
int32_t fm_tokenizer_last(const struct fm_tokenizer *t);
/* The id of the token with this text, added or of the vocabulary, or -1. */
int32_t fm_tokenizer_find(const struct fm_tokenizer *t, const char *text);
/* The text of a token, "" if it is too long; false if no token has this id. */
bool fm_tokenizer_name(const struct fm_tokenizer *t, int32_t id, char text[FM_TOKENIZER_NAME]);

/* State of one thread that encodes. */
struct fm_encoder;
int fm_encoder_new(struct fm_encoder **e, const struct fm_tokenizer *t, struct fm_err *err);
void fm_encoder_free(struct fm_encoder *e);

/*
 * The ids of a text, with those of the template; *ids is valid until the next call.  FM_EFORMAT
 * names the first byte that is not UTF-8; FM_ENOMEM.
 */
int fm_encoder_run(struct fm_encoder *e, const char *text, size_t size, const int32_t **ids,
                   size_t *n, struct fm_err *err);
/* Bytes of the last text, after normalisation, that became no id: they are not in the vocabulary,
 * and there is no token for unknown characters. */
size_t fm_encoder_dropped(const struct fm_encoder *e);

#endif
