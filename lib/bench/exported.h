/*
 * The quality of an exported directory, of whatever layout: as its files have it, read by the
 * engine as any checkpoint is; beside the original, where that is at hand, its loss, the divergence
 * from it, and how often both find the same token most probable.  What was measured can be written
 * into the directory: fm-export.json gets "measured", the model card a section and a model-index,
 * and .eval_results/ an entry where the tokens are of a benchmark of the hub.  fm-verify(1) leaves
 * these out of what must be the bundle's.
 */
#ifndef FM_EXPORTED_H
#define FM_EXPORTED_H

#include <stdbool.h>

#include "formats/file/digest.h"
#include "lib/masks/masks.h"
#include "lib/run/run.h"

struct fm_bench_member {
    double budget;
    struct fm_quality quality; /* kl and agree: of the original, where there is one */
};

struct fm_bench_exported {
    char layout[16];
    int sequences, T;           /* held out */
    char digest[FM_DIGEST_HEX]; /* of their ids */
    const char *precision;      /* "f32" */
    bool whole;                 /* the layout has all members */
    bool compared;              /* there is an original */
    int members, start;         /* measured, by rising budget; the one that it starts with, which of
                                   other layouts is the only one */
    struct fm_bench_member *member;
    struct fm_quality original; /* ce and positions alone */
};

/* Whether `path` is a directory with fm-export.json. */
bool fm_bench_is_export(const char *path);

/*
 * Measure run->inputs.stream, an exported directory, and run->inputs.model, the original (or NULL),
 * on run->inputs.eval_tokens or the like; with `dry_run` all is opened and nothing measured.  Of a
 * layout with all members those nearest to `budgets`, as fm_bench_quality takes them, and the one
 * that it starts with; FM_EUSAGE for budgets of another layout.  FM_ECONFIG where the original has
 * another vocabulary, since then the losses are of other things.  Release in any case.
 */
int fm_bench_exported(const struct fm_run_options *run, const char *budgets, bool dry_run,
                      struct fm_bench_exported *result, struct fm_err *err);
void fm_bench_exported_release(struct fm_bench_exported *result);

/* Write the figures into the directory run->inputs.stream, in the place of those that an earlier
 * call wrote there, and of nothing else; each file appears whole, and fm-export.json last.  A
 * directory without a card gets none. */
int fm_bench_record(const struct fm_run_options *run, const struct fm_bench_exported *result,
                    struct fm_err *err);

/*
 * Of what the hub calls a benchmark: a data set whose eval.yaml lists tasks, and whose leaderboard
 * collects the entries that models have of them in .eval_results/.  Only its owner's eval.yaml says
 * what a task's score is, and that these tokens are its text only the user knows.
 */
struct fm_bench_benchmark {
    char dataset[128], task[64]; /* "" : none */
    bool perplexity;             /* the score; else the cross-entropy */
};

/* "ORG/NAME:TASK"; FM_EUSAGE for what cannot be one. */
int fm_bench_benchmark_parse(struct fm_bench_benchmark *b, const char *text, struct fm_err *err);

/* Write .eval_results/fm-TASK.yaml into the directory, in the place of an older one. */
int fm_bench_benchmark_record(const char *directory, const struct fm_bench_benchmark *b,
                              const struct fm_bench_exported *result, struct fm_err *err);

#endif
