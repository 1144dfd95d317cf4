/* Reference implementation of the matrix product. */
#include "kernels/ops/ops.h"

#include "lib/base/pool.h"

/* op(A)[i, l] and op(B)[l, j]. */
static double read_op(bool transposed, const float *a, int ld, int row, int col)
{
    return transposed ? a[(size_t)col * ld + row] : a[(size_t)row * ld + col];
}

/* Elements from the first of `rows` rows to the end of the last. */
static size_t span(int rows, int cols, int ld)
{
    return rows > 0 ? (size_t)(rows - 1) * (size_t)ld + (size_t)cols : 0;
}

/* C[i,j] = alpha sum_l op(A)[i,l] op(B)[l,j] + beta C[i,j]. */
void ref_gemm(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
              struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    struct fm_mark mark = fm_scratch_mark();
    const float *a = fm_widen(A, ta ? span(K, M, lda) : span(M, K, lda));
    const float *b = fm_widen(B, tb ? span(N, K, ldb) : span(K, N, ldb));
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int l = 0; l < K; l++)
                sum += read_op(ta, a, lda, i, l) * read_op(tb, b, ldb, l, j);
            float *c = &C[(size_t)i * ldc + j];
            *c = (float)(alpha * sum + (beta != 0 ? beta * (double)*c : 0));
        }
    }
    fm_scratch_release(mark);
}
