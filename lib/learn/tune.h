/*
 * Training of adapters (fm-method(7)).  A step is one sweep, which gives the adapter's gradients,
 * and an AdamW update.  The gradients and moments of each layer are a record in a store
 * (lib/state/store.h), which spills to a temporary file beyond --memory; the adapter itself stays
 * in memory.  Every rank has the whole adapter and the gradients and moments of its slice of each
 * layer; it updates that slice and receives the other slices from their owners.
 */
#ifndef FM_TUNE_H
#define FM_TUNE_H

#include "lib/engine/adapter.h"
#include "lib/engine/reduction.h"
#include "lib/learn/recoverer.h"
#include "lib/state/store.h"

struct fm_tune {
    struct fm_task *task; /* borrowed, as are options and masks */
    const struct fm_recover_options *options;
    const struct fm_masks *masks;
    int mask;        /* index of the mask to recover */
    int batch;       /* sequences in a step */
    uint64_t memory; /* bytes for moments and gradients of all layers */
    /* State. */
    struct fm_adapter adapter;
    struct fm_store moments; /* (M) records: m, v of a layer */
    int64_t taken;           /* steps */
    double loss_first, loss; /* of the first step and the last one */
    /* Scratch. */
    struct fm_store gradients;     /* (M) records */
    struct fm_reduction reduction; /* of the current layer's gradient */
    float *spare;                  /* record of moments */
    float *slot;                   /* (slots, floats of the largest layer) */
    size_t floats;                 /* of the largest layer's adapter */
    struct fm_sweep *sweep;
    int lanes;
    int32_t *ids;
};

/* The caller sets task, options, masks, mask, batch and memory; the run's seed initialises the
 * adapter. */
int fm_tune_init(struct fm_tune *tune, struct fm_err *err);
void fm_tune_release(struct fm_tune *tune); /* zeroed struct is fine */

/* Take one step.  After FM_ESAVED the state is unchanged. */
int fm_tune_step(struct fm_tune *tune, struct fm_err *err);

/* The run of a descriptor that trains. */
extern const struct fm_recovery_run fm_tuning;

#endif
