/*
 * Measurements of one clipped layer (kernels/clip/clip.h): every implementation at every number of
 * tokens and every budget, compared with the machine's own limits measured in the same run.
 *
 * Weights, hidden states and routing are random, with experts of unequal popularity; masks are
 * those of a family, or random ones with widths in steps of a tenth.  Each round goes through all
 * cases in turn, so that a disturbance affects them alike, and other memory is written between two
 * runs, so that no data is left in a cache.
 */
#ifndef FM_KERNELBENCH_H
#define FM_KERNELBENCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/masks/decimal.h"

#define FM_KERNELBENCH_BUDGETS_MAX 32

struct fm_kernelbench_options {
    const char *shape; /* "mixtral-8x7b" and others, or "H,I,E,K"; NULL: "1024,3584,8,2" */
    const int *tokens; /* of a call, each at least 1; 0 follows the last */
    const struct fm_decimals *budgets; /* 0 is added as the first; NULL: 0.2, 0.4, 0.6 */
    const char *family; /* a bundle or stage stream that gives shape and masks, or NULL */
    const char *dtype;  /* "f32", "f16", "bf16": of the weights */
    int repeat;         /* rounds; the median is reported */
    int threads;        /* 0: all */
    uint64_t seed;
    double peak;            /* the machine's peak FLOP/s if known; 0: it is measured */
    const atomic_int *stop; /* run->stop, or NULL; if nonzero, the run ends with FM_ESAVED */
};

/* One implementation at one number of tokens and one budget. */
struct fm_kernelbench_row {
    const char *kernel;    /* "oneDNN" (only the products), "naive", "cpu" ...  "gpu mma" */
    int tokens, experts;   /* experts: with at least one token */
    double budget;         /* fraction of the layer's channels removed */
    double seconds;        /* median; 0: this case could not run */
    double flops, bytes;   /* of the routed rows; each weight read once, activations in and out */
    double roofline;       /* lower bound of seconds, from peak and bandwidth */
    double speedup, ideal; /* relative to budget 0; ideal: by FLOPs of the routed rows */
    double error; /* largest |out - definition| over the sum of |terms|, for a few tokens */
};

struct fm_kernelbench {
    int H, I, E, K, threads;
    const char *dtype;
    char path[64];                  /* the path that libfm_clip chose */
    char dnnl[64], cpu[96];         /* version, name of the processor */
    double bandwidth, peak;         /* bytes/s read, FLOP/s of oneDNN's product, all threads */
    char gpu[256];                  /* name of the GPU; "" if it has no rows */
    double gpu_bandwidth, gpu_peak; /* of the GPU: bytes/s read, FLOP/s of cuBLAS's product */
    uint64_t bytes;                 /* size of the weights */
    int rows;
    struct fm_kernelbench_row *row; /* by tokens, then kernel, then budget */
};

/* With `dry_run`, sizes are determined and nothing is measured.  FM_EUSAGE, FM_ENOMEM; the errors
 * of opening a family.  Release the result even after a failure. */
int fm_kernelbench_run(const struct fm_kernelbench_options *options, bool dry_run,
                       struct fm_kernelbench *result, struct fm_err *err);
void fm_kernelbench_release(struct fm_kernelbench *result);

#endif
