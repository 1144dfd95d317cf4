/*
 * What more than one tool prints: sizes, plans of --dry-run, a family's held-out loss in a line.
 */
#ifndef FM_SHOW_H
#define FM_SHOW_H

#include <stdio.h>

#include "cmd/cli.h"
#include "lib/family/extra.h"
#include "lib/learn/estimate.h"
#include "lib/masks/masks.h"
#include "lib/stage/uptodate.h"

/* What fm-rank, fm-train and fm-recover do with their options and report. */
struct fm_show_tool {
    const void *options;
    void *report;
    /* The estimate alone where there is one to fill. */
    int (*run)(const struct fm_run_options *run, const void *options, void *report,
               struct fm_estimate *estimate, struct fm_err *err);
    const struct fm_uptodate *uptodate; /* of the report */
    void (*text)(FILE *out, const void *report);
    cJSON *(*json)(const void *report);
};

/* A line "memory        1.5 GB  at the most"; `what` may be "". */
void fm_show_bytes(FILE *out, const char *name, uint64_t bytes, const char *what);

/* A line of what a bundle keeps of no decoder layer, nothing where that is nothing. */
void fm_show_extra(FILE *out, const struct fm_extra *extra, const char *what);

/* Of a checkpoint with a storage of its own ("fp8"; NULL or "": it has none, and nothing is said):
 * bytes as they are stored, and of the same weights in bundles and exports. */
void fm_show_stored(FILE *out, const char *storage, uint64_t stored, uint64_t written);
void fm_show_stored_json(cJSON *o, const char *storage, uint64_t stored, uint64_t written);

/* That an output is up to date, as the result. */
int fm_show_uptodate(const struct fm_cli *cli, const struct fm_uptodate *uptodate,
                     struct fm_err *err);

/* With --dry-run the estimate; else the output is checked and the tool runs.  Its result is printed
 * before the output has its name. */
int fm_show_tool(const struct fm_cli *cli, const struct fm_show_tool *tool, struct fm_err *err);

/* "CE 1.8341 at 0, 1.8466 at 0.20, ..." at the masks nearest to tenths of even number, as a line
 * of `out`; with `after` (family->count), which was measured with an adapter, "1.8890 -> 1.8712 at
 * 0.40"; and a line for each kind of held-out text. */
void fm_show_losses(FILE *out, const struct fm_masks *masks, const struct fm_quality *after);

/* {"ce", "kl", "agree", "positions", "recovered"}, and "kinds" where there are some; null where
 * nothing was measured.  kinds may be NULL. */
cJSON *fm_show_quality(const struct fm_quality *q, const struct fm_kinds *kinds);

/* An array: one object per mask, with "quality" and, with `after`, "recovered". */
cJSON *fm_show_family(const struct fm_masks *masks, const struct fm_quality *after);

#endif
