/*
 * The fast tables.  They differ only in their products: norms, softmax and sums use float32 in
 * every precision.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/ops/ops.h"
#include "lib/base/isa.h"

#include <pthread.h>

static const struct fm_ops cpu_f32 = {
    .name = "cpu",
    .f32 = &cpu_f32,
    .operand = FM_F32,
#define FM_OP(name, parameters, arguments, writes) .name = cpu_##name,
#include "kernels/ops/kernels.def"
#undef FM_OP
};

static struct fm_ops cpu_bf16;
static pthread_once_t bf16_once = PTHREAD_ONCE_INIT;

static void fill_bf16(void)
{
    cpu_bf16 = cpu_f32;
    cpu_bf16.operand = FM_BF16;
    cpu_bf16.gemm = cpu_bf16_gemm;
    cpu_bf16.channel_scores = cpu_bf16_channel_scores;
    cpu_bf16.channel_scores_each = cpu_bf16_channel_scores_each;
    if (fm_isa_amx()) { /* without AMX, bfloat16 is no faster for products this small */
        cpu_bf16.attention = cpu_bf16_attention;
        cpu_bf16.attention_back = cpu_bf16_attention_back;
    }
}

const struct fm_ops *fm_ops_cpu_bf16(void)
{
    pthread_once(&bf16_once, fill_bf16);
    return &cpu_bf16;
}

int fm_ops_cpu(const struct fm_ops **ops, enum fm_precision precision, struct fm_err *err)
{
    if (fm_dnnl_prepare(err))
        return err->code;
    bool bf16 = (fm_isa_avx512_bf16() || fm_isa() >= FM_ISA_AMX) && fm_dnnl_has_bf16();
    if (precision == FM_PRECISION_BF16 && !bf16) {
        fm_fail(err, FM_EDEVICE, "%s no bfloat16 instructions (avx512_bf16 or amx_bf16)",
                fm_isa_limit() < FM_ISA_AVX512 ? "FM_ISA allows" : "this CPU has");
        return fm_advise(err, FM_ADVISE_FLOAT32);
    }
    *ops = precision == FM_PRECISION_BF16 ? fm_ops_cpu_bf16() : &cpu_f32;
    return FM_OK;
}
