/*
 * The family of masks in a stream: masks.zst has the widths; "actions" and "budgets" of the
 * manifest have the set of widths, the size of each mask, and its measured quality.
 */
#ifndef FM_BUDGETS_H
#define FM_BUDGETS_H

#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "formats/bundle/bundle.h"
#include "lib/base/err.h"
#include "lib/masks/actions.h"
#include "lib/masks/masks.h"
#include "lib/model/model.h"

#define FM_BUDGETS_MAX 10000

/* Values that follow from the widths of one mask. */
struct fm_budget {
    double budget; /* removed / (M E I) */
    uint32_t width_min, width_max;
    double width_mean;
    uint64_t bytes; /* of all tensors of a ragged export except extra ones, as values */
    uint64_t params, params_active;
};

struct fm_budgets {
    struct fm_actions actions;
    struct fm_masks masks;    /* masks with removed, method, step, quality; widths (B, M, E) */
    struct fm_budget *budget; /* (B), from the manifest; what follows from widths was checked */
};

/*
 * Set "actions" and "budgets" of a manifest, replacing older ones, and make the bytes of masks.zst;
 * free() *frame. `full_bytes` is the size of all tensors of the full model
 * (fm_stage_tensor_bytes), and `dtype` that of its experts.  A quality with positions == 0 becomes
 * null.
 */
int fm_budgets_pack(const struct fm_masks *masks, const struct fm_actions *actions,
                    const struct fm_config *config, uint64_t full_bytes, enum fm_dtype dtype,
                    cJSON *manifest, void **frame, size_t *size, struct fm_err *err);

/* {"ce", "kl", "agree", "positions", "recovered"}, and "kinds" if there are several; null if
 * nothing was measured. kinds may be NULL. */
cJSON *fm_budgets_quality(const struct fm_quality *q, const struct fm_kinds *kinds);

/* Add the key "kinds" of a quality, losses by name; nothing if kinds is NULL or empty. */
void fm_budgets_add_kinds(cJSON *quality, const struct fm_kinds *kinds, const double *kind);

/*
 * Read a family from a stream and check its digest.  FM_EFORMAT, naming budget, layer and expert,
 * if a width is not in the action set, the widths of a budget do not add up to its "removed",
 * budgets do not strictly increase, or a summary does not match its mask.
 */
int fm_budgets_open(struct fm_budgets *f, const struct fm_bundle *b, struct fm_err *err);

/* Receives the faults for fm-verify, which reports every fault of every budget, not only the
 * first. */
struct fm_budgets_notes {
    void (*found)(void *self, int budget, const char *what);
    void *self;
    int count; /* number of calls */
};
/* Like fm_budgets_open; if notes->count is not 0 afterwards, the notes have the reasons and err is
 * empty. */
int fm_budgets_examine(struct fm_budgets *f, const struct fm_bundle *b,
                       struct fm_budgets_notes *notes, struct fm_err *err);
void fm_budgets_release(struct fm_budgets *f); /* zeroed struct is fine */

/* A width at which a segment of checksums ends: those of the actions and then, from i =
 * actions.count on, that of the uniform export at each budget. */
uint32_t fm_budgets_bound(const struct fm_budgets *f, int i);

#endif
