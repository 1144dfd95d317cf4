/*
 * The granularity says which experts share one width: none, those of a layer, or all.  The experts
 * of a group are contiguous in every (M, E) array.
 *
 * The loss, cost and score of a group are the sums over its experts, because a change of the shared
 * width changes all of them (fm-method(7)).
 */
#ifndef FM_GRANULARITY_H
#define FM_GRANULARITY_H

#include <stddef.h>
#include <stdint.h>

enum fm_granularity { FM_PER_EXPERT, FM_PER_LAYER, FM_PER_MODEL, FM_GRANULARITIES };

/* "expert", "layer", "model". */
const char *fm_granularity_name(enum fm_granularity granularity);

/* Number of experts in a group, for `layers` layers of `experts` each. */
int fm_granularity_size(enum fm_granularity granularity, int layers, int experts);

/* y (n / size, A) = sums of x (n, A) over groups; y may be x. */
void fm_granularity_sum(double *y, const double *x, size_t n, int size, int A);

/* Expand: every expert gets its group's width, from the n / size widths at the beginning of
 * widths (n). */
void fm_granularity_spread(uint32_t *widths, size_t n, int size);
/* The inverse: move the width of each group's first expert to the beginning. */
void fm_granularity_gather(uint32_t *widths, size_t n, int size);

#endif
