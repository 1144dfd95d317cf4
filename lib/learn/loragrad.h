/* Gradients of adapters (fm-method(7)), for recovery and its tests. */
#ifndef FM_LORAGRAD_H
#define FM_LORAGRAD_H

#include "lib/engine/adapter.h"
#include "lib/engine/sweep.h"

/*
 * Adds to `gradient`, laid out as the parts of one expert are in `values` (offset[i + 1] -
 * offset[i] floats), the loss's gradient at the adapter of (view->layer, view->expert).  The
 * view's weights hold the merged adapter; its lane may be narrower than the adapter, or wider.
 */
void fm_loragrad_add(const struct fm_adapter *a, const struct fm_ops *ops, float *gradient,
                     const struct fm_expert_view *view);

#endif
