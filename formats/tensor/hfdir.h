/*
 * A Hugging Face checkpoint directory: config.json, one safetensors file or shards with an index,
 * and the carried files.
 */
#ifndef FM_HFDIR_H
#define FM_HFDIR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "formats/file/carried.h"
#include "formats/file/file.h"
#include "formats/tensor/safetensors.h"
#include "lib/base/err.h"

#define FM_SHARDS_MAX 4096
#define FM_INDEX_BYTES_MAX ((size_t)32 << 20)
#define FM_CONFIG_BYTES_MAX ((size_t)16 << 20)

struct fm_shard {
    char *name;
    struct fm_file file;
    struct fm_safetensors st;
    char *renamed; /* names of tensors, if not those in the file (formats/quant/gptq.c), or NULL */
};

struct fm_carried {
    char *name; /* fm_carried_refuse returns NULL for it */
    uint64_t size;
    char *text; /* its bytes, read once, and a NUL */
};

/* The files that tools read here and that are carried, too; fm_hfdir_open notes their states. */
#define FM_HFDIR_READ 4
extern const char *const fm_hfdir_read[FM_HFDIR_READ];

struct fm_hfdir {
    char *path;
    int fd;
    struct fm_shard *shard; /* sorted by name */
    size_t shards;
    char *config; /* text of config.json, NUL-terminated */
    size_t config_bytes;
    struct fm_carried *carried; /* sorted by name; empty before fm_carry_list */
    size_t carried_count;
    /* Sorted names of what is not carried, except weights and hidden files; a directory's ends with
     * '/'.  At most FM_CARRIED_MAX; left_more: how many more there are. */
    char *left[FM_CARRIED_MAX];
    size_t left_count, left_more;
    struct stat read[FM_HFDIR_READ]; /* state at open of fm_hfdir_read; zero: not there */
};

/*
 * Open and cross-check: every tensor of the index is in exactly the shard that it names, and every
 * tensor of a shard is in the index; shard names are single components ending in .safetensors; no
 * two shards are one file; no weight is read.  Links to regular files are followed, as Hugging Face
 * caches require.  metadata.total_size is ignored.  A model.safetensors beside an index that does
 * not name it is FM_ECONFIG, because it is not known which of the two is the model (transformers
 * takes the single file).
 *
 * formats/tensor/carry.h has the rule for carried files.
 *
 * FM_ENOENT (no directory, config or weights), FM_EPERM, FM_EFORMAT, FM_ECONFIG.
 */
int fm_hfdir_open(struct fm_hfdir *dir, const char *path, struct fm_err *err);
void fm_hfdir_close(struct fm_hfdir *dir);

#endif
