/*
 * How good a mask is: cross-entropy, divergence from the full model and agreement of the
 * most probable token, on held-out sequences, for many masks at once by sweeps that only
 * go forward.  The full model without adapter rides along as the teacher.
 */
#ifndef FM_QUALITY_H
#define FM_QUALITY_H

#include "lib/data/calib.h"
#include "lib/engine/adapter.h"
#include "lib/masks/masks.h"
#include "lib/masks/spread.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

/* Which tokens of a sequence count, and what is kept of each beside its share of the means. */
struct fm_quality_detail {
    int from;                 /* position of a sequence from which next tokens are measured */
    bool fronted;             /* the first id of every sequence gives way to `front` */
    int32_t front;            /* whatever the sequences have */
    struct fm_spread *spread; /* (masks), filled; compared with the full model or the original */
};

/* Bytes of memory that the values of so many tokens take while so many masks are measured beside
 * what they are compared with: 16 a token and mask, 56 a token.  A sweep has
 * fm_quality_group masks at the most. */
uint64_t fm_quality_detail_bytes(uint64_t tokens, int masks);

/*
 * quality (masks) of widths (masks, M, E) on every sequence of held; their ids are in memory
 * meanwhile, 4 bytes each.  detail is NULL where all next tokens count and nothing is kept of them,
 * as it has to be where there are ranks.
 * With an adapter every
 * mask is measured on the merged weights as they will be stored: rounded to the model's dtype.
 * The figures do not depend on which masks are measured together.  run gives memory
 * and stop (FM_ESAVED).  The model is already in the order that the masks cut.
 */
int fm_quality_measure(struct fm_quality *quality, struct fm_model *model, const struct fm_ops *ops,
                       const struct fm_calib *held, const struct fm_quality_detail *detail,
                       const uint32_t *widths, int masks, const struct fm_adapter *adapter,
                       const struct fm_run_options *run, struct fm_err *err);

/*
 * The same, without an adapter, of subnets some experts of which no token gets: closed (masks, M,
 * E) holds 0, or FM_PASS_CLOSED for those (lib/block/pass.h).
 */
int fm_quality_measure_closed(struct fm_quality *quality, struct fm_model *model,
                              const struct fm_ops *ops, const struct fm_calib *held,
                              const uint32_t *widths, const float *closed, int masks,
                              const struct fm_run_options *run, struct fm_err *err);

/* What a model is compared with: another one, which has as large a vocabulary. */
struct fm_quality_original {
    struct fm_model *model;
    const struct fm_ops *ops;
    struct fm_quality quality; /* its own ce and positions, once it was measured */
    struct fm_spread spread;   /* and of its tokens, with a detail */
};

/*
 * quality (masks) of a model cut to widths (masks, M, E), or of itself, masks 1, where these are
 * NULL.  With an original kl and agree compare with that one, which is measured first and shares
 * run's memory; with NULL they are 0.
 */
int fm_quality_compare(struct fm_quality *quality, struct fm_model *model, const struct fm_ops *ops,
                       const struct fm_calib *held, const struct fm_quality_detail *detail,
                       const uint32_t *widths, int masks, struct fm_quality_original *original,
                       const struct fm_run_options *run, struct fm_err *err);

/* Masks that one sweep measures within `memory` bytes: a long list is best given in pieces of
 * this many, so that state can be saved between. */
int fm_quality_group(const struct fm_config *config, const struct fm_calib *held, uint64_t memory);

/* The names of the kinds that held has sequences of; none where it is one text. */
void fm_quality_kinds(struct fm_kinds *kinds, const struct fm_calib *held);

/* Sequences that ranking and training keep aside for this without --eval-tokens or --eval-text. */
#define FM_QUALITY_SEQUENCES 16

/*
 * The sequences to work on and those to measure on: run->inputs.tokens without its last
 * FM_QUALITY_SEQUENCES and these, or all of run->inputs.tokens and run->inputs.eval_tokens or
 * eval_texts.
 */
int fm_quality_open(struct fm_calib *train, struct fm_calib *held, const struct fm_run_options *run,
                    const struct fm_config *config, struct fm_err *err);

#endif
