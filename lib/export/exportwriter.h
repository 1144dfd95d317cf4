/*
 * Writes a planned export as a directory or as a tar stream.
 */
#ifndef FM_EXPORTWRITER_H
#define FM_EXPORTWRITER_H

#include "lib/export/exportplan.h"
#include "lib/run/run.h"

/* Write all files of the plan: as the new directory run->outputs.path, whole or not at all, or,
 * if that is "-", as a tar stream on standard output.  Also uses threads, force, progress and
 * stop of run. */
int fm_exportwriter_write(const struct fm_exportplan *plan, const struct fm_run_options *run,
                          struct fm_err *err);

/* Peak bytes of the plan and buffers, for a directory or for a stream. */
uint64_t fm_exportwriter_memory(const struct fm_exportplan *plan, bool stream);

#endif
