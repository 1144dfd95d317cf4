/*
 * Sorts and searches arrays of records that begin with a name, and finds duplicate names; names are
 * compared as bytes.  A record is any struct of `size` bytes whose first member is a `const char
 * *`, a `char *` or an array of such pointers.
 */
#ifndef FM_NAMES_H
#define FM_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "lib/base/err.h"

/* Sort records by name; they may be NULL if count is 0. */
void fm_names_sort(void *records, size_t count, size_t size);

/* Find a name among sorted records; NULL if none has it. */
void *fm_names_find(const void *records, size_t count, size_t size, const char *name);

/* The same among records in any order. */
void *fm_names_among(const void *records, size_t count, size_t size, const char *name);

/* The first name that occurs twice among sorted records, or NULL. */
const char *fm_names_twin(const void *records, size_t count, size_t size);

/* Fail with `code` and "WHAT 'name' FAULT" if two records, in any order, have the same name. */
int fm_names_distinct(const void *records, size_t count, size_t size, int code, const char *what,
                      const char *fault, struct fm_err *err);

/* The index of a name in a list that ends with NULL, or -1. */
int fm_names_index(const char *const *list, const char *name);

static inline bool fm_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), e = strlen(end);
    return n >= e && memcmp(text + n - e, end, e) == 0;
}

/* The names of a list of descriptors, ROWS(ROW) with ROW(name) for each, as the choices of an
 * option: "taylor|energy". */
#define FM_NAMES_CHOICES(ROWS) (&ROWS(FM_NAMES_CHOICE)[1])
#define FM_NAMES_CHOICE(name) "|" #name

/* The edit distance (Levenshtein) of two names of at most 31 bytes; 99 if a name is longer. */
int fm_names_distance(const char *a, const char *b);

#endif
