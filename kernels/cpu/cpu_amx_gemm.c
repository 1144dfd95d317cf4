/*
 * Products with matrix registers.  A task computes a tile of C. For each stretch of K it packs its
 * columns of B, which stay in the L2 cache, and processes its rows of A, 32 at a time, which stay
 * in the L1 cache for all columns.  The sums of one stretch are continued from C in the next one,
 * so every sum is computed in float32 in the order of K, however the product is divided into tasks.
 *
 * oneDNN (2.6) is as fast if it may choose B's layout and C is packed; with B in its given layout,
 * or C in wider rows, it reaches a third of that speed.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_amx.h"

#if defined(__x86_64__)
#include <string.h>

#include "kernels/cpu/cpu_masked.h"
#include "lib/base/pool.h"

enum {
    TILE = FM_AMX_TILE,
    BLOCK = FM_AMX_BLOCK,
    STRETCH = 512,   /* terms of the sum: 32 KiB of A */
    TASK_COLS = 512, /* 512 KiB of B */
    TASK_ROWS = 1024,
    PACK_ROWS = 256, /* rows of A in a task that packs A */
    PACK_ONCE = 3,   /* if a row of tasks has at least this many, A is packed once for all */
};

#define TARGET __attribute__((target("avx512f")))

struct product {
    bool ta, tb;
    int M, N, K;
    const uint16_t *A, *B;
    int lda, ldb;
    bool add;
    float *C;
    int ldc;
    int rows, cols, across; /* size of a task; number of tasks in a row of tasks */
    uint16_t *left; /* all of A packed, stretch after stretch; NULL: tasks pack it themselves */
};

/* Pack panels of `count` columns of B or rows of A, in whole blocks, over the n terms from k on. */
static void pack_panels(uint16_t *to, const struct product *p, bool right, int first, int count,
                        int k, int n)
{
    bool along = right ? p->tb : !p->ta;
    const uint16_t *x = right ? p->B : p->A;
    int64_t ld = right ? p->ldb : p->lda, across = along ? ld : 1, down = along ? 1 : ld;
    size_t panel = (size_t)fm_amx_steps(n) * FM_AMX_PIECE;
    if (right && !along) {
        fm_amx_pack_columns(to, x + first + k * ld, ld, count, n);
        return;
    }
    for (int i = 0; i < count; i += BLOCK, to += 2 * panel) {
        const uint16_t *from = x + (first + i) * across + k * down;
        fm_amx_pack(to, (struct fm_amx_operand){from, ld, along}, right,
                    fm_cpu_at_most(count - i, BLOCK), n);
    }
}

/* Copy (rows, cols) from rows ldfrom floats apart to rows ldto floats apart. */
TARGET static void copy_block(float *to, int ldto, const float *from, int ldfrom, int rows,
                              int cols)
{
    const __mmask16 low = (__mmask16)((1u << fm_cpu_at_most(cols, TILE)) - 1);
    const __mmask16 high = (__mmask16)((1u << fm_cpu_at_most(cols - TILE, TILE)) - 1);
    for (int i = 0; i < rows; i++, to += ldto, from += ldfrom) {
        _mm512_mask_storeu_ps(to, low, _mm512_maskz_loadu_ps(low, from));
        _mm512_mask_storeu_ps(to + TILE, high, _mm512_maskz_loadu_ps(high, from + TILE));
    }
}

/* Compute the block of C at (i, j), or the part of it that exists. */
static void make_block(const struct product *p, int i, int j, bool add, const uint16_t *left,
                       const uint16_t *right, int steps)
{
    float *c = p->C + (size_t)i * p->ldc + j, d[BLOCK * BLOCK];
    int rows = p->M - i, cols = p->N - j;
    if (rows >= BLOCK && cols >= BLOCK) {
        fm_amx_multiply(c, p->ldc, add, left, right, steps);
        return;
    }
    rows = fm_cpu_at_most(rows, BLOCK);
    cols = fm_cpu_at_most(cols, BLOCK);
    memset(d, 0, sizeof d);
    if (add)
        copy_block(d, BLOCK, c, p->ldc, rows, cols);
    fm_amx_multiply(d, BLOCK, add, left, right, steps);
    copy_block(c, p->ldc, d, BLOCK, rows, cols);
}

