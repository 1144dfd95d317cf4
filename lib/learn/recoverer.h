/*
 * A run of fm-recover, for the descriptors of lib/learn/recover.h.  What else one needs is in
 * `own`, which its begin allocates and fm_recover frees.
 */
#ifndef FM_RECOVERER_H
#define FM_RECOVERER_H

#include "lib/learn/recover.h"
#include "lib/learn/runner.h"
#include "lib/stage/budgets.h"

struct fm_recoverer {
    struct fm_runner runner; /* runner.taken: steps, or layers that are solved */
    struct fm_task task;
    const struct fm_recover_options *options;
    const struct fm_recovery *train; /* of the options */
    struct fm_decimal budget;
    struct fm_budgets budgets; /* of the stream; empty in a dry run without one */
    int mask;                  /* of these, the one to recover at; -1: those served */
    struct fm_recover_served served;
    uint64_t memory;            /* bytes for records, from begin on */
    struct fm_adapter *adapter; /* in `own` */
    void *own;
    double *before, *after; /* (masks, FM_QUALITY_VALUES) */
    struct fm_recover_report *report;
};

struct fm_recoverer_size {
    uint64_t all, layer; /* bytes of the adapter, and of the largest layer's part */
    double kept;         /* mean share of the channels */
};

struct fm_recoverer_size fm_recoverer_size(const struct fm_recoverer *r);

#endif
