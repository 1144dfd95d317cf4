/*
 * Checkpoints by name: the cache that Hugging Face's programs keep on disk, and the error sentences
 * for directories that are not checkpoints.
 */
#ifndef FM_HFCACHE_H
#define FM_HFCACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

/* True if it has the form "org/name" of a model on the hub. */
bool fm_hfcache_is_name(const char *name);

/*
 * The directory of the checkpoint `name`, as `hf download` left it: revision main of the cache that
 * HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME or XDG_CACHE_HOME names, with ~ and variables
 * expanded as by huggingface_hub, or ~/.cache/huggingface.  FM_ENOENT, with the
 * command that fetches it, if it does not exist; the errors of fm_file_open if refs/main cannot be
 * read.
 */
int fm_hfcache_find(char *path, size_t size, const char *name, struct fm_err *err);

/*
 * True if the file `target` belongs to the snapshot directory `home`: the cache stores the files of
 * models--NAME/snapshots/REVISION as models--NAME/blobs/DIGEST and links to them.  Both paths are
 * as realpath(3) returns them.
 */
bool fm_hfcache_is_own_blob(const char *target, const char *home);

/* The error for a directory without config.json: a better sentence if it is a known mistake,
 * else `rc` with *err unchanged. */
int fm_hfcache_explain_directory(int dir, int rc, struct fm_err *err);
/* The error for a directory without safetensors files. */
int fm_hfcache_explain_weights(int dir, struct fm_err *err);

#endif
