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
    const float *A;
    int lda;
    const float *B;
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
    const float *A = g->A + (g->ta ? (size_t)i : (size_t)i * g->lda);
    const float *B = g->B + (g->tb ? (size_t)j * g->ldb : (size_t)j);
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

void cpu_gemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
              const float *B, int ldb, float beta, float *C, int ldc)
{
    run_tiles(&(struct gemm){fm_dnnl_sgemm, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc, 0,
                             0, 0});
}

void cpu_bf16_gemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
                   const float *B, int ldb, float beta, float *C, int ldc)
{
    run_tiles(&(struct gemm){fm_cpu_bf16_product, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C,
                             ldc, 0, 0, 0});
}

/* rows x cols of a, rounded to bfloat16, packed, in scratch. */
static const uint16_t *round_rows(const float *a, int rows, int cols, int ld)
{
    uint16_t *b = fm_scratch((size_t)rows * cols * sizeof *b);
    for (int i = 0; i < rows; i++)
        fm_dtype_from_f32(b + (size_t)i * cols, a + (size_t)i * ld, FM_BF16, (size_t)cols);
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

void fm_cpu_bf16_product(bool ta, bool tb, int M, int N, int K, float alpha, const float *A,
                         int lda, const float *B, int ldb, float beta, float *C, int ldc)
{
    struct fm_mark mark = fm_scratch_mark();
    float *product = fm_scratch((size_t)M * N * sizeof *product);
    const uint16_t *a = round_rows(A, ta ? K : M, ta ? M : K, lda);
    const uint16_t *b = round_rows(B, tb ? N : K, tb ? K : N, ldb);
    if (K > 0)
        fm_dnnl_bf16gemm(ta, tb, M, N, K, a, ta ? M : K, b, tb ? K : N, product);
    else
        memset(product, 0, (size_t)M * N * sizeof *product);
    for (int i = 0; i < M; i++)
        scale_row(C + (size_t)i * ldc, product + (size_t)i * N, N, alpha, beta);
    fm_scratch_release(mark);
}
