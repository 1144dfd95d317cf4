/*
 * Gradients of the loss with respect to prefix masks (fm-method(7)).  The visitor computes c[j] =
 * sum over tokens of h[t,j] dh[t,j], before any mask is applied.  For each expert and action a it
 * keeps dz_a = sum over j < k_a of c[j], or the sum of c[j]^2 over the channels between actions
 * a - 1 and a, or both.
 */
#ifndef FM_MASKGRAD_H
#define FM_MASKGRAD_H

#include <stdbool.h>

#include "lib/engine/reduction.h"
#include "lib/masks/actions.h"

enum fm_mask_sums { FM_SUMS_DZ, FM_SUMS_SQUARES, FM_SUMS_BOTH };

struct fm_maskgrad {
    const struct fm_ops *ops;
    const struct fm_actions *actions;
    int M, E;
    enum fm_mask_sums sums;
    int parts; /* arrays of A values per expert: 2 for both sums, dz first */
    int students;
    double *total; /* (students, M, E, parts, A): student 0 is lane 1; lane 0 is the teacher */
    struct fm_reduction reduction; /* of the total */
    double *slot;                  /* (slots, E, parts, A) */
};

/* For runs of this sweep with a teacher in lane 0, followed by `students` lanes. */
int fm_maskgrad_init(struct fm_maskgrad *g, const struct fm_ops *ops,
                     const struct fm_actions *actions, const struct fm_config *config, int students,
                     const struct fm_sweep *sweep, enum fm_mask_sums sums, struct fm_err *err);
void fm_maskgrad_release(struct fm_maskgrad *g); /* zeroed struct is fine */

/* Start a run of `batches` micro-batches; it fills the total on every rank. */
void fm_maskgrad_begin(struct fm_maskgrad *g, int batches);

/* The visitor; it borrows g. */
struct fm_visitor fm_maskgrad_visitor(struct fm_maskgrad *g);

#endif
