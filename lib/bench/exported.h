/*
 * The quality of an exported directory of any layout, read by the engine like any checkpoint; or of
 * an export that is not written, whose weights are made from the bundle in memory.  If the original
 * is available, this includes its loss, the divergence from it, and how often the most probable
 * tokens agree.
 */
#ifndef FM_EXPORTED_H
#define FM_EXPORTED_H

#include <stdbool.h>

#include "formats/file/digest.h"
#include "lib/export/exportoptions.h"
#include "lib/learn/quality.h"
#include "lib/masks/masks.h"
#include "lib/masks/spread.h"
#include "lib/run/run.h"

/* One member of the family: the directory's only one, or one of several in a directory with all
 * members. */
struct fm_bench_member {
    double budget;
    struct fm_quality quality; /* kl and agree: relative to the original, if `compared` */
    struct fm_spread spread;
    struct fm_spread_paired change, step; /* ce minus that of the original; of the member before */
};

/* The figures of a directory. */
struct fm_bench_export {
    const struct fm_layout *layout;
    char weights[16];               /* "keep", "bf16", a format; "": absent */
    uint64_t bytes;                 /* bytes of the weight files; if planned, of all files */
    bool planned;                   /* the export is not written, and the original is the bundle */
    char why[FM_ERR_TEXT_BYTES];    /* planned: why fm-pack would not write it; else "" */
    int sequences, T;               /* held-out sequences, and tokens of each */
    struct fm_kinds kinds;          /* kinds of the held-out text */
    char digest[FM_DIGEST_HEX];     /* digest of the ids of the held-out tokens */
    const char *precision;          /* of the computation: "f32" */
    bool compared;                  /* kl, agree and `original` are set */
    int members, start;             /* number of measured members; index of the initial one */
    struct fm_bench_member *member; /* (members), in order of budget */
    struct fm_quality original;     /* only ce and positions */
    struct fm_spread original_spread;
    struct fm_spread_sums sums; /* model i is member i; then the original */
    uint64_t tokens, values; /* number of tokens measured; upper bound, in bytes, of the memory for
                                the values of all of them */
};

/* True if `path` is a directory with fm-export.json. */
bool fm_bench_is_export(const char *path);

/* The original of exported directories, which is opened and computed once for all of them.  Zero it
 * before the first measurement, and release it after the last. */
struct fm_bench_original {
    struct fm_model *model;
    struct fm_quality_original measured;
    const char *first; /* the directory that was measured first */
    int T;             /* tokens per sequence, and digest of all ids */
    char digest[FM_DIGEST_HEX];
};

void fm_bench_original_release(struct fm_bench_original *original);

/*
 * Measure run->inputs.stream, an exported directory, and run->inputs.model, the original (or NULL),
 * on the tokens of fm_bench_held; if `estimate` is not NULL, everything is opened but nothing is
 * measured.  With `planned` (else NULL), run->inputs.stream is a bundle, which is the original, and
 * what fm-pack would export from it with these options is measured; if it would refuse them,
 * result->why is set.  For a layout that contains all members, measure the members nearest to
 * `budgets`, as fm_bench_quality does, and the default member; FM_EUSAGE if budgets are given for
 * any other layout.  FM_ECONFIG if the original has a different vocabulary, or the directory other
 * tokens than the first one that was measured with this original, because then the losses are not
 * comparable.  Release the result even after a failure.
 */
int fm_bench_exported(const struct fm_run_options *run, const struct fm_decimals *budgets,
                      const struct fm_export_options *planned, struct fm_bench_original *original,
                      struct fm_estimate *estimate, struct fm_bench_export *result,
                      struct fm_err *err);
void fm_bench_exported_release(struct fm_bench_export *result);

/* Set plan (n), released by the caller, to the exports of a bundle in each of the formats
 * "bf16,fp8" of `weights` at the budgets of fm_bench_choose. */
int fm_bench_plan(struct fm_export_options **plan, int *n, const char *bundle,
                  const struct fm_decimals *budgets, const char *weights,
                  const struct fm_layout *layout, struct fm_err *err);

#endif
