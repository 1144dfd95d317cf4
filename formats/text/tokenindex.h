/*
 * Token files that come in two: the words, and an index of the documents in them.
 * Megatron's X.bin and X.idx, and datatrove's X.ds and X.ds.index.  The index says what
 * the words are; every field of it is checked, then only the words are read: documents
 * follow one another in file order.
 *
 * Private to formats/text/tokens.c.
 */
#ifndef FM_TOKENINDEX_H
#define FM_TOKENINDEX_H

#include <stdbool.h>

#include "formats/text/tokens.h"

/*
 * Where t->file is one of such a pair, make it the file of words and fill t; *found says whether
 * it was.  FM_EFORMAT: an index without its words (a sentence that names it), fields that
 * contradict each other or the length of the words.
 */
int fm_tokenindex_open(struct fm_tokens *t, bool *found, struct fm_err *err);

#endif
