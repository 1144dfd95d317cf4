/* Finds the place of a tensor in a checkpoint directory by name, for tests. */
#ifndef FM_TESTS_TENSORS_H
#define FM_TESTS_TENSORS_H

#include <string.h>

#include "formats/tensor/hfdir.h"

/* NULL if no shard has it; *shard becomes the shard, unless shard is NULL. */
static const struct fm_tensor *find_tensor(const struct fm_hfdir *dir, const char *name,
                                           const struct fm_shard **shard)
{
    for (size_t i = 0; i < dir->shards; i++) {
        const struct fm_tensor *found = fm_safetensors_find(&dir->shard[i].st, name);
        if (found && shard)
            *shard = &dir->shard[i];
        if (found)
            return found;
    }
    return NULL;
}

#endif
