/*
 * The model card of an export, README.md.  What fm-pack wrote is between two marks, which are
 * comment lines; the owner may write before and after them.
 */
#ifndef FM_CARD_H
#define FM_CARD_H

#include <stddef.h>

#include "formats/file/digest.h"
#include "formats/file/text.h"
#include "lib/export/planned.h"

/* The digest of the text between the marks of a card (`size` bytes and a NUL).  FM_EFORMAT if it is
 * not text, or does not have each mark once. */
int fm_card_digest(struct fm_digest *digest, const char *card, size_t size, struct fm_err *err);

/* Plan the card as a file, after carried files, whose code it lists. */
int fm_card_plan(struct fm_exportplan *p, struct fm_err *err);

/* ---- for layouts with a card of their own ---- */

/* What ranks, masks and budgets are, and the description of the layout. */
void fm_card_intro(struct fm_text *t, const char *about);
/* Rows: how the weights are stored, and whether extra tensors were kept. */
void fm_card_weights(struct fm_text *t, const struct fm_exportplan *p);
/* A row: on which tokens, and with which products, the last tool that measures masks did so. */
void fm_card_held_out(struct fm_text *t, const struct fm_bundle *b);
/* A remark on the figures of masks, which were measured on the bundle's codes: ", before ..." if
 * the export has values, rounded to BF16; "" if not. */
const char *fm_card_rounding(const struct fm_exportplan *p);

#endif
