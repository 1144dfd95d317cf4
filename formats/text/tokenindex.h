/*
 * Token files in two parts: the words, and an index of the documents in them.  Megatron's X.bin and
 * X.idx, and datatrove's X.ds and X.ds.index.  The index gives the type of the words; every field
 * of it is checked, and then only the words are read: documents follow one another in file order.
 *
 * Private to formats/text/tokens.c.
 */
#ifndef FM_TOKENINDEX_H
#define FM_TOKENINDEX_H

#include <stdbool.h>

#include "formats/text/tokens.h"

/*
 * If t->file is one file of such a pair, replace it by the file of words and fill t; *found is true
 * if it was.  FM_ENOENT: X.idx without X.bin.  FM_EFORMAT: fields that contradict each other or the
 * length of the words.
 */
int fm_tokenindex_open(struct fm_tokens *t, bool *found, struct fm_err *err);

#endif
