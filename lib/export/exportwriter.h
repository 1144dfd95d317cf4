/*
 * Writing an export that is planned: as a directory, or as a tar stream of it.
 */
#ifndef FM_EXPORTWRITER_H
#define FM_EXPORTWRITER_H

#include "lib/export/plan.h"
#include "lib/run/run.h"

/* All files of the plan: as the new directory run->outputs.path, whole or not at all, or where that
 * is
 * "-" as a tar stream on standard output.  run gives threads, force, progress and stop too. */
int fm_exportwriter_write(const struct fm_exportplan *plan, const struct fm_run_options *run,
                          struct fm_err *err);

/* Bytes of the plan and of buffers at the peak, of a directory or of a stream. */
uint64_t fm_exportwriter_memory(const struct fm_exportplan *plan, bool stream);

#endif
