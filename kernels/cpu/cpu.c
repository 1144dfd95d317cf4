#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/ops/ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Entries that both precisions share; attention keeps float32 inside. */
#define SHARED                                                                                     \
    .norm = cpu_norm, .norm_back = cpu_norm_back, .rope = cpu_rope, .attention = cpu_attention,    \
    .attention_back = cpu_attention_back, .route = cpu_route, .route_back = cpu_route_back,        \
    .route_raw = cpu_route_raw, .route_raw_back = cpu_route_raw_back,                              \
    .sparsemixer = ref_sparsemixer, .sparsemixer_back = ref_sparsemixer_back,                      \
    .add_rows = cpu_add_rows, .clamp = cpu_clamp, .clamp_back = cpu_clamp_back,                    \
    .gate_rows = cpu_gate_rows, .gate_rows_back = cpu_gate_rows_back, .gather = cpu_gather,        \
    .combine = cpu_combine, .swiglu = cpu_swiglu, .swiglu_back = cpu_swiglu_back,                  \
    .dot_rows = cpu_dot_rows, .channel_sums = cpu_channel_sums, .embed = cpu_embed,                \
    .loss = cpu_loss, .adamw = cpu_adamw, .add = cpu_add

static const struct fm_ops cpu_f32 = {
    .name = "cpu", .gemm = cpu_gemm, .channel_scores = cpu_channel_scores, SHARED};

static const struct fm_ops cpu_bf16 = {
    .name = "cpu", .gemm = cpu_bf16_gemm, .channel_scores = cpu_bf16_channel_scores, SHARED};

const struct fm_ops *fm_ops_cpu_bf16(void)
{
    return &cpu_bf16;
}

/* CPUID leaf 7: subleaf 1 EAX bit 5 is AVX512_BF16, subleaf 0 EDX bit 22 is AMX_BF16. */
static bool has_bf16_instructions(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5))
        return true;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 22))
        return true;
#endif
    return false;
}

int fm_ops_cpu(const struct fm_ops **ops, enum fm_precision precision, struct fm_err *err)
{
    if (precision == FM_PRECISION_BF16 && !(has_bf16_instructions() && fm_dnnl_has_bf16()))
        return fm_fail(err, FM_EDEVICE,
                       "this CPU has no bfloat16 instructions (avx512_bf16 or amx_bf16); use "
                       "--precision f32");
    *ops = precision == FM_PRECISION_BF16 ? fm_ops_cpu_bf16() : &cpu_f32;
    return FM_OK;
}
