/* Options of the measurement of clipped layers, and their limits. */
#ifndef FM_KERNELOPTIONS_H
#define FM_KERNELOPTIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

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

#endif
