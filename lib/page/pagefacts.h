/*
 * What a page says of the bundle itself.
 */
#ifndef FM_PAGEFACTS_H
#define FM_PAGEFACTS_H

#include <stdint.h>

#include <cjson/cJSON.h>

#include "lib/base/err.h"
#include "lib/export/list.h"
#include "lib/stage/ranking.h"

/* A family that is open, and all that is read of it.  Zeroed is fine for release. */
struct fm_pagefacts {
    struct fm_opened opened;
    struct fm_list list;
    struct fm_ranking ranking;
    uint64_t source; /* bytes of the checkpoint's weight files */
};

int fm_pagefacts_open(struct fm_pagefacts *f, const char *path, struct fm_err *err);
void fm_pagefacts_release(struct fm_pagefacts *f);

/* The last part of a path, which is all that a page says of where a file was. */
const char *fm_pagefacts_name(const char *path);

/* Bytes of all tensors of a ragged export with so many channels removed. */
uint64_t fm_pagefacts_bytes(const struct fm_pagefacts *f, uint64_t removed);

/* Members of a page's data: what the model is, what a server keeps of `context` tokens and which
 * cards there are, the forms of exports, and `shown` (n) members in each. */
void fm_pagefacts_model(cJSON *data, const struct fm_pagefacts *f, const char *path,
                        uint64_t context);
void fm_pagefacts_budgets(cJSON *data, const struct fm_pagefacts *f, const int *shown, int n);
/* "tokens" (M E) of each expert, and the places in it of those that saw too few, and none. */
void fm_pagefacts_tokens(cJSON *data, const struct fm_pagefacts *f);
/* The history and the checkpoint, as the manifest has them; null where that is longer than `limit`.
 * FM_ENOMEM. */
int fm_pagefacts_history(cJSON *data, const struct fm_pagefacts *f, size_t limit,
                         struct fm_err *err);

#endif
