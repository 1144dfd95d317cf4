/*
 * The internals of a tokenizer, which tokenizerjson.c fills and tokenizer.c uses.
 */
#ifndef FM_TOKENIZERPARTS_H
#define FM_TOKENIZERPARTS_H

#include "formats/file/digest.h"
#include "formats/text/bpe.h"
#include "formats/text/pretoken.h"

#define FM_TOKENIZER_WORD_MAX 4096 /* bytes of a token */
#define FM_NORMAL_STEPS_MAX 4
#define FM_TEMPLATE_MAX 8
#define FM_PRETOKENS_MAX 8

/* One step of normalisation. */
struct fm_normal {
    enum { FM_NORMAL_NFC, FM_NORMAL_PREPEND, FM_NORMAL_REPLACE } kind;
    char from[16], to[16]; /* for PREPEND only `to` */
};

/* An added token, and the text that is searched for. */
struct fm_added {
    char *content; /* as in the file; if `normalized`, after normalisation */
    size_t size;
    int32_t id;
    int place; /* index in the file; of two equal tokens a special one counts, else the earlier */
    bool single_word, lstrip, rstrip, normalized, special;
};

/* Tokens to search for, grouped by first byte, the longest first in each group. */
struct fm_matcher {
    struct fm_added *token;
    int count;
    int first[257]; /* tokens that begin with byte b: first[b] to first[b + 1] */
};

enum fm_metaspace {
    FM_METASPACE_NONE,
    FM_METASPACE_ALWAYS,
    FM_METASPACE_FIRST,
    FM_METASPACE_NEVER
};

struct fm_tokenizer {
    struct fm_digest digest;
    struct fm_normal normal[FM_NORMAL_STEPS_MAX];
    int normals;
    struct fm_pretoken pretoken[FM_PRETOKENS_MAX]; /* applied in order */
    int pretokens;
    bool prefix_space; /* add_prefix_space of ByteLevel */
    enum fm_metaspace metaspace;
    char replacement[8];
    bool metaspace_split;
    struct fm_bpe bpe;
    struct fm_matcher raw, normalized; /* before and after normalisation */
    int32_t front[FM_TEMPLATE_MAX], back[FM_TEMPLATE_MAX];
    int fronts, backs;
    int32_t last; /* the largest id */
};

/* Fill *t, zeroed by the caller, from the text of a tokenizer.json; the caller releases it in
 * any case. */
int fm_tokenizer_read(struct fm_tokenizer *t, const char *text, size_t size, struct fm_err *err);

/* Append text with every `from` replaced. */
void fm_tokenizer_replace(struct fm_text *out, const char *text, size_t size, const char *from,
                          const char *to);

/* Write text after all steps of normalisation to *out, which must be empty; `other` holds
 * intermediate results. */
void fm_tokenizer_normalise(const struct fm_tokenizer *t, struct fm_text *out,
                            struct fm_text *other, const char *text, size_t size);

#endif
