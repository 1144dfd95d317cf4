/*
 * fm-rank: channel scores and the order they give (fm-method(7)).
 *
 * By default a score is the mean over calibration batches of the sum over a channel's parameters of
 * (theta dL/dtheta)^2, squared per parameter and batch; lib/learn/criterion.h has other criteria.
 * Batches are summed in order, in double, so the result does not depend on threads, memory or
 * interruptions.
 */
#ifndef FM_RANK_H
#define FM_RANK_H

#include <stdint.h>

#include "formats/tensor/carry.h"
#include "lib/learn/criterion.h"
#include "lib/learn/estimate.h"
#include "lib/run/run.h"
#include "lib/stage/ranking.h"

enum fm_rank_order {
    FM_ORDER_SCORE,   /* highest score first, ties to the lower channel */
    FM_ORDER_ORIGINAL /* order of the file, to measure the benefit of ranking */
};

struct fm_rank_options {
    enum fm_rank_order order;
    const struct fm_criterion *criterion; /* taylor */
    bool keep_extra; /* also rank the layer for multi-token prediction, by the loss of its own
                        prediction, of the token after the next one */
    int group; /* channels that are ranked together, a divisor of I; 0: the smallest that keeps
                  codes, or 1 */
    const char *carry[FM_CARRY_PATTERNS_MAX + 1]; /* --carry PATTERN, NULL after the last */
};

/* Experts that got no or few calibration tokens. */
struct fm_coverage {
    int unreached;         /* experts without tokens; their scores are zero */
    int32_t *unreached_at; /* (unreached, 2): layer and expert of each */
    int64_t *tokens;       /* (M, E): tokens of each expert */
    int starved;           /* experts with some tokens, but less than 1 / (10 E) of their layer's */
};

struct fm_rank_report {
    const struct fm_criterion *criterion;
    int group;
    int L, M, E, I, T;
    int16_t moe[FM_LAYERS_MAX]; /* (M) the layers with experts */
    int sequences, batches;     /* number used; batches are complete */
    int dropped;                /* sequences at the end that do not fill a batch */
    int held_out; /* sequences at the end, held out for measuring (lib/learn/quality.h) */
    double ce;    /* mean loss of the full model over the batches */
    bool ahead;   /* layer L, for multi-token prediction, was ranked as well; then its mean loss,
                     and its experts without tokens */
    double ahead_ce;
    int ahead_unreached;
    struct fm_coverage coverage; /* tokens per expert */
    int blended;                 /* rankings that were blended (blend.c); 0: it was computed */
    int resumed;                 /* number of batches restored from the state file */
    double seconds;
};

void fm_rank_defaults(struct fm_rank_options *options);
void fm_rank_report_release(struct fm_rank_report *report); /* zeroed struct is fine */

/*
 * Score run->inputs.model on run->inputs.tokens (run->inputs.batch sequences per batch, 0: 1) and
 * write the stage stream to run->outputs.path.  run->inputs.stream is not read.  FM_EFORMAT if a
 * value is not finite; the message says where.  FM_ESAVED when stopped with run->outputs.state. The
 * caller zeroes *report, and releases it even after an error.  If `dry` is not NULL, only that is
 * filled, and `report` is not used: --dry-run.
 */
int fm_rank(const struct fm_run_options *run, const struct fm_rank_options *options,
            struct fm_estimate *dry, struct fm_rank_report *report, struct fm_err *err);

/* List the experts without tokens and count those with few, and warn about them; moe (M) has their
 * layers. */
int fm_rank_cover(struct fm_coverage *coverage, const struct fm_ranking *ranking,
                  const int16_t *moe, const struct fm_run_options *run, struct fm_err *err);

/*
 * Blend the streams `from`, at most FM_INPUTS_MAX, and write the stream to run->outputs.path.
 * FM_ECONFIG, naming the difference, if they are not rankings of the same model with the same
 * options.  The caller zeroes *report, and releases it even after an error.  Of several ranks, the
 * first one does it.
 */
int fm_blend(const struct fm_run_options *run, const struct fm_source *from,
             struct fm_rank_report *report, struct fm_err *err);

#endif
