/*
 * Interleaving several sources of sequences by weight, the same way everywhere.
 *
 * Sequence i of a mixture comes from the source that is furthest behind its share: the one with
 * the largest w (i + 1) - W taken, where w is its weight, W the sum of all weights, and `taken`
 * counts its sequences among the first i; the earlier source where two are equal.  Weights are
 * whole millionths, so this is integer arithmetic, and any beginning of the mixture holds every
 * source in proportion, to within one sequence for two sources.  The mixture ends before the
 * first sequence whose source has none left.
 */
#ifndef FM_MIXTURE_H
#define FM_MIXTURE_H

#include <stdint.h>

#include "lib/run/run.h"

struct fm_mixture {
    int sources;
    uint64_t weight[FM_SOURCES_MAX]; /* millionths, above 0 */
    uint64_t all[FM_SOURCES_MAX];    /* sequences that each source has */
    uint64_t taken[FM_SOURCES_MAX];  /* 0 at the start */
};

/* The source of the next sequence, counted as taken; -1: the mixture is over. */
int fm_mixture_next(struct fm_mixture *m);

#endif
