/*
 * The model card of an export, README.md.  What fm-pack wrote is between two marks, which are
 * comment lines; the owner may write before and after them.
 */
#ifndef FM_CARD_H
#define FM_CARD_H

#include <stddef.h>

#include "formats/file/digest.h"
#include "lib/base/err.h"

/* The digest of the text between the marks of a card (`size` bytes and a NUL).  FM_EFORMAT if it is
 * not text, or does not have each mark once. */
int fm_card_digest(struct fm_digest *digest, const char *card, size_t size, struct fm_err *err);

#endif
