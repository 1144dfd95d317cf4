/*
 * The family of masks: one width per expert at every budget, the action set they are
 * drawn from, and what was measured of each.  In a stream it is masks.zst with "actions" and
 * "budgets" of the manifest.
 */
#ifndef FM_BUDGETS_H
#define FM_BUDGETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "formats/bundle.h"
#include "lib/base/err.h"
#include "lib/model.h"

#define FM_BUDGETS_MAX 10000
#define FM_ACTIONS_MAX 4096
#define FM_RATIO_BYTES 24  /* a ratio as the user wrote it, with its NUL */
#define FM_METHOD_BYTES 24 /* "shuffle-global" */

/* Means over held-out positions, natural logarithm. */
struct fm_quality {
    double ce, kl; /* kl to the full model, both per position */
    double agree;  /* share of positions with the teacher's most probable token */
    int64_t positions;
    bool recovered; /* measured on the merged weights, after fm-recover */
};

struct fm_budget {
    uint64_t removed; /* channels removed, of L E I */
    double budget;    /* removed / (L E I) */
    char method[FM_METHOD_BYTES];
    int64_t step;
    uint32_t width_min, width_max;
    double width_mean;
    uint64_t bytes; /* of the export's weights, ragged layout */
    uint64_t params, params_active;
    struct fm_quality quality; /* ce, kl NaN where not measured */
};

struct fm_budgets {
    int L, E, I;
    int A, multiple;
    char (*ratio)[FM_RATIO_BYTES]; /* (A) */
    uint32_t *action;              /* (A) widths, strictly increasing */
    int B;
    uint32_t *widths;         /* (B, L, E) */
    struct fm_budget *budget; /* (B), removed strictly increasing */
};

/* Zeroed arrays of these sizes; release takes a zeroed struct too. */
int fm_budgets_init(struct fm_budgets *f, int L, int E, int I, int A, int B, struct fm_err *err);
void fm_budgets_release(struct fm_budgets *f);

/* Fill what follows from the widths of budget b: removed, budget, width_*, params*, bytes.
 * full_bytes: all tensors of the checkpoint; `dtype` is that of the experts. */
void fm_budgets_summarise(struct fm_budgets *f, int b, const struct fm_config *config,
                          uint64_t full_bytes, enum fm_dtype dtype);

/* Put "actions" and "budgets" into a manifest (where they are, or at its end) and make the bytes of
 * masks.zst; free() *frame. */
int fm_budgets_pack(const struct fm_budgets *f, cJSON *manifest, void **frame, size_t *size,
                    struct fm_err *err);

/*
 * Read them from a stream.  FM_EFORMAT, naming budget, layer and expert, where a width is not in
 * the action set, the widths of a budget do not add up to its "removed", budgets do not strictly
 * increase, or a summary is not that of its mask.
 */
int fm_budgets_open(struct fm_budgets *f, const struct fm_bundle *b, struct fm_err *err);

/* Index of the budget nearest to rho (ties: the smaller budget). */
int fm_budgets_nearest(const struct fm_budgets *f, double rho);

#endif
