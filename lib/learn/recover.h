/*
 * fm-recover: train low-rank adapters of the experts, or the routers, or solve the experts' down
 * projections in closed form, on one mask of the family or, with strategy cross, on several, for
 * use with all of its masks (fm-method(7)).  Of trained adapters: the ranked weights stay frozen.
 * With a single mask, channels beyond it are not changed.
 *
 * What can be recovered is a list of descriptors, each in its own file in lib/methods and one row
 * of the list below.  The values of each are a struct fm_adapter.
 */
#ifndef FM_RECOVER_H
#define FM_RECOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/engine/adapter.h"
#include "lib/engine/sweep.h"
#include "lib/learn/estimate.h"
#include "lib/masks/masks.h"
#include "lib/run/run.h"
#include "lib/stage/lorafile.h"

struct cJSON;
struct fm_journal_item;
struct fm_recoverer;
struct fm_recovery;
struct fm_text;

/* Limits of the options; the command line refuses values outside them. */
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
    int steps;    /* 60 */
    double lr;    /* of AdamW, 3e-4 */
    /* Constants without an option. */
    double w_task, w_kl; /* weights of the cross-entropy and of the divergence from the full model:
                            that of the descriptor, and 1 */
    double beta1, beta2, eps, decay; /* AdamW: 0.9 0.999 1e-8 0 */
    int middle;                      /* random masks of a cross step: 2 */
    double balance_eps; /* cross: a subnet's weight is |L_full| / (|L_sub| + eps): 1e-6 */
};

/* The masks for which a closed form was solved. */
struct fm_recover_served {
    int masks; /* 0: training, at one mask or at all */
    int mask[FM_LORAFILE_SERVED];
    double weight[FM_LORAFILE_SERVED]; /* of the masks' errors */
    int64_t least, most;               /* rows of an expert, over all layers */
};

struct fm_recover_report {
    const struct fm_recovery *train;
    struct fm_masks masks;        /* with the figures before recovery */
    struct fm_quality *after;     /* (masks.count) on merged, rounded weights */
    int mask;                     /* the mask that was recovered; -1: those served */
    int steps, resumed;           /* layers, if they were solved */
    double loss_first, loss_last; /* of the first and the last step; they are of different text, so
                                     their difference does not measure progress */
    struct fm_recover_served served;
    double seconds, seconds_step;
};

/* Bytes that a run needs in addition to its sweeps: always; in records, which can be in a file
 * instead; and in a state file, beside the adapter. */
struct fm_recovery_memory {
    uint64_t fixed, record, records, state;
};

/* The functions of a run; those marked so may be NULL. */
struct fm_recovery_run {
    void (*open)(struct fm_recoverer *r); /* choose masks and runner.steps; may be NULL */
    struct fm_recovery_memory (*memory)(const struct fm_recoverer *r);
    /* Add the sweeps of all steps within `memory` bytes. */
    void (*plan)(struct fm_estimate *estimate, const struct fm_recoverer *r, uint64_t memory);
    /* Print the options that determine the result. */
    void (*params)(const struct fm_recoverer *r, struct fm_text *text);
    int (*begin)(struct fm_recoverer *r, struct fm_err *err); /* make r->adapter */
    /* List the arrays of the state beside the adapter and the qualities. */
    void (*save)(struct fm_journal_item *item, size_t *items, struct fm_recoverer *r);
    int (*collect)(struct fm_recoverer *r, struct fm_err *err); /* before a save; may be NULL */
    int (*step)(struct fm_recoverer *r, struct fm_err *err);
    void (*finish)(struct fm_recoverer *r); /* free what only steps need; may be NULL */
    /* Add to the history's options and result. */
    void (*record)(struct cJSON *options, const struct fm_recoverer *r);
    void (*result)(struct cJSON *result, const struct fm_recoverer *r);
    void (*release)(struct fm_recoverer *r); /* free what r->own has */
    const char *failed; /* the reason if the recovered weights have a loss that is not finite */
};

struct fm_recovery {
    const char *name;                  /* of --train, in manifests */
    const char *made;                  /* "adapter": what is made, for people */
    bool trains;                       /* in steps, and has the options of training */
    bool merges;                       /* experts are computed with the adapter merged */
    double w_task;                     /* the usual weight of the cross-entropy at one mask */
    const struct fm_recovery_run *run; /* fm_tuning (lib/learn/tune.h) if it trains */
    /* Bytes for one layer whose students keep `kept` channels, over all experts. */
    double (*bytes)(const struct fm_recoverer *r, double kept);

    /* ---- if it trains ---- */

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

void fm_recover_defaults(struct fm_recover_options *options, const struct fm_recovery *train);
void fm_recover_report_release(struct fm_recover_report *report); /* zeroed struct is fine */

/*
 * Read the stage stream run->inputs.stream (ranking and masks), train, measure again every mask
 * that has figures, and write the stream with the adapter to run->outputs.path.  A step trains on
 * run->inputs.batch sequences (0: 8).  An adapter that the stream already has is replaced.  Errors
 * and `dry` as for fm_train.
 */
int fm_recover(const struct fm_run_options *run, const struct fm_recover_options *options,
               struct fm_estimate *dry, struct fm_recover_report *report, struct fm_err *err);

/* Whether the checkpoint in the directory `model` has quantised experts, which merging an adapter
 * would write as BF16; false if it cannot be read. */
bool fm_recover_loses_codes(const char *model);

#endif
