/*
 * Interleaves several inputs of sequences by weight, in the same order on every machine.
 *
 * Sequence i of a mixture comes from the input that is furthest below its share: the one with the
 * largest w (i + 1) - W taken, where w is its weight, W the sum of all weights, and `taken` counts
 * its sequences among the first i; ties go to the earlier input.  Weights are whole millionths, so
 * this is integer arithmetic, and in any prefix of the mixture the inputs are in proportion (two
 * inputs: to within one sequence).  The mixture ends before the first sequence whose input is
 * used up.
 */
#ifndef FM_MIXTURE_H
#define FM_MIXTURE_H

#include <stdint.h>

#include "lib/run/run.h"

struct fm_mixture {
    int inputs;
    uint64_t weight[FM_INPUTS_MAX]; /* millionths, above 0 */
    uint64_t all[FM_INPUTS_MAX];    /* number of sequences of each input */
    uint64_t taken[FM_INPUTS_MAX];  /* 0 at the start */
};

/* The input of the next sequence, which is counted as taken; -1: the mixture has ended. */
int fm_mixture_next(struct fm_mixture *m);

#endif
