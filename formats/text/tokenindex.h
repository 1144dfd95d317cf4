/*
 * Pairs of files: tokens, and an index of the documents in them (Megatron's X.bin and X.idx,
 * datatrove's X.ds and X.ds.index).  The index gives the type of the tokens.  All its fields are
 * checked; after that only the tokens are read, in file order.
 *
 * Private to formats/text/tokens.c.
 */
#ifndef FM_TOKENINDEX_H
#define FM_TOKENINDEX_H

#include <stdbool.h>

#include "formats/text/tokens.h"

/*
 * If t->file is one file of such a pair, replace it with the token file, fill t and set *found.
 * FM_ENOENT: X.idx without X.bin.  FM_EFORMAT: fields that contradict each other or the length of
 * the token file.
 */
int fm_tokenindex_open(struct fm_tokens *t, bool *found, struct fm_err *err);

#endif
