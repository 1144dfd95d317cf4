/*
 * Products on the calling thread alone, through oneDNN.  Private to kernels/, and the only place
 * that knows oneDNN; it builds against the C API of 2.x and 3.x.
 *
 * oneDNN gives other bits for another number of threads, and for another split of the rows, so
 * every call here uses one thread and callers cut products by their sizes alone.  The bits do not
 * depend on the alignment of the operands (checked in tests/unit/test_cpu_products.c).
 *
 * The kernel tests were run with 2.6.3 (Debian 12) and with 3.2.0 (PyPI: onednn-cpu-gomp and
 * onednn-devel-cpu-gomp 2023.2.0, unpacked; the Makefile says how to build against it).  A oneDNN
 * on TBB or SYCL, as in PyPI's onednn 2026, is refused when compiled: it would not stay on one
 * thread.
 */
#ifndef FM_KERNELS_DNNL_H
#define FM_KERNELS_DNNL_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"

/* Before the first product, on a thread beside which no other takes memory: what oneDNN makes once
 * and cannot fail at.  FM_ENOMEM. */
int fm_dnnl_prepare(struct fm_err *err);

/* C (M, N) = alpha op(A) op(B) + beta C as in kernels.h.  A call that oneDNN refuses, which means
 * that it has no memory, ends the process with FM_ENOMEM and one sentence. */
void fm_dnnl_sgemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
                   const float *B, int ldb, float beta, float *C, int ldc);

/* C (M, N), packed, = op(A) op(B) from bfloat16 operands, sums in float32.  M, N, K > 0. */
void fm_dnnl_bf16gemm(bool ta, bool tb, int M, int N, int K, const uint16_t *A, int lda,
                      const uint16_t *B, int ldb, float *C);

/* Whether fm_dnnl_bf16gemm works here, natively or emulated. */
bool fm_dnnl_has_bf16(void);

#endif
