/*
 * Private to kernels/: products of bfloat16 on CPUs whose matrix registers multiply it (AMX), and
 * channel_scores made of them.
 *
 * A register holds a piece of an operand, TILE rows or columns by STEP terms of the sum, in pairs
 * of terms.  It is loaded fastest from where it lies in one kilobyte, so operands are packed: a
 * panel is TILE rows of the left operand, or TILE columns of the right one, piece after piece along
 * the sum.
 *
 * Everything here needs fm_isa_amx().
 */
#ifndef FM_KERNELS_CPU_AMX_H
#define FM_KERNELS_CPU_AMX_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"

enum {
    FM_AMX_TILE = 16,                         /* rows or columns of a register */
    FM_AMX_STEP = 32,                         /* terms of a sum that one instruction takes */
    FM_AMX_PIECE = FM_AMX_TILE * FM_AMX_STEP, /* numbers of a piece */
    FM_AMX_BLOCK = 2 * FM_AMX_TILE,           /* rows and columns that are made at a time */
};

/* Pieces along a sum of n terms. */
static inline int fm_amx_steps(int n)
{
    return (n + FM_AMX_STEP - 1) / FM_AMX_STEP;
}

/*
 * An operand where it lies: term k of its row or column c is x[c ld + k] where it runs `along` the
 * sum, else x[k ld + c].
 */
struct fm_amx_operand {
    const uint16_t *x;
    int64_t ld;
    bool along;
};

/* Two panels, of its first `count` rows (of a left operand) or columns (of the right one), at most
 * BLOCK, over the first n terms.  What is missing to whole panels or pieces is zero. */
void fm_amx_pack(uint16_t *block, struct fm_amx_operand of, bool right, int count, int n);

/* The same of the right operand, of as many columns as there are, x[k ld + c]: rows are read as
 * they lie, whatever the number of columns. */
void fm_amx_pack_columns(uint16_t *to, const uint16_t *x, int64_t ld, int count, int n);

/* Pieces of a right operand become those of a left one: its columns are the left one's rows. */
void fm_amx_turn(uint16_t *piece, size_t count);

/* Between these two the calling thread's registers hold tiles. */
void fm_amx_begin(void);
void fm_amx_end(void);

/* d (BLOCK, BLOCK), rows ld floats apart, = or += the product of two panels of the left operand and
 * two of the right one, each pair in a row. */
void fm_amx_multiply(float *d, int ld, bool add, const uint16_t *left, const uint16_t *right,
                     int steps);

/*
 * Adds into s (I) the sum over the `per` rows i of channel i / per, over H and over the batches, of
 * (W dW)^2, where dW (per I, H) = a^T b of a batch is made in float32, 32 x 32 values at a time,
 * and dropped.  a (n, per I) and b (n, H) are BF16, W (per I, H) F32 or BF16; batch p of `parts`
 * has rows [first[p] - first[0], first[p + 1] - first[0]).
 */
void fm_cpu_amx_scores(double *s, int per, struct fm_in W, const uint16_t *a, const uint16_t *b,
                       const int32_t *first, int parts, int I, int H);

/* C (M, N) = op(A) op(B) + beta C as in kernels.h, sums in float32 in the order of K.  K > 0. */
void fm_cpu_amx_gemm(bool ta, bool tb, int M, int N, int K, const uint16_t *A, int lda,
                     const uint16_t *B, int ldb, float beta, float *C, int ldc);

#endif
