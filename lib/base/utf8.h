/* UTF-8: one character at a time. */
#ifndef FM_UTF8_H
#define FM_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decode the character at s into *c and return its length in bytes.  At most `left` bytes are read;
 * `left` must not be 0.  Returns 0 if the character is invalid: truncated, overlong, a surrogate,
 * or above U+10FFFF. */
int fm_utf8_decode(const char *s, size_t left, uint32_t *c);

/* Write a code point, at most U+10FFFF; returns its length. */
int fm_utf8_encode(char out[4], uint32_t c);

#endif
