/* The results of fm-bench. */
#ifndef FM_RESULTS_H
#define FM_RESULTS_H

#include "cmd/result.h"
#include "lib/bench/bench.h"
#include "lib/bench/exported.h"
#include "lib/bench/kernelbench.h"
#include "lib/bench/loops.h"
#include "lib/baseline/baseline.h"

/* Functions for struct fm_shown; `self` is a pointer to the struct named in each comment. */

void fm_results_quality(const struct fm_result *r, const void *self);  /* fm_bench_quality */
void fm_results_exported(const struct fm_result *r, const void *self); /* fm_bench_export */
/* A Markdown table as in tests/measure/RESULTS.md. */
void fm_results_kernels(const struct fm_result *r, const void *self); /* fm_kernelbench */
/* Losses of baselines at equal bytes, and the cost of computing their masks. */
void fm_results_baselines(const struct fm_result *r, const void *self); /* fm_baseline_table */

/* n exports, at most FM_RESULTS_COMPARED_MAX, sorted by bytes; name (n) are the paths of
 * directories, NULL for exports that are only planned. */
#define FM_RESULTS_COMPARED_MAX 48
struct fm_results_exports {
    const struct fm_bench_export *export;
    char *const *name;
    int n;
};
void fm_results_compared(const struct fm_result *r, const void *self); /* fm_results_exports */

/* Loops in n files of generated texts. */
struct fm_results_texts {
    const struct fm_loops *loops; /* (n) */
    char *const *path;            /* (n) */
    int n;
};
void fm_results_loops(const struct fm_result *r, const void *self); /* fm_results_texts */

/* As SVG files: the loss of the family and its controls by budget, speed-ups by budget, the loss of
 * baselines by share of experts. */
int fm_results_quality_plot(const struct fm_bench_quality *q, const char *path, bool force,
                            struct fm_err *err);
int fm_results_kernels_plot(const struct fm_kernelbench *b, const char *path, bool force,
                            struct fm_err *err);
int fm_results_baselines_plot(const struct fm_baseline_table *t, const char *path, bool force,
                              struct fm_err *err);

#endif
