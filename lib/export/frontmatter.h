/*
 * The YAML between two lines of --- at the beginning of a model card, in the forms that cards use:
 * a key with a word, or with a list of words on several lines or in brackets.  Lines may end with
 * CR LF.
 */
#ifndef FM_FRONTMATTER_H
#define FM_FRONTMATTER_H

#include <stdbool.h>
#include <stddef.h>

/* Characters of a word; ':' is also accepted, for links. */
#define FM_FRONTMATTER_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/"

/*
 * Append the value of `key` in `card` to text (capacity bytes, a string) as front matter: "key:
 * word\n" or "key:\n- word\n- word\n".  Returns false and leaves the text unchanged if the card has
 * no such key, its value has a different form, or it does not fit.
 */
bool fm_frontmatter_repeat(char *text, size_t capacity, const char *card, const char *key);

#endif
