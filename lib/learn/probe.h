/*
 * One sweep that measures the gradients of masks' channels (fm-method(7)).  The full model is the
 * teacher lane; the loss is the divergence from it.
 */
#ifndef FM_PROBE_H
#define FM_PROBE_H

#include "lib/learn/maskgrad.h"
#include "lib/learn/task.h"

/* The sequences: `count` of the task's endless stream (fm_task_draw), from `at` on. */
struct fm_probe {
    struct fm_task *task;
    int count;
    uint64_t at;
};

/* Initialise grad, and set grad->total to the mean over sequences of their sums, for the masks in
 * widths (masks, M, E).  The caller zeroes grad, and releases it even after an error. */
int fm_probe_gradients(const struct fm_probe *probe, const struct fm_actions *actions,
                       const uint32_t *widths, int masks, struct fm_maskgrad *grad,
                       struct fm_err *err);

#endif
