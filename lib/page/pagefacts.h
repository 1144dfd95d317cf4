/*
 * The part of a page that comes from the bundle.
 */
#ifndef FM_PAGEFACTS_H
#define FM_PAGEFACTS_H

#include <stdint.h>

#include <cjson/cJSON.h>

#include "lib/base/err.h"
#include "lib/export/list.h"
#include "lib/stage/ranking.h"

/* An open family and everything read from it.  A zeroed struct may be released. */
struct fm_pagefacts {
    struct fm_opened opened;
    struct fm_list list;
    struct fm_ranking ranking;
    uint64_t source; /* bytes of the checkpoint's weight files */
};

int fm_pagefacts_open(struct fm_pagefacts *f, const char *path, struct fm_err *err);
void fm_pagefacts_release(struct fm_pagefacts *f);

/* The last component of a path, or "family.fm" for "-": the page does not reveal directories. */
const char *fm_pagefacts_name(const char *path);

/* Bytes of all tensors of a ragged export with this number of channels removed. */
uint64_t fm_pagefacts_bytes(const struct fm_pagefacts *f, uint64_t removed);

/* Add keys to a page's data: the model; and the forms of exports, with `shown` (n) members in each
 * form. */
void fm_pagefacts_model(cJSON *data, const struct fm_pagefacts *f, const char *path);
void fm_pagefacts_budgets(cJSON *data, const struct fm_pagefacts *f, const int *shown, int n);
/*
 * Add "actions", the possible widths of experts, and "masks", an array with one text for each of
 * the `shown` (n) masks.  A text encodes the difference from the mask before it (the first: from
 * the full mask), expert by expert and layer by layer.  A decimal number skips that many experts.
 * A letter is the index in "actions" of the next expert's width, A to Z and a to z being 0 to 51;
 * one of the twenty signs of FM_PAGEFACTS_SIGNS before it adds 52 times its own index, counted
 * from 1.
 */
#define FM_PAGEFACTS_SIGNS "-_.~+*/=!?$%^:;()[]|"
void fm_pagefacts_masks(cJSON *data, const struct fm_budgets *budgets, const int *shown, int n);
/* Add "tokens" (M E) of each expert, and the indices of experts that got too few tokens or none. */
void fm_pagefacts_tokens(cJSON *data, const struct fm_pagefacts *f);
/* Add the history and the checkpoint from the manifest; null if longer than `limit`.  FM_ENOMEM. */
int fm_pagefacts_history(cJSON *data, const struct fm_pagefacts *f, size_t limit,
                         struct fm_err *err);

#endif
