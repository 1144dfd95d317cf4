/*
 * Gradients of the loss with respect to prefix masks (fm-method(7)).  The visitor computes c[j] =
 * sum over tokens of h[t,j] dh[t,j], before any mask is applied.  For each expert and action a it
 * keeps dz_a = sum over j < k_a of c[j] and, with `squares`, the sum of c[j]^2 over the channels
 * between actions a - 1 and a.
 */
#ifndef FM_MASKGRAD_H
#define FM_MASKGRAD_H

#include <stdbool.h>

#include "lib/engine/reduction.h"
#include "lib/masks/actions.h"

struct fm_maskgrad {
    const struct fm_ops *ops;
    const struct fm_actions *actions;
    int M, E;
    int parts; /* arrays of A values per expert: dz; with squares a second one */
    int students;
    double *total; /* (students, M, E, parts, A): student 0 is lane 1; lane 0 is the teacher */
    struct fm_reduction reduction; /* of the total */
    double *slot;                  /* (slots, E, parts, A) */
};

/* For runs of this sweep with a teacher in lane 0, followed by `students` lanes. */
int fm_maskgrad_init(struct fm_maskgrad *g, const struct fm_ops *ops,
                     const struct fm_actions *actions, const struct fm_config *config, int students,
                     const struct fm_sweep *sweep, bool squares, struct fm_err *err);
void fm_maskgrad_release(struct fm_maskgrad *g); /* zeroed struct is fine */

/* Start a run of `batches` micro-batches; it fills the total on every rank. */
void fm_maskgrad_begin(struct fm_maskgrad *g, int batches);

/* The visitor; it borrows g. */
struct fm_visitor fm_maskgrad_visitor(struct fm_maskgrad *g);

#endif
