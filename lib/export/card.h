/*
 * The model card of an export, README.md, as those see it that edit or compare one: parts of it
 * that the suite wrote are between marks, lines that are comments.
 */
#ifndef FM_CARD_H
#define FM_CARD_H

#include "lib/base/err.h"

/* Two lines, each with its line feed. */
struct fm_card_marks {
    const char *begin, *end;
};

/* Figures of fm-bench quality --record: its section of the text, and model-index of the front
 * matter. */
extern const struct fm_card_marks fm_card_figures, fm_card_index;

/* The first line from `from` on that begins with `begin`; NULL: none. */
const char *fm_card_line(const char *from, const char *begin);
/* The line behind the one that `line` is in; its NUL where that is the last. */
const char *fm_card_next(const char *line);
/* The first part between marks, from *begin to *end with both; NULL: none.  A mark that has lost
 * its other one marks nothing. */
const char *fm_card_marked(const char *from, const struct fm_card_marks *marks, const char **end);

/* *text (free()) = what fm-pack generates of a card, and fm-verify compares, without recorded
 * figures; the rest is its owner's to write.  FM_EFORMAT where it has not such a part, or has two;
 * FM_ENOMEM. */
int fm_card_compared(char **text, const char *card, struct fm_err *err);

#endif
