/*
 * Text that may hold words of somebody else (names in files, above all) and goes to a terminal.  A
 * terminal obeys control characters, and shows some others in another place or not at all;
 * so what is printed has none of these: C0 and C1 controls, DEL, marks and overrides of direction,
 * separators of lines, characters without a width, bytes that are not UTF-8.
 */
#ifndef FM_BASE_PRINTABLE_H
#define FM_BASE_PRINTABLE_H

#include <stdbool.h>

/* A '?' for every byte of those, in place.  Line feeds stay where `lines`. */
void fm_printable(char *text, bool lines);

/* The same for a JSON text, where none of them is outside of strings: each becomes \uXXXX, a
 * byte that is not UTF-8 \ufffd.  Line feeds stay.  free() it; NULL: no memory. */
char *fm_printable_json(const char *json);

#endif
