/* Gradients of adapters and routers (fm-method(7)), for recovery and its tests. */
#ifndef FM_LORAGRAD_H
#define FM_LORAGRAD_H

#include "lib/engine/adapter.h"
#include "lib/engine/sweep.h"

/*
 * Add to `gradient` the gradient of the loss with respect to the adapter of (view->layer,
 * view->expert), laid out like that expert's part of a->values (offset[i + 1] - offset[i] floats).
 * The view's weights include the adapter; its lane may be narrower or wider than the adapter.
 */
void fm_loragrad_add(const struct fm_adapter *a, const struct fm_ops *ops, float *gradient,
                     const struct fm_expert_view *view);

/* As fm_loragrad_add, for a router and its view; `gradient` holds one layer: (E, H), then (E) if
 * a->biased. */
void fm_loragrad_add_router(const struct fm_adapter *a, const struct fm_ops *ops, float *gradient,
                            const struct fm_router_view *view);

#endif
