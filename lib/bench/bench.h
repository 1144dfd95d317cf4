/*
 * This room, lib/bench, has the measurements of fm-bench: the quality of a family (bench_quality;
 * exported for an exported directory), loops in generated texts, and one clipped layer compared
 * with its baselines (kernelbench, kernelcase, kernelnaive.c, processor and shapes).  plot draws
 * charts. Only cmd includes this room.
 *
 * Results are structs; fm-bench prints them.
 */
#ifndef FM_BENCH_H
#define FM_BENCH_H

#include <stdint.h>

#include "lib/data/calib.h"
#include "lib/learn/estimate.h"
#include "lib/learn/quality.h"
#include "lib/masks/masks.h"
#include "lib/run/run.h"

/* --- quality: held-out loss per budget, compared with masks that cost nothing to make --- */

enum fm_bench_kind { FM_BENCH_FAMILY, FM_BENCH_UNIFORM, FM_BENCH_LAYER, FM_BENCH_GLOBAL };
#define FM_BENCH_KINDS 4

/* The reference of KL and agreement: the checkpoint, or budget 0 of the bundle, with the bundle's
 * adapter if it has one. */
enum fm_bench_reference { FM_BENCH_ORIGINAL, FM_BENCH_BUNDLE };

/*
 * Open the tokens to measure on, which are all tokens of `held` but the first of each sequence: the
 * evaluation tokens or text of run->inputs, else the last sequences of its calibration data, whose
 * others are then in `train` (fm_quality_open).  Close both even after a failure; they are zeroed
 * by the caller.
 */
int fm_bench_held(struct fm_calib *train, struct fm_calib *held, const struct fm_run_options *run,
                  const struct fm_config *config, struct fm_err *err);
/* Number of tokens that are predicted. */
uint64_t fm_bench_tokens(const struct fm_calib *held);
/* Upper bound of the memory for the values of each position, in bytes, when this many masks are
 * measured. */
uint64_t fm_bench_values(const struct fm_calib *held, int masks);

struct fm_bench_row {
    int mask;                                  /* index in the family */
    double budget[FM_BENCH_KINDS];             /* actually removed; uniform may remove less */
    uint64_t bytes[FM_BENCH_KINDS];            /* of all tensors in a ragged export */
    struct fm_quality quality[FM_BENCH_KINDS]; /* family, uniform, shuffle-layer, shuffle-global */
    struct fm_spread spread[FM_BENCH_KINDS];
    /* ce of the family minus that of the full model, and of controls minus that of the family. */
    struct fm_spread_paired change[FM_BENCH_KINDS];
    struct fm_spread_paired step; /* ce of the family minus that in the row before */
};

struct fm_bench_quality {
    int rows, sequences, T;
    uint64_t tokens, values; /* number of positions measured; upper bound, in bytes, of the memory
                                for the values of all of them */
    struct fm_bench_row *row;
    struct fm_kinds kinds; /* kinds of the held-out text */
    enum fm_bench_reference reference;
};

/* The default budgets: tenths. */
extern const struct fm_decimals fm_bench_tenths;

/* Set mask (n) to the masks nearest to `budgets`, as below; released by the caller. */
int fm_bench_choose(int **mask, int *n, const struct fm_masks *masks,
                    const struct fm_decimals *budgets, struct fm_err *err);

/* "family", "uniform", "shuffle-layer", "shuffle-global". */
const char *fm_bench_kind_name(enum fm_bench_kind kind);

/*
 * Measure run->inputs.stream: a bundle, or a stage stream with masks and run->inputs.model.  The
 * tokens are those of fm_bench_held.  budgets: NULL for tenths; the nearest
 * masks are measured.  The shuffles are drawn from run->inputs.seed.  With an `estimate` (else
 * NULL), the rows are chosen and the estimate is filled, but nothing is measured.  FM_EUSAGE if
 * run's memory is too small.  Release the result even after a failure.
 */
int fm_bench_quality(const struct fm_run_options *run, const struct fm_decimals *budgets,
                     struct fm_estimate *estimate, struct fm_bench_quality *result,
                     struct fm_err *err);
void fm_bench_quality_release(struct fm_bench_quality *result);

#endif
