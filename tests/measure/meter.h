/*
 * A measuring table of operations: it forwards calls to another table, and counts time, calls and
 * floating-point operations of matrix products for each operation.  One per process.
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

/* Time of one operation, summed over the threads that worked on it. */
struct fm_meter_stage {
    const char *name;
    uint64_t calls;
    double seconds;
    double flops; /* of its products; 0 if it has no products */
};

/* Time outside operations, summed over threads: loading layers, idle, everything else.  These and
 * the operations add up to the total time of all threads. */
struct fm_meter_rest {
    double reading, waiting, other;
};

/* Reset the counters and return a table that measures `base`.  The table is static. */
const struct fm_ops *fm_meter_begin(const struct fm_ops *base);

/* Stop counting time; write the operations that were called, longest first; return their number. */
int fm_meter_end(struct fm_meter_stage stage[FM_METER_STAGES], struct fm_meter_rest *rest);

/* FLOPs of all matrix products: of gemm, channel_scores and channel_scores_each. */
double fm_meter_flops(void);

#endif
