/*
 * Unicode as the tokenizers library implements it: classes of code points of version 16 and normal
 * form C of version 9, in tables that golden/make/unicode.py extracted from it.  Text is UTF-8 that
 * fm_unicode_check has accepted.
 */
#ifndef FM_UNICODE_H
#define FM_UNICODE_H

#include <stddef.h>
#include <stdint.h>

#include "formats/file/text.h"

enum fm_unicode_class {
    FM_LETTER = 1,    /* \p{L} */
    FM_NUMBER = 2,    /* \p{N} */
    FM_SPACE = 4,     /* \s */
    FM_WORD = 8,      /* \w */
    FM_UNSTABLE = 16, /* may change in form C, alone or with its neighbours */
    FM_NEWLINE = 32,  /* carriage return and line feed */
    FM_UPPER = 64,    /* \p{Lu} and \p{Lt} */
    FM_LOWER = 128,   /* \p{Ll}; a letter that is neither has no case: \p{Lm} and \p{Lo} */
    FM_MARK = 256,    /* \p{M} */
    FM_SIGN = 512,    /* \p{P} and \p{S} */
    FM_DIGIT = 1024   /* of the Digits pre-tokenizer: numbers as in version 17 */
};

/* The classes of each of the 0x110000 code points. */
const uint16_t *fm_unicode_classes(void);

/* The offset of the first byte that is not valid UTF-8, or size. */
size_t fm_unicode_check(const char *text, size_t size);

/* The code point at text, which is not empty; *bytes becomes its length. */
static inline uint32_t fm_unicode_at(const char *text, int *bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) {
        *bytes = 1;
        return s[0];
    }
    *bytes = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (*bytes == 2)
        return (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    if (*bytes == 3)
        return (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3f) << 12 |
           (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3f);
}

/* Append the normal form C of text to *out. */
void fm_unicode_nfc(struct fm_text *out, const char *text, size_t size);

#endif
