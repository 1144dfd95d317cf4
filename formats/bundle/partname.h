/*
 * The names of the files of a bundle in parts: family.fm becomes family-00001-of-00003.fm and so
 * on, as shards of safetensors are named.  Whatever works with shards (the hub's pages, scripts
 * with globs) also works with these.  The names sort in order, and each contains the number of
 * parts.
 */
#ifndef FM_PARTNAME_H
#define FM_PARTNAME_H

#include <stdbool.h>

#include "lib/base/err.h"

#define FM_PARTS_MAX 500 /* all are open while the bundle is read or written */

/* The name of part `number` (from 1 on) of `parts` of the bundle `path`; free() it.  NULL:
 * FM_ENOMEM. */
char *fm_partname(const char *path, int number, int parts, struct fm_err *err);
/* True if `path` is the name of a part.  Sets the number of the part and the number of parts. */
bool fm_partname_parse(const char *path, int *number, int *parts);
/* The name of another part of the same bundle; `path` is a part.  free() it.  NULL: FM_ENOMEM. */
char *fm_partname_other(const char *path, int number, struct fm_err *err);
/* The name of the first part of the bundle `path`, if exactly one file has such a name; else
 * `path`.  free() it.  NULL: FM_ENOMEM; FM_EIO if the directory cannot be listed to its end. */
char *fm_partname_find(const char *path, struct fm_err *err);

#endif
