/*
 * Measurements of one clipped layer (kernels/clip/clip.h): every implementation at every number of
 * tokens and every budget, beside the machine's own limits measured in the same run.
 *
 * Weights, hidden states and routing are random, experts unequally popular; masks mix widths of
 * tenths.  Rounds go through all cases in turn, so that a disturbance hits them alike, and other
 * memory is written between two runs, so that nothing is found in a cache.
 */
#ifndef FM_KERNELBENCH_H
#define FM_KERNELBENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/bench/kerneloptions.h"

/* One implementation at one number of tokens and one budget. */
struct fm_kernelbench_row {
    const char *kernel;    /* "oneDNN" (the products alone), "cpu", "torch-loop" ... "gpu hopper" */
    int tokens, experts;   /* experts: with at least one token */
    double budget;         /* share of the layer's channels removed */
    double seconds;        /* median; 0: this case could not run */
    double flops, bytes;   /* of the routed rows; weights read once, activations in and out */
    double roofline;       /* seconds that peak and bandwidth allow */
    double speedup, ideal; /* over budget 0; ideal: by flops of the routed rows */
    double error;          /* largest |out - definition| over the sum of |terms|, some tokens */
};

struct fm_kernelbench {
    int H, I, E, K, threads;
    const char *dtype;
    char path[64];                  /* what libfm_clip chose */
    char dnnl[64], cpu[96];         /* version, name of the processor */
    double bandwidth, peak;         /* bytes/s read, flop/s of oneDNN's product, all threads */
    char torch[64];                 /* PyTorch's version, or "": then it has no rows */
    char torch_missing[1024];       /* why it has none, or not all, or "" */
    char gpu[256];                  /* its name, or "": then it has no rows */
    double gpu_bandwidth, gpu_peak; /* the same of the GPU; the product is cuBLAS's */
    uint64_t bytes;                 /* of the weights */
    int rows;
    struct fm_kernelbench_row *row; /* by tokens, then kernel, then budget */
};

/* With `dry_run` sizes are found and nothing is measured.  FM_EUSAGE, FM_ENOMEM; what opening a
 * family may say; FM_ENOENT, FM_EIO where PyTorch is needed and not there.  Release in any case. */
int fm_kernelbench_run(const struct fm_kernelbench_options *options, bool dry_run,
                       struct fm_kernelbench *result, struct fm_err *err);
void fm_kernelbench_release(struct fm_kernelbench *result);

#endif
