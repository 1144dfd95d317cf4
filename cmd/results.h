/* The results of fm-bench as tables and JSON. */
#ifndef FM_RESULTS_H
#define FM_RESULTS_H

#include <stdio.h>

#include <cjson/cJSON.h>

#include "lib/bench/bench.h"
#include "lib/bench/exported.h"
#include "lib/bench/kernelbench.h"
#include "lib/bench/loops.h"
#include "lib/baseline/baseline.h"

void fm_results_quality(FILE *out, const struct fm_bench_quality *q);
cJSON *fm_results_quality_json(const struct fm_bench_quality *q);

/* The loss of the family and its controls by budget, as an SVG file. */
int fm_results_quality_plot(const struct fm_bench_quality *q, const char *path, bool force,
                            struct fm_err *err);

/* For an exported directory. */
void fm_results_exported(FILE *out, const struct fm_bench_export *e);
cJSON *fm_results_exported_json(const struct fm_bench_export *e);
/* For n exports, at most FM_RESULTS_COMPARED_MAX, sorted by bytes; name (n) are the paths of
 * directories, NULL for exports that are only planned. */
#define FM_RESULTS_COMPARED_MAX 48
void fm_results_compared(FILE *out, const struct fm_bench_export *e, char *const *name, int n);
cJSON *fm_results_compared_json(const struct fm_bench_export *e, char *const *name, int n);

/* A Markdown table as in tests/measure/RESULTS.md; the speed-ups by budget as an SVG file. */
void fm_results_kernels(FILE *out, const struct fm_kernelbench *b);
cJSON *fm_results_kernels_json(const struct fm_kernelbench *b);
int fm_results_kernels_plot(const struct fm_kernelbench *b, const char *path, bool force,
                            struct fm_err *err);

/* Losses of baselines at equal bytes, and the cost of computing their masks. */
void fm_results_baselines(FILE *out, const struct fm_baseline_table *t);
cJSON *fm_results_baselines_json(const struct fm_baseline_table *t);
int fm_results_baselines_plot(const struct fm_baseline_table *t, const char *path, bool force,
                              struct fm_err *err);

/* Loops in n files of generated texts. */
void fm_results_loops(FILE *out, const struct fm_loops *l, char *const *path, int n);
cJSON *fm_results_loops_json(const struct fm_loops *l, char *const *path, int n);

#endif
