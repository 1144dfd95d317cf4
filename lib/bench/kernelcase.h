/* Private to lib/bench: the data of a measurement, and how one case runs. */
#ifndef FM_KERNELCASE_H
#define FM_KERNELCASE_H

#include <stdint.h>

#include "kernels/clip/clip.h"
#include "kernels/clip/clip_gpu.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/bench/kernelbench.h"

/* Tokens whose results are compared with the definition. */
#define FM_KERNELCASE_CHECKED 3

/* A layer with random weights, B rows of widths, and the tokens of the longest call. */
struct fm_kernelcase {
    struct fm_clip_layer layer;
    enum fm_dtype dtype; /* of the weights: layer.type */
    int I, K, tokens_max, threads;
    uint64_t seed;
    int64_t *row0;
    int32_t *cap, *widths, budget;
    double share[FM_KERNELBENCH_BUDGETS_MAX]; /* fraction removed by each row of widths */
    char *gate_up, *down, *hidden, *out;
    /* The same weights as models are published: (E, 2 I, H), gate before up, and (E, H, I); NULL
     * for f16, which oneDNN does not multiply. */
    char *plain_gate_up, *plain_down;
    int32_t *ids;   /* (tokens_max, K) */
    float *weights; /* (tokens_max, K) */
    char *other;    /* memory written to evict the caches */
    float *sums;    /* inputs of the second product of the oneDNN implementation */
    void *workspace;
    uint64_t workspace_bytes;
    struct fm_clip *clip;
    int *cut;                /* oneDNN's fastest block width in this case; 0: not yet known */
    struct fm_clip_gpu *gpu; /* NULL: no GPU */
};

/* fm_kernelcase_shape sets sizes and masks.  The caller then sets tokens_max, and
 * fm_kernelcase_fill allocates the memory and fills it with numbers. */
int fm_kernelcase_shape(struct fm_kernelcase *c, const struct fm_kernelbench_options *options,
                        struct fm_err *err);
int fm_kernelcase_fill(struct fm_kernelcase *c, struct fm_err *err);
void fm_kernelcase_release(struct fm_kernelcase *c); /* a zeroed struct may be released */

uint64_t fm_kernelcase_bytes(const struct fm_kernelcase *c); /* of the weights */

/* The call for the first `tokens` tokens. */
struct fm_clip_call fm_kernelcase_call(struct fm_kernelcase *c, int tokens);

/* The number of rows of each expert for these tokens; returns how many experts have at least
 * one. */
int fm_kernelcase_rows(const struct fm_kernelcase *c, int tokens, int *rows);

/* Evict the caches. */
void fm_kernelcase_flush(struct fm_kernelcase *c);

/* Seconds of one run of the naive implementation at c->budget, or 0 if it is not available. */
double fm_kernelcase_naive(struct fm_kernelcase *c, int tokens);
/* On a path of a GPU; 0 for float32, which the GPU does not compute. */
double fm_kernelcase_gpu(struct fm_kernelcase *c, int tokens, int32_t path);

#endif
