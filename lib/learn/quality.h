/*
 * The quality of masks: cross-entropy, divergence from the full model and agreement of the most
 * probable token, on held-out sequences, for many masks at once by forward sweeps.  The full model
 * without an adapter is the teacher lane.
 */
#ifndef FM_QUALITY_H
#define FM_QUALITY_H

#include "lib/data/calib.h"
#include "lib/engine/adapter.h"
#include "lib/learn/estimate.h"
#include "lib/masks/masks.h"
#include "lib/masks/spread.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

/* The values kept for each token, in addition to the means. */
struct fm_quality_detail {
    struct fm_spread *spread; /* (masks), filled in; relative to the reference; or NULL */
    /* Filled in, or NULL: model i is mask i, model `masks` the reference if there is one.  Release
     * it even after a failure. */
    struct fm_spread_sums *sums;
};

/* Bytes for the values of `tokens` tokens while `masks` masks, at most fm_quality_group, and their
 * reference are measured: 16 per token and mask, plus 56 per token. */
uint64_t fm_quality_detail_bytes(uint64_t tokens, int masks);

/*
 * A measurement in parts of the held-out sequences, between which it can be saved.  A part is a
 * sweep of whole leaves (lib/engine/sweep.h), so the figures are those of a whole measurement.
 */
struct fm_quality_parts {
    struct fm_measure *measure; /* (micro-batches, 1 + masks), the full model first */
    int done;                   /* micro-batches whose measures are known: 0, or as it was saved */
    int (*took)(void *self, struct fm_err *err); /* called after each part but the last */
    void *self;
};

/* Number of micro-batches of the held-out sequences; and that of a part, while `masks` masks are
 * measured by `ranks` ranks: enough tokens that reading the weights again takes little time. */
int fm_quality_batches(const struct fm_calib *held);
int fm_quality_part(const struct fm_calib *held, int masks, int ranks);

/*
 * A different model to compare with, which must have the same vocabulary size.  The first
 * measurement computes its outputs and keeps them; further ones, on the same tokens and with the
 * same detail, use these.  Release it before the model.
 */
struct fm_quality_original {
    struct fm_model *model;
    bool planned;              /* fm_quality_plan has counted its cost */
    struct fm_sweep *sweep;    /* its outputs; NULL before the first measurement */
    struct fm_quality quality; /* its own ce and positions, set by the measurement */
    struct fm_spread spread;   /* spread of the values of its tokens, set if there is a detail */
};

void fm_quality_original_release(struct fm_quality_original *original);

/* What is measured.  The models must already use their ops, and have their channels in the order
 * to which the widths apply. */
struct fm_quality_subject {
    struct fm_model *model;
    const struct fm_calib *held; /* every sequence; their ids are held in memory */
    int masks;
    const uint32_t *widths; /* (masks, M, E), or NULL: the model itself */
    const float *closed; /* (masks, M, E): 0, or FM_PASS_CLOSED (lib/block/pass.h) for experts that
                            get no tokens; or NULL */
    /* kl and agree compare with this, which is measured first and shares the run's memory; NULL:
     * with the full model; `uncompared`: with nothing, and they are 0. */
    struct fm_quality_original *original;
    bool uncompared;
    /* With an adapter every mask is measured on the merged weights as they will be stored: rounded
     * to the model's dtype.  Or NULL. */
    const struct fm_adapter *adapter;
    const struct fm_quality_detail *detail; /* or NULL, as it must be if there are ranks */
    struct fm_quality_parts *parts;         /* or NULL; then masks is at most fm_quality_group */
    double kept; /* for the estimate: mean share of the channels that the masks keep */
};

/* Set quality (masks).  The figures do not depend on which masks are measured together.  run
 * provides memory and stop (FM_ESAVED). */
int fm_quality_measure(struct fm_quality *quality, const struct fm_quality_subject *subject,
                       const struct fm_run_options *run, struct fm_err *err);

/* Estimate the cost of the measurement, and set how many layers stay in memory
 * (fm_estimate_fit). */
void fm_quality_plan(struct fm_estimate *estimate, struct fm_quality_subject *subject,
                     const struct fm_run_options *run);

/* Number of masks that one sweep measures within `memory` bytes, for everything.  Pass a long list
 * in pieces of this size, so that state can be saved between them. */
int fm_quality_group(const struct fm_model *model, const struct fm_calib *held, uint64_t memory);

/* Qualities in a state file: values (masks, FM_QUALITY_VALUES), zeros for masks that are not
 * measured. */
#define FM_QUALITY_VALUES (4 + FM_KINDS_MAX)
void fm_quality_pack(double *values, int mask, const struct fm_quality *quality);
struct fm_quality fm_quality_unpack(const double *values, int mask, bool recovered);

/* The names of the kinds of text in `held`; none if it is a single text. */
void fm_quality_kinds(struct fm_kinds *kinds, const struct fm_calib *held);

/*
 * How much ranking and training measure on by default: a share of 1/8 of the calibration tokens,
 * but at least 8,192 and at most FM_EVAL_TOKENS; without --eval-tokens or --eval-text at most 16
 * sequences, and at least 2.  The 17 members from 0 to 0.80 and the full model then cost less than
 * the ranking of 65,536 or more tokens, which is a forward and a backward pass: 0.65 of its matrix
 * products for SmolLM2-135M in four experts.
 */
#define FM_QUALITY_SHARE 8
#define FM_QUALITY_TOKENS 8192
#define FM_QUALITY_SEQUENCES 16

/* Sequences to hold out of `sequences` of T tokens. */
int fm_quality_held_out(int sequences, int T);

/*
 * Open the sequences to work on and those to measure on: all of run->inputs.tokens, and
 * run->inputs.eval_tokens or eval_texts if these are given; otherwise run->inputs.tokens without
 * its last fm_quality_held_out sequences, and those.
 */
int fm_quality_open(struct fm_calib *train, struct fm_calib *held, const struct fm_run_options *run,
                    const struct fm_config *config, struct fm_err *err);

#endif
