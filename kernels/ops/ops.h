/*
 * Private to kernels/: the entries of the tables.  ref_* are the definitions, one
 * file per subject (gemm norm attention route expert vocab optim); cpu_* are the
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

/* The entries of cpu whose products have bfloat16 operands. */
void cpu_bf16_gemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
                   const float *B, int ldb, float beta, float *C, int ldc);
void cpu_bf16_channel_scores(double *s, const float *gate_up, const float *down, const float *dgu,
                             const float *x, const float *h, const float *dy, int n, int I, int H);

/* The table that fm_ops_cpu gives for BF16, also where the CPU has no such instructions (oneDNN
 * emulates them on AVX-512): for tests. */
const struct fm_ops *fm_ops_cpu_bf16(void);

#endif
