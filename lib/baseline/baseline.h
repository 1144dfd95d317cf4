/*
 * This room, lib/baseline: measures rules that remove whole experts, for comparison with a family's
 * masks on the same tokens (fm-bench quality).  It may include all other rooms of lib, and only cmd
 * includes it.  In reading order: this header; expertdrop (the rules); baseline.c (measuring all of
 * them).
 *
 * A budget is a number of experts in every layer, k of E.
 */
#ifndef FM_BASELINE_H
#define FM_BASELINE_H

#include <stdint.h>

#include "lib/masks/masks.h"
#include "lib/run/run.h"

/* The same number of experts is removed in every layer; the router chooses among the rest. */
enum fm_baseline {
    FM_BASELINE_REAP,      /* lowest mean of router weight times norm of the output */
    FM_BASELINE_FREQUENCY, /* fewest tokens */
    FM_BASELINE_RANDOM,    /* mean of FM_BASELINE_DRAWS draws */
    FM_BASELINES
};

#define FM_BASELINE_DRAWS 5
#define FM_BASELINE_BUDGETS_MAX 64

/* "reap", "frequency", "random" */
const char *fm_baseline_name(enum fm_baseline baseline);

struct fm_baseline_cell {
    double budget; /* share of experts removed */
    struct fm_quality quality;
};

struct fm_baseline_row {
    enum fm_baseline baseline;
    bool measured;   /* seconds and memory are valid; false for random */
    double seconds;  /* of calibration */
    uint64_t memory; /* peak bytes of the process during calibration; 0: unknown */
    struct fm_baseline_cell cell[FM_BASELINE_BUDGETS_MAX];
};

struct fm_baseline_table {
    int budgets, sequences, T;
    int experts;                   /* E */
    uint64_t bytes, bytes_experts; /* of all tensors, and of the experts' channels among them */
    int dropped[FM_BASELINE_BUDGETS_MAX]; /* (budgets) experts removed per layer, ascending */
    struct fm_quality full;               /* positions 0: only a plan, nothing was measured */
    struct fm_baseline_row row[FM_BASELINES];
};

/*
 * Calibrate every baseline on run->inputs.tokens and measure all on run->inputs.eval_tokens or
 * run->inputs.eval_texts, which no baseline uses.  `budgets` are rounded to the
 * nearest number of experts; NULL: five, except those that the router does not allow.  With `plan`,
 * only they are chosen.  FM_EUSAGE for budgets that the router does not allow.  The measured
 * quality does not depend on the number of threads or the memory limit.
 */
int fm_baseline_run(const struct fm_run_options *run, const struct fm_decimals *budgets, bool plan,
                    struct fm_baseline_table *table, struct fm_err *err);

#endif
