/*
 * Measurements of a serving loop: prompts in, then one token at a time, at every budget of one
 * resident family, and with the budget changed at every step.
 *
 * A decoder of as many layers as asked for, or as memory takes, with random weights
 * (lib/bench/servecase.h says what it computes).  Rounds go through all budgets in turn, so that a
 * disturbance hits them alike, and medians count.
 */
#ifndef FM_SERVEBENCH_H
#define FM_SERVEBENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/bench/serveoptions.h"
#include "lib/run/run.h"

/* One budget. */
struct fm_servebench_row {
    double budget;                          /* share of all channels removed */
    double prefill, decode;                 /* seconds, median */
    double prefill_experts, decode_experts; /* shares of that inside libfm_clip; NaN: unknown */
    double prefill_ideal, decode_ideal; /* speed-ups were experts all there is: by the channels of
                                           the routed rows, by the channels that were read */
    uint64_t freed; /* bytes, were only the channels resident that this and higher budgets use */
};

struct fm_servebench {
    int H, I, E, K, Q, G, C;
    int layers, model_layers; /* that ran, of how many; 0: a made-up shape */
    int batch, prompt, decode, threads;
    bool shared; /* the named shape has a shared expert, which is not here */
    const char *dtype;
    char path[64], cpu[96]; /* what libfm_clip chose; the processor */
    char gpu[256]; /* its name; or "": the CPU ran; with it all experts count alike in ideals */
    uint64_t bytes, token_bytes; /* of all weights; of one token in the cache */
    double switched, held;       /* seconds of `decode` steps, medians: the budget changes at
                                    every step; the same steps with each budget held */
    int budgets;                 /* rows with budget and freed */
    int rows;                    /* 0 with `dry_run` */
    struct fm_servebench_row row[FM_KERNELBENCH_BUDGETS_MAX];
};

/* With `dry_run` sizes are found and nothing is measured.  run gives threads, memory, device and
 * seed.  FM_EUSAGE; FM_ENOMEM where not one layer fits; what opening a family may say. */
int fm_servebench_run(const struct fm_run_options *run, const struct fm_servebench_options *options,
                      bool dry_run, struct fm_servebench *result, struct fm_err *err);

#endif
