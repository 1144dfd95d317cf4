/*
 * The model card of an export, README.md, for code that edits or compares one.  The parts that the
 * suite wrote are between marks, which are comment lines.
 */
#ifndef FM_CARD_H
#define FM_CARD_H

#include "lib/base/err.h"

/* The begin and end marks: two lines, each with its line feed. */
struct fm_card_marks {
    const char *begin, *end;
};

/* The marks around what fm-bench quality --record writes: the section of figures in the text, and
 * model-index in the front matter. */
extern const struct fm_card_marks fm_card_figures, fm_card_index;

/* The first line from `from` on that begins with `begin`, or NULL. */
const char *fm_card_line(const char *from, const char *begin);
/* The beginning of the first part between marks, or NULL; *end is set to its end.  The part
 * includes the marks.  A mark without its counterpart is ignored. */
const char *fm_card_marked(const char *from, const struct fm_card_marks *marks, const char **end);

/* *text (free()) = the part of a card that fm-pack generates and fm-verify compares, without
 * recorded figures; the rest belongs to the owner.  FM_EFORMAT if the card does not have exactly
 * one such part; FM_ENOMEM. */
int fm_card_compared(char **text, const char *card, struct fm_err *err);

#endif
