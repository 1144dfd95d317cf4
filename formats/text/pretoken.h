/*
 * The patterns that split text into words before byte-pair encoding, as hand-written scanners.
 * A pattern in a tokenizer.json is compared literally with those here; no regular expression is
 * ever run, so none can be made to run long.
 */
#ifndef FM_PRETOKEN_H
#define FM_PRETOKEN_H

#include <stddef.h>

enum fm_pretoken {
    FM_PRETOKEN_NONE,  /* all of it is one word */
    FM_PRETOKEN_GPT2,  /* the pattern of ByteLevel itself: GPT-2, GPT-NeoX, OLMoE */
    FM_PRETOKEN_QWEN2, /* Qwen2, Qwen3: digits one by one */
    FM_PRETOKEN_LLAMA3 /* Llama 3: digits by threes */
};

/* The scanner of a Split pattern; FM_PRETOKEN_NONE where it is unknown. */
enum fm_pretoken fm_pretoken_named(const char *pattern);

/* Bytes of the word that begins text, which is UTF-8 and not empty. */
size_t fm_pretoken_next(enum fm_pretoken kind, const char *text, size_t size);

#endif