/* Start of the packed panels of A's rows from i on, for the stretch from k on, with `panel` numbers
 * each; i is a multiple of BLOCK. */
static uint16_t *left_at(const struct product *p, int k, int i, size_t panel)
{
    size_t all = (size_t)(p->M + BLOCK - 1) / BLOCK * BLOCK;
    return p->left + (size_t)k * all + (size_t)(i / TILE) * panel;
}

static void pack_left(void *arg, int index)
{
    const struct product *p = arg;
    int i = index * PACK_ROWS;
    for (int k = 0; k < p->K; k += STRETCH) {
        int n = fm_cpu_at_most(p->K - k, STRETCH);
        size_t panel = (size_t)fm_amx_steps(n) * FM_AMX_PIECE;
        pack_panels(left_at(p, k, i, panel), p, false, i, fm_cpu_at_most(p->M - i, PACK_ROWS), k,
                    n);
    }
}

static void run_task(void *arg, int index)
{
    const struct product *p = arg;
    if (fm_pool_ending())
        return;
    int i0 = index / p->across * p->rows, j0 = index % p->across * p->cols;
    int rows = fm_cpu_at_most(p->M - i0, p->rows), cols = fm_cpu_at_most(p->N - j0, p->cols);
    struct fm_mark mark = fm_scratch_mark();
    int most = fm_cpu_at_most(p->K, STRETCH);
    size_t longest = (size_t)fm_amx_steps(most) * FM_AMX_PIECE;
    uint16_t *right = fm_scratch((size_t)p->cols / TILE * longest * sizeof *right);
    uint16_t *own = p->left ? NULL : fm_scratch(2 * longest * sizeof *own), *left = own;
    fm_amx_begin();
    for (int k = 0; k < p->K; k += STRETCH) {
        int n = fm_cpu_at_most(p->K - k, STRETCH), steps = fm_amx_steps(n);
        size_t panel = (size_t)steps * FM_AMX_PIECE;
        pack_panels(right, p, true, j0, cols, k, n);
        for (int i = 0; i < rows; i += BLOCK) {
            if (p->left)
                left = left_at(p, k, i0 + i, panel);
            else
                pack_panels(own, p, false, i0 + i, fm_cpu_at_most(rows - i, BLOCK), k, n);
            for (int j = 0; j < cols; j += BLOCK)
                make_block(p, i0 + i, j0 + j, p->add || k > 0, left,
                           right + (size_t)(j / TILE) * panel, steps);
        }
    }
    fm_amx_end();
    fm_scratch_release(mark);
}

void fm_cpu_amx_gemm(bool ta, bool tb, int M, int N, int K, const uint16_t *A, int lda,
                     const uint16_t *B, int ldb, float beta, float *C, int ldc)
{
    if (M <= 0 || N <= 0)
        return;
    struct product p = {ta, tb, M, N, K, A, B, lda, ldb, beta != 0, C, ldc, 0, 0, 0, NULL};
    struct fm_mark mark = fm_scratch_mark();
    p.rows = fm_cpu_cut(M, TASK_ROWS, BLOCK);
    p.cols = fm_cpu_cut(N, TASK_COLS, BLOCK);
    p.across = (N + p.cols - 1) / p.cols;
    if (p.across >= PACK_ONCE) {
        size_t rows = (size_t)(M + BLOCK - 1) / BLOCK * BLOCK;
        p.left = fm_scratch(rows * (size_t)fm_amx_steps(K) * FM_AMX_STEP * sizeof *p.left);
        fm_pool_for((M + PACK_ROWS - 1) / PACK_ROWS, pack_left, &p);
    }
    fm_pool_for((M + p.rows - 1) / p.rows * p.across, run_task, &p);
    fm_scratch_release(mark);
}

#else

void fm_cpu_amx_gemm(bool ta, bool tb, int M, int N, int K, const uint16_t *A, int lda,
                     const uint16_t *B, int ldb, float beta, float *C, int ldc)
{
    (void)ta, (void)tb, (void)M, (void)N, (void)K, (void)A, (void)lda, (void)B, (void)ldb;
    (void)beta, (void)C, (void)ldc;
}
#endif
