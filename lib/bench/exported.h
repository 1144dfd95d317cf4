/*
 * The quality of an exported directory of any layout, read by the engine like any checkpoint.  If
 * the original is available, this includes its loss, the divergence from it, and how often the most
 * probable tokens agree.  lib/export/record.h lists the figures and has the function that writes
 * them into the directory.
 */
#ifndef FM_EXPORTED_H
#define FM_EXPORTED_H

#include <stdbool.h>

#include "lib/export/record.h"
#include "lib/learn/quality.h"
#include "lib/run/run.h"

/* True if `path` is a directory with fm-export.json. */
bool fm_bench_is_export(const char *path);

/* The original of exported directories, which is opened and computed once for all of them.  Zero it
 * before the first measurement, and release it after the last. */
struct fm_bench_original {
    struct fm_model *model;
    struct fm_quality_original measured;
    bool planned;      /* its cost was estimated */
    const char *first; /* the directory that was measured first */
    int T;             /* tokens per sequence, and digest of all ids */
    char digest[FM_DIGEST_HEX];
};

void fm_bench_original_release(struct fm_bench_original *original);

/*
 * Measure run->inputs.stream, an exported directory, and run->inputs.model, the original (or NULL),
 * on the tokens of fm_bench_held; if `estimate` is not NULL, everything is opened but nothing is
 * measured.  For a layout that contains all members, measure the members nearest to `budgets`, as
 * fm_bench_quality does, and the default member; FM_EUSAGE if budgets are given for any other
 * layout.  FM_ECONFIG if the original has a different vocabulary, or the directory other tokens
 * than the first one that was measured with this original, because then the losses are not
 * comparable.  Release the result even after a failure.
 */
int fm_bench_exported(const struct fm_run_options *run, const char *budgets,
                      struct fm_bench_original *original, struct fm_estimate *estimate,
                      struct fm_record *result, struct fm_err *err);
void fm_bench_exported_release(struct fm_record *result);

#endif
