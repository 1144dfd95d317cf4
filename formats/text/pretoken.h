/*
 * The patterns that split text into pieces before byte-pair encoding.  Patterns for words are
 * implemented as hand-written scanners, which are selected by comparing the pattern in a
 * tokenizer.json literally with a list.  Patterns that are one class of characters, single or in a
 * run, are parsed.  No regular expression is ever run, so a hostile pattern cannot take long.
 */
#ifndef FM_PRETOKEN_H
#define FM_PRETOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FM_PRETOKEN_RANGES_MAX 160

struct fm_pretoken {
    enum {
        FM_PRETOKEN_GPT2,     /* the pattern of ByteLevel itself: GPT-2, GPT-NeoX, OLMoE */
        FM_PRETOKEN_QWEN2,    /* Qwen2, Qwen3: digits one by one */
        FM_PRETOKEN_LLAMA3,   /* Llama 3, GLM-4: digits in threes */
        FM_PRETOKEN_QWEN35,   /* Qwen3.5: marks belong to words */
        FM_PRETOKEN_O200K,    /* GPT-4o, gpt-oss, MiniMax-M2: words end where the case changes */
        FM_PRETOKEN_DEEPSEEK, /* DeepSeek-V3: the last of its three patterns */
        FM_PRETOKEN_TAIL,     /* \s+$ */
        FM_PRETOKEN_RUN
    } kind;
    /* For a RUN: [class], with an optional \s? before it and + or {1,3} after it. */
    bool space;
    uint32_t most;   /* limit of the characters of one piece */
    uint16_t bits;   /* of enum fm_unicode_class */
    uint32_t ranges; /* number of ranges */
    /* Their first and last characters, both ascending: a last one is at least that before it. */
    uint32_t range[2 * FM_PRETOKEN_RANGES_MAX];
};

/* The names of two patterns that do not occur literally in a tokenizer.json. */
#define FM_PRETOKEN_BYTE_LEVEL "ByteLevel"
#define FM_PRETOKEN_DIGITS "Digits"

/* Parse a pattern; false if it is not supported. */
bool fm_pretoken_parse(struct fm_pretoken *p, const char *pattern);

/* Bytes of the first piece of text, which is UTF-8 and not empty: a match, or the text before the
 * next match. */
size_t fm_pretoken_next(const struct fm_pretoken *p, const char *text, size_t size);

#endif
