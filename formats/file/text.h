/*
 * A string that grows.  After a failed addition further ones do nothing, so only the final state
 * must be checked.
 */
#ifndef FM_TEXT_H
#define FM_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

/* Zero it first; free(data) at the end. */
struct fm_text {
    char *data; /* NUL-terminated after the first addition */
    size_t size, capacity;
    bool failed; /* an allocation failed */
};

void fm_text_add(struct fm_text *t, const char *bytes, size_t size);
void fm_text_printf(struct fm_text *t, const char *fmt, ...) FM_PRINTF(2, 3);
/* Append as a JSON string, in quotes. */
void fm_text_quote(struct fm_text *t, const char *s);

#endif
