/*
 * Work that a tool does once, after it has opened its communicator: check that all ranks run the
 * same program, distribute standard input, and divide the CPUs of a machine among its ranks.
 */
#ifndef FM_RANKS_H
#define FM_RANKS_H

#include <stdbool.h>

#include "lib/run/run.h"

/*
 * Call after fm_comm_open; does nothing in a single process.  Ranks of one machine that may all use
 * the same CPUs get a share each, unless run->machine.threads is set; rank 0 warns if its launcher
 * left it less than its share.  `streams`: rank 0 reads standard input to its end, and every rank
 * gets it as a file.  FM_ECONFIG if programs differ.
 */
int fm_ranks_begin(const struct fm_run_options *run, bool streams, struct fm_err *err);

/* True if the run reads standard input: its stage stream if `stage`, or a text. */
bool fm_ranks_streams(const struct fm_inputs *inputs, bool stage);

#endif
