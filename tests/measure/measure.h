/* The options of measure-engine, which is built by `make tests` and not installed. */
#ifndef FM_MEASURE_H
#define FM_MEASURE_H

#include <stdbool.h>

#include "lib/run/run.h"

struct measure_options {
    const char *shape, *dtype, *precision, *dir;  /* dir: for data; NULL: TMPDIR or /var/tmp */
    int layers, sequences, steps, recover, batch; /* layers 0: those of the shape */
    int memory, threads;                          /* MB, 0: half of the free memory; 0: all CPUs */
    bool keep;
};

/* Parse the command line into *o, which has the defaults.  Prepare *run and start the pool.  A
 * wrong option ends the process with status 2. */
void measure_begin(struct measure_options *o, struct fm_run_options *run, int argc, char **argv);

/* Stop the pool; print the error, if any; return the exit status. */
int measure_end(const struct fm_err *err);

#endif
