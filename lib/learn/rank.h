/*
 * fm-rank: channel scores and the order they give (fm-method(7)).
 *
 * A score is the mean over calibration batches of the sum over a channel's parameters of
 * (theta dL/dtheta)^2, the square taken per parameter and batch, or what another criterion says.
 * Batches are summed in order, in double, so neither threads nor memory nor an interruption changes
 * a byte.
 */
#ifndef FM_RANK_H
#define FM_RANK_H

#include <stdint.h>

#include "formats/tensor/carry.h"
#include "lib/learn/criterion.h"
#include "lib/learn/estimate.h"
#include "lib/run/run.h"
#include "lib/stage/uptodate.h"

enum fm_rank_order {
    FM_ORDER_SCORE,   /* highest score first, ties to the lower channel */
    FM_ORDER_ORIGINAL /* as the file has them: shows what ranking is worth */
};

struct fm_rank_options {
    enum fm_rank_order order;
    enum fm_criterion criterion; /* taylor */
    int group; /* channels that are ranked together, which divides I; 0: what keeps codes, or 1 */
    const char *carry[FM_CARRY_PATTERNS_MAX + 1]; /* --carry PATTERN, NULL behind the last */
};

/* Experts that calibration tokens did not reach, or hardly. */
struct fm_coverage {
    int unreached;         /* experts that no token reached; their scores are zero */
    int32_t *unreached_at; /* (unreached, 2): layer and expert of each */
    int64_t *tokens;       /* (M, E): tokens that each expert saw */
    int starved;           /* experts that saw some, but under 1 / (10 E) of their layer's */
};

struct fm_rank_report {
    enum fm_criterion criterion;
    int group;
    int L, M, E, I, T;
    int16_t moe[FM_LAYERS_MAX];  /* (M) layers of experts among the L */
    int sequences, batches;      /* used: whole batches */
    int dropped;                 /* sequences at the end that fill no batch */
    int held_out;                /* at the end, kept to measure on (lib/learn/quality.h) */
    double ce;                   /* mean loss of the full model on them */
    struct fm_coverage coverage; /* which experts the tokens reached */
    int resumed;                 /* batches that came from the state file */
    double seconds;
    struct fm_uptodate uptodate; /* of --if-changed; where it is, nothing else is filled in */
};

void fm_rank_defaults(struct fm_rank_options *options);
void fm_rank_report_release(struct fm_rank_report *report); /* zeroed struct is fine */

/*
 * Score run->inputs.model on run->inputs.tokens (run->inputs.batch sequences per batch, 0: 1) and
 * write the stage stream to run->outputs.path.  run->inputs.stream is not read.  FM_EFORMAT where
 * something is not finite, with layer and tensor; FM_ESAVED when stopped with run->outputs.state.
 * *report is zeroed by the caller and released in any case.
 */
int fm_rank(const struct fm_run_options *run, const struct fm_rank_options *options,
            struct fm_rank_report *report, struct fm_err *err);

/* --dry-run. */
int fm_rank_estimate(const struct fm_run_options *run, const struct fm_rank_options *options,
                     struct fm_estimate *estimate, struct fm_err *err);

#endif
