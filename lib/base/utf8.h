/* UTF-8: one character at a time. */
#ifndef FM_UTF8_H
#define FM_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The length of the character at s, of which `left` bytes, at least one, can be read; *c becomes
 * its code point.  0 if it is invalid: cut off, overlong, a surrogate, or above U+10FFFF. */
int fm_utf8_decode(const char *s, size_t left, uint32_t *c);

/* Write a code point, at most U+10FFFF; returns its length. */
int fm_utf8_encode(char out[4], uint32_t c);

#endif
