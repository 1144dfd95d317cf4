/*
 * The quality of an exported directory of any layout, read by the engine like any checkpoint.  If
 * the original is available, its loss, the divergence from it, and how often both find the same
 * token most probable. lib/export/record.h says what is measured, and writes it into the directory.
 */
#ifndef FM_EXPORTED_H
#define FM_EXPORTED_H

#include <stdbool.h>

#include "lib/bench/convention.h"
#include "lib/export/record.h"
#include "lib/run/run.h"

/* True if `path` is a directory with fm-export.json. */
bool fm_bench_is_export(const char *path);

/*
 * Measure run->inputs.stream, an exported directory, and run->inputs.model, the original (or NULL),
 * on run->inputs.eval_tokens or the like, by how->convention; with an `estimate` (else NULL)
 * everything is opened and nothing measured.  With how->kl_base that file takes the place of the
 * original: FM_EUSAGE if both are given. how->kl_base_out is written from the original: FM_EUSAGE
 * without one.  Of a layout with all members, measure those nearest to `budgets`, as in
 * fm_bench_quality, and the default member; FM_EUSAGE for budgets with another layout.  FM_ECONFIG
 * if the original has another vocabulary, because then the losses are not comparable.  Release in
 * any case.
 */
int fm_bench_exported(const struct fm_run_options *run, const char *budgets,
                      const struct fm_bench_how *how, struct fm_estimate *estimate,
                      struct fm_record *result, struct fm_err *err);
void fm_bench_exported_release(struct fm_record *result);

#endif
