/*
 * Output shared by several tools: sizes, the estimate of a --dry-run, a family's held-out loss by
 * budget.
 */
#ifndef FM_SHOW_H
#define FM_SHOW_H

#include "cmd/cli.h"
#include "cmd/result.h"
#include "lib/family/extra.h"
#include "lib/learn/estimate.h"
#include "lib/masks/masks.h"

/* A result, described once as text and as JSON (cmd/result.h). */
struct fm_shown {
    const struct fm_cli *cli;
    const char *kind; /* fm_result_begin */
    void (*describe)(const struct fm_result *r, const void *self);
    const void *self;
    const struct fm_estimate *cost; /* with --dry-run, the cost of a measurement; or NULL */
};

/* Print a struct fm_shown.  A run calls it before its output gets its final name (struct
 * fm_announce). */
int fm_show(void *shown, struct fm_err *err);

/* A run of fm-rank, fm-train or fm-recover, whose result is printed before the output gets its
 * final name. */
struct fm_show_run {
    struct fm_run_options run;
    struct fm_estimate estimate, *dry; /* dry: NULL without --dry-run */
    struct fm_shown shown;
};

/* A row about the tensors that the decoder does not use (lib/family/extra.h), if there are any. */
void fm_show_extra(const struct fm_result *r, const struct fm_extra *extra, const char *what);

/* For a quantised checkpoint (`storage` is "fp8" or similar; NULL or "": not quantised, and nothing
 * is printed): bytes as stored, and of the same weights in bundles and exports. */
void fm_show_stored(const struct fm_result *r, const char *storage, uint64_t stored,
                    uint64_t written);

/* Before the run: check the output. */
int fm_show_begin(struct fm_show_run *s, const struct fm_cli *cli,
                  void (*describe)(const struct fm_result *r, const void *report),
                  const void *report, struct fm_err *err);
/* After the run, which returned rc: with --dry-run print the estimate.  Returns the status. */
int fm_show_end(struct fm_show_run *s, int rc, struct fm_err *err);

/*
 * The masks of a family.  In the text, a line "held out CE 1.8341 at 0.000, 1.8466 at 0.200, ..."
 * of those nearest to budgets 0, 0.2, ..., 0.8; with `after` (masks->count), also the figures with
 * what was made, "1.8890 -> 1.8712 at 0.400"; and a line for each kind of held-out text.  In the
 * JSON, "budgets" has an object per mask, with "quality" and, with `after`, "recovered".
 */
void fm_show_family(const struct fm_result *r, const struct fm_masks *masks,
                    const struct fm_quality *after, const char *made);

#endif
