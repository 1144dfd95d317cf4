/*
 * The YAML between two lines of --- at the beginning of a model card, as far as cards have it: a
 * key with a word, or with a list of words in either form.  Lines may end as on Windows.
 */
#ifndef FM_FRONTMATTER_H
#define FM_FRONTMATTER_H

#include <stdbool.h>
#include <stddef.h>

/* What a word may have; links have a ':' besides. */
#define FM_FRONTMATTER_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/"

/*
 * Append the value of `key` in `card` to text (capacity bytes, a string), as front matter again:
 * "key: word\n" or "key:\n- word\n- word\n".  False, text as it was: the card has no such key, a
 * value of another form, or more than fits.
 */
bool fm_frontmatter_repeat(char *text, size_t capacity, const char *card, const char *key);

#endif
