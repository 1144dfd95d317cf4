/*
 * Text from outside (most often names in files) that is printed on a terminal.  A terminal
 * interprets control characters, and some other characters hide or reorder the text around them.
 * These are replaced: C0 and C1 controls, DEL, bidirectional marks and overrides, line and
 * paragraph separators, zero-width and other invisible characters, and bytes that are not UTF-8.
 */
#ifndef FM_BASE_PRINTABLE_H
#define FM_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stdio.h>

/* Replace every byte of such characters with '?', in place; keep line feeds if `lines` is true. */
void fm_printable(char *text, bool lines);

/* Write text to `out` with such characters replaced likewise, line feeds too; allocates nothing. */
void fm_printable_write(FILE *out, const char *text);

/* A copy of a JSON text, in which such characters occur only inside strings: each becomes
 * \uXXXX, and a byte that is not UTF-8 becomes \ufffd.  Line feeds are kept.  The caller frees
 * it; NULL: out of memory. */
char *fm_printable_json(const char *json);

#endif
