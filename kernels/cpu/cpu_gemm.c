/*
 * Matrix products: tiles of the result are tasks, each a product of oneDNN on its thread.  The cut
 * depends on sizes alone, because oneDNN gives other bits for another cut.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/ops/ops.h"
#include "lib/base/dtype.h"
#include "lib/base/pool.h"

/*
 * Measured for oneDNN 2.6.3 on AVX-512: 512 x 1024 tiles run within 5 % of one call for the
 * whole product at every shape of an expert; smaller ones pay for packing an operand again.
 */
enum { TILE_ROWS = 512, TILE_COLS = 1024, TILE_STEP = 16 };

struct gemm {
    fm_product *product;
    bool ta, tb;
    int M, N, K;
    float alpha;
    struct fm_in A;
    int lda;
    struct fm_in B;
    int ldb;
    float beta;
    float *C;
    int ldc;
    int rows, cols, across; /* of a tile; tiles side by side */
};

/* Length of equal parts of n, none longer than `most`, multiples of TILE_STEP. */
static int cut_evenly(int n, int most)
{
    int parts = (n + most - 1) / most;
    int length = (n + parts - 1) / parts;
    return (length + TILE_STEP - 1) / TILE_STEP * TILE_STEP;
}

static void run_tile(void *arg, int index)
{
    const struct gemm *g = arg;
    int i = index / g->across * g->rows, j = index % g->across * g->cols;
    int M = g->M - i < g->rows ? g->M - i : g->rows;
    int N = g->N - j < g->cols ? g->N - j : g->cols;
    struct fm_in A = fm_element(g->A, g->ta ? (size_t)i : (size_t)i * g->lda);
    struct fm_in B = fm_element(g->B, g->tb ? (size_t)j * g->ldb : (size_t)j);
    float *C = g->C + (size_t)i * g->ldc + j;
    g->product(g->ta, g->tb, M, N, g->K, g->alpha, A, g->lda, B, g->ldb, g->beta, C, g->ldc);
}

static void run_tiles(struct gemm *g)
{
    if (g->M <= 0 || g->N <= 0)
        return;
    g->rows = cut_evenly(g->M, TILE_ROWS);
    g->cols = cut_evenly(g->N, TILE_COLS);
    g->across = (g->N + g->cols - 1) / g->cols;
    fm_pool_for((g->M + g->rows - 1) / g->rows * g->across, run_tile, g);
}

/* The span of `rows` rows as floats, in scratch where it has another type. */
static struct fm_in widen(struct fm_in x, int rows, int cols, int ld)
{
    size_t n = rows > 0 ? (size_t)(rows - 1) * ld + cols : 0;
    if (x.dtype == FM_F32)
        return x;
    float *wide = fm_scratch(n * sizeof *wide);
    cpu_convert(fm_to_f32(wide), (int64_t)n, x, NULL, 1, (int64_t)n);
    return fm_f32(wide);
}

void cpu_gemm(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
              struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    struct fm_mark mark = fm_scratch_mark();
    A = widen(A, ta ? K : M, ta ? M : K, lda);
    B = widen(B, tb ? N : K, tb ? K : N, ldb);
    run_tiles(&(struct gemm){fm_cpu_f32_product, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C,
                             ldc, 0, 0, 0});
    fm_scratch_release(mark);
}

void cpu_bf16_gemm(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
                   struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    run_tiles(&(struct gemm){fm_cpu_bf16_product, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C,
                             ldc, 0, 0, 0});
}

void fm_cpu_f32_product(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
                        struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    fm_dnnl_sgemm(ta, tb, M, N, K, alpha, A.data, lda, B.data, ldb, beta, C, ldc);
}

/* rows x cols as bfloat16: where they lie, or packed in scratch, rounded; *ld says which. */
static const uint16_t *narrow(struct fm_in x, int rows, int cols, int *ld)
{
    if (x.dtype == FM_BF16)
        return x.data;
    uint16_t *b = fm_scratch((size_t)rows * cols * sizeof *b);
    for (int i = 0; i < rows; i++)
        fm_dtype_from_f32(b + (size_t)i * cols, (const float *)x.data + (size_t)i * *ld, FM_BF16,
                          (size_t)cols);
    *ld = cols;
    return b;
}

FM_CLONES static void scale_row(float *c, const float *product, int n, float alpha, float beta)
{
    if (beta == 0)
        for (int j = 0; j < n; j++)
            c[j] = alpha * product[j];
    else
        for (int j = 0; j < n; j++)
            c[j] = alpha * product[j] + beta * c[j];
}

void fm_cpu_bf16_product(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A,
                         int lda, struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    struct fm_mark mark = fm_scratch_mark();
    float *product = fm_scratch((size_t)M * N * sizeof *product);
    const uint16_t *a = narrow(A, ta ? K : M, ta ? M : K, &lda);
    const uint16_t *b = narrow(B, tb ? N : K, tb ? K : N, &ldb);
    if (K > 0)
        fm_dnnl_bf16gemm(ta, tb, M, N, K, a, lda, b, ldb, product);
    else
        memset(product, 0, (size_t)M * N * sizeof *product);
    for (int i = 0; i < M; i++)
        scale_row(C + (size_t)i * ldc, product + (size_t)i * N, N, alpha, beta);
    fm_scratch_release(mark);
}
