/*
 * A measuring table of operations: calls go to another table, and time, calls and floating-point
 * operations of matrix products are counted by operation.  One per process.
 */
#ifndef FM_METER_H
#define FM_METER_H

#include <stdint.h>

#include "kernels/ops/kernels.h"

/* One stage for every operation. */
enum {
#define FM_OP(name, parameters, arguments, writes) FM_METER_##name,
#include "kernels/ops/kernels.def"
#undef FM_OP
    FM_METER_STAGES
};

/* Time of one operation, summed over the threads that were busy with it. */
struct fm_meter_stage {
    const char *name;
    uint64_t calls;
    double seconds;
    double flops; /* of its products; 0: it has none */
};

/* And of what is none, summed over threads: layers on their way into memory, but for operations;
 * nothing to do; everything else.  With the operations that is all time of all threads. */
struct fm_meter_rest {
    double reading, waiting, other;
};

/* The table that measures `base`; counters are zero from here on, until the end. */
const struct fm_ops *fm_meter_begin(const struct fm_ops *base);

/* Stages that were called, longest first; their number. */
int fm_meter_end(struct fm_meter_stage stage[FM_METER_STAGES], struct fm_meter_rest *rest);

/* FLOPs of all matrix products: gemm, and those inside channel_scores. */
double fm_meter_flops(void);

#endif
