/* What a measurement of clipped layers may be asked for, and its limits. */
#ifndef FM_KERNELOPTIONS_H
#define FM_KERNELOPTIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FM_KERNELBENCH_BUDGETS_MAX 32
#define FM_KERNELBENCH_TOKENS_MAX 16

struct fm_kernelbench_options {
    const char *shape;   /* "mixtral-8x7b" and others, or "H,I,E,K"; NULL: "1024,3584,8,2" */
    const char *tokens;  /* "1,16,64" */
    const char *budgets; /* "0,0.2,0.4"; 0 comes first in any case */
    const char *family;  /* a bundle or stage stream whose shape and masks are taken, or NULL */
    const char *dtype;   /* "f32", "f16", "bf16": of the weights */
    const char *python;  /* a program that may have PyTorch, or NULL: no rows of it */
    bool python_needed;  /* it must have */
    int repeat;          /* rounds, the median counts */
    int threads;         /* 0: all */
    uint64_t seed;
    double peak;            /* of the machine where it is known, FLOP/s; 0: measured, a second */
    const atomic_int *stop; /* run->stop, or NULL: nonzero ends with FM_ESAVED */
};

#endif
