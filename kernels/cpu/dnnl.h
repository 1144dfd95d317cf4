/*
 * Products on the calling thread by oneDNN.  Private to kernels/, and the only module that uses
 * oneDNN; it builds with the C API of 2.x and 3.x.
 *
 * The bits of oneDNN's results depend on the number of threads and on the split of the rows, so
 * every call here uses one thread and callers cut products only by their sizes.  The bits do not
 * depend on the alignment of the operands (checked in tests/unit/test_cpu_products.c).
 *
 * The kernel tests were run with 2.6.3 (Debian 12) and with 3.2.0 (PyPI: onednn-cpu-gomp and
 * onednn-devel-cpu-gomp 2023.2.0, unpacked; the Makefile describes how to build with it).  A oneDNN
 * built with TBB or SYCL, such as PyPI's onednn 2026, is refused at compile time: it would not stay
 * on one thread.
 */
#ifndef FM_KERNELS_DNNL_H
#define FM_KERNELS_DNNL_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"

/* Call before the first product, while no other thread allocates memory: compiles in advance the
 * kernels for which oneDNN would not report a lack of memory.  FM_ENOMEM, FM_EDEVICE. */
int fm_dnnl_prepare(struct fm_err *err);

/* C (M, N) = alpha op(A) op(B) + beta C as in kernels.def.  If oneDNN refuses a call, which means
 * that it is out of memory, the process ends with FM_ENOMEM and a message. */
void fm_dnnl_sgemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
                   const float *B, int ldb, float beta, float *C, int ldc);

/* C (M, N), packed, = op(A) op(B) from bfloat16 operands, sums in float32.  M, N, K > 0. */
void fm_dnnl_bf16gemm(bool ta, bool tb, int M, int N, int K, const uint16_t *A, int lda,
                      const uint16_t *B, int ldb, float *C);

/* Whether fm_dnnl_bf16gemm works here, natively or emulated. */
bool fm_dnnl_has_bf16(void);

#endif
