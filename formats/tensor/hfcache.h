/*
 * Checkpoints by name: the cache that Hugging Face's programs keep on disk, and what to say where
 * a directory is none of a checkpoint.
 */
#ifndef FM_HFCACHE_H
#define FM_HFCACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

/* "org/name" as the hub spells it: no path. */
bool fm_hfcache_is_name(const char *name);

/*
 * The directory of the checkpoint `name`, as `hf download` left it: revision main of the cache that
 * HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME says, or ~/.cache/huggingface.  FM_ENOENT, with the
 * command that fetches it, where it is not there; what fm_file_open says of a refs/main that cannot
 * be read.
 */
int fm_hfcache_find(char *path, size_t size, const char *name, struct fm_err *err);

/* Fail where a directory without config.json (`dir`) is something else that people give; else
 * `rc`, as *err has it. */
int fm_hfcache_explain_directory(int dir, int rc, struct fm_err *err);
/* The sentence for one without safetensors that we can read. */
int fm_hfcache_explain_weights(int dir, struct fm_err *err);

#endif
