/*
 * This room, lib/baseline: compares the suite's masks with those of other pruners, for the same
 * model, tokens and size.  It may include all other rooms of lib, and only cmd includes it.  In
 * reading order: this header; expertdrop (rules that remove whole experts), channelcut (how a score
 * becomes widths), methods (the suite's methods, run as its tools run them), spent (time and
 * memory), contest (measuring all of them), baseline.c (from options to the table).
 *
 * A budget is a number of experts in every layer, k of E, so that rules that remove experts can
 * reach it.  All other baselines remove at least as many channels, so they keep at most as many
 * bytes of expert weights as a rule that removes experts.
 */
#ifndef FM_BASELINE_H
#define FM_BASELINE_H

#include <stdint.h>

#include "lib/masks/masks.h"
#include "lib/run/run.h"

enum fm_baseline {
    /* Whole experts, the same number in every layer; the router chooses among the rest. */
    FM_BASELINE_REAP,      /* lowest mean of router weight times norm of the output */
    FM_BASELINE_FREQUENCY, /* fewest tokens */
    FM_BASELINE_RANDOM,    /* mean of FM_BASELINE_DRAWS draws */
    /* Channels, by the criteria of lib/learn/criterion.h: one width for all experts, the best
     * channels of each layer, or the best of the model (lib/baseline/channelcut.h). */
    FM_BASELINE_ACTIVATION,
    FM_BASELINE_CONTRIBUTION,
    FM_BASELINE_ENERGY, /* per layer */
    FM_BASELINE_FISHER_EXPERT,
    FM_BASELINE_FISHER_LAYER,
    FM_BASELINE_FISHER_GLOBAL,
    FM_BASELINE_WINNOW, /* per layer, in multiples */
    /* The suite's own masks, by methods of fm-train. */
    FM_BASELINE_UNIFORM,
    FM_BASELINE_SALIENCY,
    FM_BASELINE_EXCHANGE,
    FM_BASELINE_LEARNED,
    FM_BASELINE_DEFAULT, /* fm-train's default method, if it is not one of these */
    FM_BASELINE_BUNDLE,  /* the family of a given bundle or stream */
    FM_BASELINES
};

#define FM_BASELINE_DRAWS 5
#define FM_BASELINE_BUDGETS_MAX 64

/* "reap", "fisher-layer", "learned", ... */
const char *fm_baseline_name(enum fm_baseline baseline);

struct fm_baseline_cell {
    double budget; /* share of channels actually removed; for rules that remove experts, the
                      channels of those experts */
    struct fm_quality quality; /* positions 0: the baseline has no mask that small */
};

struct fm_baseline_row {
    enum fm_baseline baseline;
    bool recovered;  /* with an adapter of fm-recover */
    bool usual;      /* fm-train's default method */
    bool measured;   /* seconds and memory are valid; false for random and bundles */
    double seconds;  /* of calibration: rank, train, recover */
    uint64_t memory; /* peak bytes of the process during calibration; 0: unknown */
    struct fm_baseline_cell cell[FM_BASELINE_BUDGETS_MAX];
};

struct fm_baseline_table {
    int budgets, rows, sequences, T;
    int experts;                   /* E */
    uint64_t bytes, bytes_experts; /* of all tensors, and of the experts' channels among them */
    int dropped[FM_BASELINE_BUDGETS_MAX]; /* (budgets) experts removed per layer, ascending */
    struct fm_quality full;               /* positions 0: only a plan, nothing was measured */
    struct fm_baseline_row row[2 * FM_BASELINES];
};

struct fm_baseline_options {
    const char *budgets; /* "0.25,0.5": rounded to the nearest number of experts; NULL: five
                            budgets, except those that the router does not allow */
    const char *only;    /* "reap,learned,learned+recover": these rows; NULL: all */
    int steps;           /* of training and of recovery; 0: their defaults */
    const char *dir;     /* for temporary streams; NULL: TMPDIR or /var/tmp */
};

/*
 * Calibrate every baseline on run->inputs.tokens and measure all on run->inputs.eval_tokens or
 * run->inputs.eval_texts, which no baseline uses.  run->inputs.stream: a bundle or a stage stream
 * with masks to compare with, or NULL.  With `plan`, only budgets and rows are chosen.  FM_EUSAGE
 * for budgets that the router does not allow, or unknown names.  The measured quality does not
 * depend on the number of threads or the memory limit.
 */
int fm_baseline_run(const struct fm_run_options *run, const struct fm_baseline_options *options,
                    bool plan, struct fm_baseline_table *table, struct fm_err *err);

#endif
