/*
 * The quality of an exported directory, of whatever layout: as its files have it, read by the
 * engine as any checkpoint is; beside the original, where that is at hand, its loss, the divergence
 * from it, and how often both find the same token most probable.  lib/export/record.h says what is
 * measured, and writes it into the directory.
 */
#ifndef FM_EXPORTED_H
#define FM_EXPORTED_H

#include <stdbool.h>

#include "lib/bench/convention.h"
#include "lib/export/record.h"
#include "lib/run/run.h"

/* Whether `path` is a directory with fm-export.json. */
bool fm_bench_is_export(const char *path);

/*
 * Measure run->inputs.stream, an exported directory, and run->inputs.model, the original (or NULL),
 * on run->inputs.eval_tokens or the like, by how->convention; with `dry_run` all is opened and
 * nothing measured.  With how->kl_base that file is the original, and FM_EUSAGE if there is
 * another; how->kl_base_out is written from the original, and FM_EUSAGE if there is none.  Of a
 * layout with all members those nearest to `budgets`, as fm_bench_quality takes them, and the one
 * that it starts with; FM_EUSAGE for budgets of another layout.  FM_ECONFIG where the original has
 * another vocabulary, since then the losses are of other things.  Release in any case.
 */
int fm_bench_exported(const struct fm_run_options *run, const char *budgets,
                      const struct fm_bench_how *how, bool dry_run, struct fm_record *result,
                      struct fm_err *err);
void fm_bench_exported_release(struct fm_record *result);

#endif
