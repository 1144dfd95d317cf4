/* The one matrix product: the definition. */
#include "kernels/ops/ops.h"

/* Where op(A)[i, l] and op(B)[l, j] lie. */
static double read_op(bool transposed, const float *a, int ld, int row, int col)
{
    return transposed ? a[(size_t)col * ld + row] : a[(size_t)row * ld + col];
}

/* C[i,j] = alpha sum_l op(A)[i,l] op(B)[l,j] + beta C[i,j]. */
void ref_gemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
              const float *B, int ldb, float beta, float *C, int ldc)
{
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int l = 0; l < K; l++)
                sum += read_op(ta, A, lda, i, l) * read_op(tb, B, ldb, l, j);
            float *c = &C[(size_t)i * ldc + j];
            *c = (float)(alpha * sum + (beta != 0 ? beta * (double)*c : 0));
        }
    }
}
