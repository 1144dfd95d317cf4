/*
 * What a run computes with: a table of operations, memory, threads, the ranks of one job.  Only
 * device and precision shape a result.
 */
#ifndef FM_MACHINE_H
#define FM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"
#include "lib/base/err.h"
#include "lib/comm/comm.h"

struct fm_machine {
    const char *device; /* "auto", "ref", "cpu" */
    enum fm_precision precision;
    bool precision_auto; /* instead: bfloat16 where the CPU has it and weights are of 16 bits */
    const struct fm_ops *ops; /* NULL: by device and precision; fm-bench measures through its own */
    double assume_rate;       /* GFLOP/s that --dry-run takes for its forecast; 0: a probe's */
    uint64_t memory;          /* bytes; 0: half of what there is */
    int threads;              /* 0: all CPUs; the tool has started the pool (lib/base/pool.h) */
    struct fm_comm *comm;     /* the ranks that make this run together; NULL: a single process */
};

/* The table for machine->device and precision, for weights that are `stored` so. */
int fm_machine_ops(const struct fm_ops **ops, const struct fm_machine *machine,
                   enum fm_dtype stored, struct fm_err *err);

/* What products of a table round their operands to, as --precision names it: "f32", "bf16". */
const char *fm_machine_precision(const struct fm_ops *ops);

/* machine->memory, or half of what the process may have: the machine's physical memory, or the
 * limit of its control group or of its address space.  Of that a rank has its part. */
uint64_t fm_machine_memory(const struct fm_machine *machine);

#endif
