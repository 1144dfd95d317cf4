/* The reference table: plain loops, sums in double; one function for every entry of kernels.def. */
#include "kernels/ops/ops.h"

static const struct fm_ops ref = {
    .name = "ref",
    .f32 = &ref,
    .operand = FM_F32,
#define FM_OP(name, parameters, arguments, writes) .name = ref_##name,
#include "kernels/ops/kernels.def"
#undef FM_OP
};

const struct fm_ops *fm_ops_ref(void)
{
    return &ref;
}
