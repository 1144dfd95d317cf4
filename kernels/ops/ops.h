/*
 * Private to kernels/: the entries of the tables.  ref_* are the definitions, one
 * file per subject (memory gemm norm attention route expert sums vocab optim); cpu_* are the
 * fast ones in kernels/cpu.  Contracts are in kernels.h, operations in kernels.def.
 */
#ifndef FM_KERNELS_OPS_H
#define FM_KERNELS_OPS_H

#include <stddef.h>

#include "kernels/ops/kernels.h"

#define FM_OP(name, parameters, arguments)                                                         \
    void ref_##name parameters;                                                                    \
    void cpu_##name parameters;
#include "kernels/ops/kernels.def"
#undef FM_OP

/* Where element i of an array lies. */
static inline struct fm_in fm_element(struct fm_in x, size_t i)
{
    return (struct fm_in){(const char *)x.data + i * (size_t)(fm_dtype_bits(x.dtype) / 8), x.dtype};
}

static inline struct fm_out fm_element_out(struct fm_out y, size_t i)
{
    return (struct fm_out){(char *)y.data + i * (size_t)(fm_dtype_bits(y.dtype) / 8), y.dtype};
}

/* The entries of cpu whose products have bfloat16 operands. */
void cpu_bf16_gemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
                   const float *B, int ldb, float beta, float *C, int ldc);
void cpu_bf16_channel_scores(double *s, const float *gate_up, const float *down, const float *dgu,
                             const float *x, const float *h, const float *dy, int n, int I, int H);

/* The table that fm_ops_cpu gives for BF16, also where the CPU has no such instructions (oneDNN
 * emulates them on AVX-512): for tests. */
const struct fm_ops *fm_ops_cpu_bf16(void);

#endif
