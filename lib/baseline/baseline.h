/*
 * This room, lib/baseline: the suite's masks beside what other pruners do, on the same model,
 * tokens and bytes.  It may include all other rooms of lib, and only cmd includes it.  In reading
 * order: this header; expertdrop (rules that remove whole experts), channelcut (how a score becomes
 * widths), methods (the suite's own, by its own tools), spent (time and memory), contest
 * (everything measured side by side), baseline.c (from options to the table).
 *
 * A budget is a number of experts of every layer, k of E: what a rule that removes experts can
 * reach.  Everybody else removes at least as many channels, so nobody keeps more bytes of expert
 * weights than the rule that removed the experts.
 */
#ifndef FM_BASELINE_H
#define FM_BASELINE_H

#include <stdint.h>

#include "lib/masks/masks.h"
#include "lib/run/run.h"

enum fm_baseline {
    /* Whole experts, the same number in every layer; the router chooses among the others. */
    FM_BASELINE_REAP,      /* lowest mean of router weight times norm of the output */
    FM_BASELINE_FREQUENCY, /* fewest tokens */
    FM_BASELINE_RANDOM,    /* mean of FM_BASELINE_DRAWS draws */
    /* Channels, by the criteria of lib/learn/criterion.h: one width for all, the best of each
     * layer, or the best of the model (lib/baseline/channelcut.h). */
    FM_BASELINE_ACTIVATION,
    FM_BASELINE_CONTRIBUTION,
    FM_BASELINE_ENERGY, /* of each layer */
    FM_BASELINE_FISHER_EXPERT,
    FM_BASELINE_FISHER_LAYER,
    FM_BASELINE_FISHER_GLOBAL,
    FM_BASELINE_WINNOW, /* of each layer, in multiples */
    /* The suite's own, by methods of fm-train. */
    FM_BASELINE_UNIFORM,
    FM_BASELINE_SALIENCY,
    FM_BASELINE_WALK,
    FM_BASELINE_EXCHANGE,
    FM_BASELINE_LEARNED,
    FM_BASELINE_DEFAULT, /* fm-train's default method, where it is not one of these */
    FM_BASELINE_BUNDLE,  /* the family that was given */
    FM_BASELINES
};

#define FM_BASELINE_DRAWS 5
#define FM_BASELINE_BUDGETS_MAX 64

/* "reap", "fisher-layer", "learned", ... */
const char *fm_baseline_name(enum fm_baseline baseline);

struct fm_baseline_cell {
    double budget;             /* channels really removed; experts: their channels */
    struct fm_quality quality; /* positions 0: the baseline has nothing that small */
};

struct fm_baseline_row {
    enum fm_baseline baseline;
    bool recovered;  /* with an adapter of fm-recover */
    bool usual;      /* what fm-train does unless told otherwise */
    bool measured;   /* the next two are known: not of random, nor of a bundle */
    double seconds;  /* of calibration: rank, train, recover */
    uint64_t memory; /* bytes of the process at the most meanwhile; 0: unknown */
    struct fm_baseline_cell cell[FM_BASELINE_BUDGETS_MAX];
};

struct fm_baseline_table {
    int budgets, rows, sequences, T;
    int experts;                   /* E */
    uint64_t bytes, bytes_experts; /* of all tensors, and of channels of experts among them */
    int dropped[FM_BASELINE_BUDGETS_MAX]; /* (budgets) experts of every layer, increasing */
    struct fm_quality full;               /* positions 0: a plan, nothing was measured */
    struct fm_baseline_row row[2 * FM_BASELINES];
};

struct fm_baseline_options {
    const char *budgets; /* "0.25,0.5": to the nearest number of experts; NULL: five, as far as the
                            router allows */
    const char *only;    /* "reap,learned,learned+recover": these rows; NULL: all */
    int steps;           /* of learned and of recovery; 0: theirs */
    const char *dir;     /* for streams meanwhile; NULL: TMPDIR or /var/tmp */
};

/*
 * Calibrate every baseline on run->inputs.tokens and measure all on run->inputs.eval_tokens or
 * eval_text, which no baseline has seen.  run->inputs.stream: a bundle or a stage stream with masks
 * to compare with, or NULL. With `plan` budgets and rows are chosen and nothing is computed.
 * FM_EUSAGE for budgets that a router cannot do with, or unknown names.  Same figures for any
 * threads and memory.
 */
int fm_baseline_run(const struct fm_run_options *run, const struct fm_baseline_options *options,
                    bool plan, struct fm_baseline_table *table, struct fm_err *err);

#endif
