/* Chooses the table of operations by the options, and the amount of memory that a run may use. */
#include "lib/run/machine.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/ops/scan.h"
#include "lib/base/trace.h"
#include "formats/file/cgroup.h"

/* With --precision auto, choose bfloat16 if the checkpoint stores 16-bit floats and the CPU has
 * bfloat16.  Only a CPU without bfloat16 causes the fallback to float32; any other error is
 * returned, because the result would differ. */
static int find_cpu_ops(const struct fm_ops **ops, const struct fm_machine *machine,
                        enum fm_dtype stored, struct fm_err *err)
{
    if (machine->precision_auto && (stored == FM_BF16 || stored == FM_F16)) {
        int rc = fm_ops_cpu(ops, FM_PRECISION_BF16, err);
        if (rc != FM_EDEVICE)
            return rc;
        *err = (struct fm_err){0};
    }
    return fm_ops_cpu(ops, machine->precision, err);
}

int fm_machine_ops(const struct fm_ops **ops, const struct fm_machine *machine,
                   enum fm_dtype stored, struct fm_err *err)
{
    if (machine->ops) {
        *ops = machine->ops;
        return FM_OK;
    }
    bool ref = machine->device && strcmp(machine->device, "ref") == 0;
    if (ref && machine->precision != FM_PRECISION_F32)
        return fm_fail(err, FM_EUSAGE, "--device ref computes in f32 only; use --device cpu");
    *ops = fm_ops_ref();
    if (!ref && find_cpu_ops(ops, machine, stored, err))
        return err->code;
    if (FM_DEBUGGING)
        *ops = fm_ops_scanned(*ops);
    return FM_OK;
}

const char *fm_machine_precision(const struct fm_ops *ops)
{
    return ops->operand == FM_BF16 ? "bf16" : "f32";
}

/* Memory available to this process: the machine's, or less if its control group or resource limits
 * allow less. */
static uint64_t memory_of_job(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    uint64_t most = pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : (uint64_t)8 << 30;
    uint64_t group = fm_cgroup_memory("/proc/self/cgroup", "/sys/fs/cgroup");
    struct rlimit limit;
    most = group < most ? group : most;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < most) /* RLIM_INFINITY is the
                                                                       largest value */
        most = limit.rlim_cur;
    return most;
}

uint64_t fm_machine_memory(const struct fm_machine *machine)
{
    if (machine->memory)
        return machine->memory;
    int nth;
    return memory_of_job() / 2 / (uint64_t)fm_comm_beside(machine->comm, &nth);
}
