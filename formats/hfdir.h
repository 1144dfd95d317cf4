/*
 * A Hugging Face checkpoint directory: config.json, one safetensors file or shards
 * with an index, and the files beside them that travel along.  And its writer.
 */
#ifndef FM_HFDIR_H
#define FM_HFDIR_H

#include <stddef.h>
#include <stdint.h>

#include "formats/file.h"
#include "formats/safetensors.h"
#include "lib/base/err.h"

struct fm_shard {
    char *name;
    struct fm_file file;
    struct fm_safetensors st;
};

struct fm_carried {
    char *name; /* single component, [A-Za-z0-9._-] */
    uint64_t size;
};

struct fm_hfdir {
    char *path;
    int fd;
    struct fm_shard *shard;
    size_t shards;
    char *config; /* text of config.json, NUL-terminated */
    size_t config_bytes;
    struct fm_carried *carried; /* sorted by name; config.json is among them */
    size_t carried_count;
};

/*
 * Open and cross-check: every tensor of the index in exactly that shard and back; shard names are
 * single components; no weight is read.  Carried: every regular file that is not a weight file
 * (safetensors, bin, pt, pth, gguf, onnx, index.json, consolidated.*), at most 64 files and 256 MiB
 * together.  Hidden files and directories stay behind.
 */
int fm_hfdir_open(struct fm_hfdir *dir, const char *path, struct fm_err *err);
void fm_hfdir_close(struct fm_hfdir *dir);

/* Where a tensor lies; NULL where no shard has it.  *shard gets the shard. */
const struct fm_tensor *fm_hfdir_find(const struct fm_hfdir *dir, const char *name,
                                      const struct fm_shard **shard);

/* Bytes of a carried file; free() *data. */
int fm_hfdir_carry(const struct fm_hfdir *dir, const struct fm_carried *c, char **data,
                   size_t *size, struct fm_err *err);

#endif
