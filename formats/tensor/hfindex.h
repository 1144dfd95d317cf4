/*
 * model.safetensors.index.json: which shard has which tensor.  It is read with the pull scanner;
 * all names are stored in one block.  Private to formats/.
 */
#ifndef FM_HFINDEX_H
#define FM_HFINDEX_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/file/file.h"
#include "lib/base/err.h"

struct fm_hfentry {
    const char *tensor, *shard; /* borrowed from the index */
    bool seen;                  /* used in the comparison with the shards; false at first */
};

struct fm_hfindex {
    struct fm_hfentry *entry; /* sorted by tensor name, without duplicates */
    size_t count;
    const char **shard; /* sorted, no duplicates, each valid as a file name inside the directory */
    size_t shards;
    char *text; /* storage of the names */
};

/* FM_EFORMAT, with the byte position or the offending name. */
int fm_hfindex_open(struct fm_hfindex *x, const struct fm_file *file, struct fm_err *err);
void fm_hfindex_close(struct fm_hfindex *x); /* zeroed is fine */

/* The entry of that tensor, or NULL. */
struct fm_hfentry *fm_hfindex_find(const struct fm_hfindex *x, const char *tensor);

#endif
