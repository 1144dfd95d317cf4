/*
 * Private to kernels/: bfloat16 products on CPUs with AMX matrix registers, and channel_scores
 * built on them.
 *
 * A register holds a piece of an operand, TILE rows or columns by STEP terms of the sum, in pairs
 * of terms.  It is loaded fastest from one contiguous kilobyte, so operands are packed: a panel is
 * TILE rows of the left operand, or TILE columns of the right one, piece after piece along the sum.
 *
 * Call these functions only if fm_isa_amx() is true.
 */
#ifndef FM_KERNELS_CPU_AMX_H
#define FM_KERNELS_CPU_AMX_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"

enum {
    FM_AMX_TILE = 16,                         /* rows or columns of a register */
    FM_AMX_STEP = 32,                         /* terms of a sum per instruction */
    FM_AMX_PIECE = FM_AMX_TILE * FM_AMX_STEP, /* numbers per piece */
    FM_AMX_BLOCK = 2 * FM_AMX_TILE,           /* rows and columns computed at a time */
};

/* Number of pieces for a sum of n terms. */
static inline int fm_amx_steps(int n)
{
    return (n + FM_AMX_STEP - 1) / FM_AMX_STEP;
}

/*
 * An unpacked operand: term k of its row or column c is x[c ld + k] if it is contiguous `along` the
 * sum, else x[k ld + c].
 */
struct fm_amx_operand {
    const uint16_t *x;
    int64_t ld;
    bool along;
};

/* Pack two panels of the operand's first `count` rows (left) or columns (right), at most BLOCK,
 * over the first n terms.  Panels and pieces are padded with zeros. */
void fm_amx_pack(uint16_t *block, struct fm_amx_operand of, bool right, int count, int n);

/* Pack a right operand x[k ld + c] with any number of columns: rows are read contiguously. */
void fm_amx_pack_columns(uint16_t *to, const uint16_t *x, int64_t ld, int count, int n);

/* Turn pieces of a right operand into those of a left one: columns of the right operand are rows of
 * the left one. */
void fm_amx_turn(uint16_t *piece, size_t count);

/* Begin and end the use of tile registers by the calling thread. */
void fm_amx_begin(void);
void fm_amx_end(void);

/* d (BLOCK, BLOCK), rows ld floats apart, = or += the product of two panels of the left operand and
 * two of the right one; each pair is contiguous. */
void fm_amx_multiply(float *d, int ld, bool add, const uint16_t *left, const uint16_t *right,
                     int steps);

/*
 * For each channel c, add to s[c] the sum of (W dW)^2 over its `per` rows, over H and over the
 * batches.  dW (per I, H) = a^T b of a batch is computed in float32, 32 x 32 values at a time, and
 * not stored.  a (n, per I) and b (n, H) are BF16, W (per I, H) F32 or BF16; batch p of
 * `parts` has rows [first[p] - first[0], first[p + 1] - first[0]).
 */
void fm_cpu_amx_scores(double *s, int per, struct fm_in W, const uint16_t *a, const uint16_t *b,
                       const int32_t *first, int parts, int I, int H);

/* C (M, N) = op(A) op(B) + beta C as in kernels.def, sums in float32 in the order of K.  K > 0. */
void fm_cpu_amx_gemm(bool ta, bool tb, int M, int N, int K, const uint16_t *A, int lda,
                     const uint16_t *B, int ldb, float beta, float *C, int ldc);

#endif
