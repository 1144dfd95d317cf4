/*
 * Matrix products: tiles of the result are tasks, each a product of oneDNN on its thread.  The
 * tiles depend only on sizes, because the bits of oneDNN's results depend on the tile.  If the CPU
 * has matrix registers, kernels/cpu/cpu_amx_gemm.c computes all bfloat16 products: oneDNN 2.6.3
 * executes an illegal instruction there for some (205 x 63 by 63 x 4, A transposed).
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_amx.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/ops/ops.h"
#include "lib/base/dtype.h"
#include "lib/base/isa.h"
#include "lib/base/pool.h"

/*
 * Measured for oneDNN 2.6.3 on AVX-512: 512 x 1024 tiles run within 5 % of one call for the whole
 * product at every shape of an expert; smaller ones take longer because an operand is packed again.
 * On AVX2, with a right operand that is not transposed, 264 x 1024 tiles reach 0.60 of the speed of
 * 384 x 1024 ones: for few rows oneDNN does not pack that operand.  As a tile has at most 768
 * rows, a product that is cut has tiles of at least 384 rows (the last one may have slightly
 * fewer).
 */
enum { TILE_ROWS = 768, TILE_COLS = 1024, TILE_STEP = 16 };

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
    int rows, cols, across; /* size of a tile; number of tiles in a row of tiles */
};

static void run_tile(void *arg, int index)
{
    const struct gemm *g = arg;
    if (fm_pool_ending())
        return;
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
    if (g->product == fm_cpu_bf16_product && g->alpha == 1 && g->K > 0 && fm_isa_amx()) {
        fm_cpu_amx_gemm(g->ta, g->tb, g->M, g->N, g->K, g->A.data, g->lda, g->B.data, g->ldb,
                        g->beta, g->C, g->ldc);
        return;
    }
    g->rows = fm_cpu_cut(g->M, TILE_ROWS, TILE_STEP);
    g->cols = fm_cpu_cut(g->N, TILE_COLS, TILE_STEP);
    g->across = (g->N + g->cols - 1) / g->cols;
    fm_pool_for((g->M + g->rows - 1) / g->rows * g->across, run_tile, g);
}

struct fm_in fm_cpu_as(struct fm_in x, enum fm_dtype dtype, size_t n)
{
    if (x.dtype == dtype)
        return x;
    struct fm_out y = {fm_scratch(n * (size_t)(fm_dtype_bits(dtype) / 8)), dtype};
    cpu_convert(y, (int64_t)n, x, NULL, 1, (int64_t)n);
    return fm_written(y);
}

/* Elements from the first of `rows` rows to the end of the last. */
static size_t span(int rows, int cols, int ld)
{
    return rows > 0 ? (size_t)(rows - 1) * ld + cols : 0;
}

/* Compute product g, whose operands have any type, by a product with operands of `dtype`. */
static void multiply(struct gemm g, fm_product *product, enum fm_dtype dtype)
{
    struct fm_mark mark = fm_scratch_mark();
    g.product = product;
    g.A = fm_cpu_as(g.A, dtype, span(g.ta ? g.K : g.M, g.ta ? g.M : g.K, g.lda));
    g.B = fm_cpu_as(g.B, dtype, span(g.tb ? g.N : g.K, g.tb ? g.K : g.N, g.ldb));
    run_tiles(&g);
    fm_scratch_release(mark);
}

void cpu_gemm(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
              struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    multiply((struct gemm){NULL, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc, 0, 0, 0},
             fm_cpu_f32_product, FM_F32);
}

void cpu_bf16_gemm(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
                   struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    multiply((struct gemm){NULL, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc, 0, 0, 0},
             fm_cpu_bf16_product, FM_BF16);
}

void fm_cpu_f32_product(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
                        struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    fm_dnnl_sgemm(ta, tb, M, N, K, alpha, A.data, lda, B.data, ldb, beta, C, ldc);
}

FM_CLONES(void, scale_row, (float *c, const float *product, int n, float alpha, float beta),
          (c, product, n, alpha, beta))
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
    if (K > 0 && fm_isa_amx())
        fm_cpu_amx_gemm(ta, tb, M, N, K, A.data, lda, B.data, ldb, 0, product, N);
    else if (K > 0)
        fm_dnnl_bf16gemm(ta, tb, M, N, K, A.data, lda, B.data, ldb, product);
    else
        memset(product, 0, (size_t)M * N * sizeof *product);
    for (int i = 0; i < M; i++)
        scale_row(C + (size_t)i * ldc, product + (size_t)i * N, N, alpha, beta);
    fm_scratch_release(mark);
}
