/* Finds the place of a tensor in a checkpoint directory by name, for tests. */
#ifndef FM_TESTS_TENSORS_H
#define FM_TESTS_TENSORS_H

#include <string.h>

#include "formats/tensor/hfdir.h"

/* NULL if no shard has it; *shard becomes the shard, unless shard is NULL. */
static const struct fm_tensor *find_tensor(const struct fm_hfdir *dir, const char *name,
                                           const struct fm_shard **shard)
{
    for (size_t i = 0; i < dir->places; i++) {
        const struct fm_place *p = &dir->place[i];
        if (strcmp(p->tensor->name, name) != 0)
            continue;
        if (shard)
            *shard = p->shard;
        return p->tensor;
    }
    return NULL;
}

#endif
