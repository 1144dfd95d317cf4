/*
 * Records that begin with their name: sorted by the bytes of the name, searched by name, and
 * checked for duplicates.  A record is any struct of `size` bytes whose first member is a
 * `const char *`, a `char *` or an array of such pointers.
 */
#ifndef FM_NAMES_H
#define FM_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Records may be NULL where count is 0. */
void fm_names_sort(void *records, size_t count, size_t size);

/* Of sorted records: the one of that name, or NULL. */
void *fm_names_find(const void *records, size_t count, size_t size, const char *name);

/* Of sorted records: the first name that two of them have, or NULL. */
const char *fm_names_twin(const void *records, size_t count, size_t size);

static inline bool fm_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), e = strlen(end);
    return n >= e && memcmp(text + n - e, end, e) == 0;
}

/* Edits from one name to the other (Levenshtein's), for names of at most 31 bytes; longer ones are
 * far from everything. */
int fm_names_distance(const char *a, const char *b);

#endif
