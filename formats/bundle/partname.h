/*
 * The names of the files of a bundle in parts: family.fm becomes family-00001-of-00003.fm and so
 * on, as shards of safetensors are named.  Tools that know those (the hub's pages, scripts with
 * globs) know these, they sort in order, and each says whether others are missing.
 */
#ifndef FM_PARTNAME_H
#define FM_PARTNAME_H

#include <stdbool.h>

#include "lib/base/err.h"

#define FM_PARTS_MAX 500 /* each is open while the bundle is read or written */

/* Part `number` of `parts`, from 1 on, of the bundle that would be called `path`; free() it.  NULL:
 * FM_ENOMEM. */
char *fm_partname(const char *path, int number, int parts, struct fm_err *err);
/* Is `path` such a name?  Which part it says it is, of how many. */
bool fm_partname_parse(const char *path, int *number, int *parts);
/* The name of another part of the same bundle, where `path` is one; free() it.  NULL: FM_ENOMEM. */
char *fm_partname_other(const char *path, int number, struct fm_err *err);
/* The first part of the bundle that would be called `path`, where exactly one file has such a name;
 * else `path`.  free() it.  NULL: FM_ENOMEM. */
char *fm_partname_find(const char *path, struct fm_err *err);

#endif
