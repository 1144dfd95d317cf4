/*
 * What a tool does once, as soon as it has ranks: the same program on all of them, standard input
 * for all, the threads of a machine divided among those that share it.
 */
#ifndef FM_RANKS_H
#define FM_RANKS_H

#include <stdbool.h>

#include "lib/run/run.h"

/*
 * After fm_comm_open; nothing where alone.  Ranks of one machine that may all use the same CPUs get
 * a part each, unless run->machine.threads says how many threads they have; rank 0 warns where its
 * launcher left it less than its part.  `streams`: standard input is read by rank 0, to its end,
 * and lies before every rank as a file.  FM_ECONFIG where programs differ.
 */
int fm_ranks_begin(const struct fm_run_options *run, bool streams, struct fm_err *err);

/* The run reads standard input: its stage stream where `stage`, or a text. */
bool fm_ranks_streams(const struct fm_run_options *run, bool stage);

#endif
