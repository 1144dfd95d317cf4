/*
 * What fm-recover can train or solve.  Each is one descriptor in its own file in lib/methods, and
 * one row of the list below; lib/learn/tune.h takes the steps of those that are trained, and the
 * values are a struct fm_adapter.
 */
#ifndef FM_RECOVERY_H
#define FM_RECOVERY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/engine/adapter.h"
#include "lib/engine/sweep.h"
#include "lib/masks/masks.h"
#include "lib/stage/lorafile.h"

struct fm_recovery;
struct fm_task;

/* Limits of the options; the library and the command line refuse values outside them. */
#define FM_RECOVER_STEPS_MAX 10000000
#define FM_RECOVER_LR_MIN 1e-12
#define FM_RECOVER_LR_MAX 1

enum fm_recover_strategy {
    FM_RECOVER_SINGLE, /* one mask, teacher without adapter */
    FM_RECOVER_CROSS   /* sandwich rule: full model, smallest mask, random masks between */
};

struct fm_recover_options {
    struct fm_decimal budget; /* the mask is chosen as in lib/masks/masks.h, fm_masks_choose; den 0:
                                 the mask nearest to 0.40, even if the family ends before it */
    const struct fm_recovery *train;
    enum fm_recover_strategy strategy;
    int rank;     /* 16; rank and alpha apply to adapters of experts */
    double alpha; /* 32: the adapter is multiplied by alpha / rank.  The tools have no option for
                     it: with AdamW its effect is that of lr */
    int steps;    /* 200 */
    double lr;    /* of AdamW, 1e-4.  On a small trained model, over three seeds, 1e-4 lowers
                     the held-out loss at budgets 0.2, 0.4 and 0.6; 3e-4 raises it at 0.2,
                     where the adapter overfits the calibration text */
    /* Constants without an option. */
    double w_task, w_kl; /* weights of the cross-entropy and of the divergence from the full model:
                            that of the descriptor, and 1 */
    double beta1, beta2, eps, decay; /* AdamW: 0.9 0.999 1e-8 0 */
    int middle;                      /* random masks of a cross step: 2 */
    double balance_eps; /* cross: a subnet's weight is |L_full| / (|L_sub| + eps): 1e-6 */
};

/* A recovery in closed form, while it is computed. */
struct fm_solving {
    struct fm_task *task;
    const struct fm_masks *family;
    int masks,
        mask[FM_LORAFILE_SERVED]; /* the masks that it serves, and the weights of their errors */
    double weight[FM_LORAFILE_SERVED];
    struct fm_adapter *adapter;
    uint64_t memory;                            /* for records */
    int64_t solved;                             /* layers, in order; the others are computed */
    int64_t least, most;                        /* rows of an expert, over all layers */
    int (*due)(void *self, struct fm_err *err); /* called after each layer */
    void *self;
};

/* Bytes that a run needs in addition to its sweeps: always, and in records, which can be in a file
 * instead. */
struct fm_recovery_memory {
    uint64_t fixed, record, records;
};

struct fm_recovery {
    const char *name; /* of --train, in manifests */
    double ridge;     /* of a closed form, in mean squared norms of a row */
    bool merges;      /* experts are computed with the adapter merged, which has --lora-rank */
    double w_task;    /* the usual weight of the cross-entropy at one mask */
    /* Number of values for one layer whose students keep `kept` channels, over all experts. */
    double (*floats)(const struct fm_config *config, const struct fm_recover_options *options,
                     double kept);
    /* In closed form, instead of the functions below: compute solving->adapter in one sweep; and
     * the memory for that, without the adapter. */
    int (*solve)(struct fm_solving *solving, struct fm_err *err);
    struct fm_recovery_memory (*memory)(const struct fm_task *task);
    /* Make an adapter for widths (M, E). */
    int (*init)(struct fm_adapter *adapter, const struct fm_config *config,
                const struct fm_recover_options *options, const uint32_t *widths,
                struct fm_err *err);
    /*
     * One of these; the other is NULL.  Add to `gradient` the gradient of the loss with respect to
     * the adapter's part for the view: of an expert, offset[i + 1] - offset[i] floats, laid out as
     * in a->values; of a layer's router, (E, H), then (E) if a->biased.  The view's weights include
     * the adapter; its lane may be narrower or wider than the adapter.
     */
    void (*expert)(const struct fm_adapter *a, const struct fm_ops *ops, float *gradient,
                   const struct fm_expert_view *view);
    void (*router)(const struct fm_adapter *a, const struct fm_ops *ops, float *gradient,
                   const struct fm_router_view *view);
};

/* The list, in the order of --help: a row NAME for each, whose file defines fm_recovery_NAME.  The
 * first is the default, which manifests do not record. */
/* clang-format off */
#define FM_RECOVERY_ROWS(ROW) \
    ROW(experts)              \
    ROW(router)               \
    ROW(down)
/* clang-format on */

#define FM_RECOVERY_DECLARE(name) extern const struct fm_recovery fm_recovery_##name;
FM_RECOVERY_ROWS(FM_RECOVERY_DECLARE)

/* All of them, in the order of the list; the last is NULL. */
extern const struct fm_recovery *const fm_recoveries[];

#endif
