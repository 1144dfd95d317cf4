/*
 * The resources of a run: a table of operations, which device and precision select, memory,
 * threads, and the ranks of one job.  Only device and precision affect a result.
 */
#ifndef FM_MACHINE_H
#define FM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"
#include "lib/base/err.h"
#include "lib/comm/comm.h"

struct fm_machine {
    const char *device; /* "cpu" or "ref"; NULL: cpu */
    enum fm_precision precision;
    bool precision_auto;      /* chosen automatically: bfloat16 if the CPU supports it and weights
                                 have 16 bits */
    const struct fm_ops *ops; /* NULL: chosen by device and precision; fm-bench passes its
                                 measuring table */
    uint64_t memory;          /* bytes; 0: half of the available memory */
    bool memory_firm;         /* a run that needs more is refused; else there is only a warning */
    int threads;              /* 0: all CPUs; the tool has started the pool (lib/base/pool.h) */
    struct fm_comm *comm;     /* the ranks that make this run together; NULL: a single process */
};

/* The table for machine->device and precision, for weights stored in that dtype. */
int fm_machine_ops(const struct fm_ops **ops, const struct fm_machine *machine,
                   enum fm_dtype stored, struct fm_err *err);

/* The type to which products of a table round their operands, as in --precision: "f32", "bf16". */
const char *fm_machine_precision(const struct fm_ops *ops);

/* machine->memory, or half of what is available to the process: the physical memory or, if
 * lower, the limit of its control group or address space.  Ranks of one machine share that half. */
uint64_t fm_machine_memory(const struct fm_machine *machine);

#endif
