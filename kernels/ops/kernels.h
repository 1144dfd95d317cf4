/*
 * The operations a decoder layer is made of, as a table of functions.  A machine
 * is a filled table: `ref` is the definition (plain loops, sums in double), `cpu`
 * is fast (oneDNN products, all cores).  The model is written once, against the
 * table.  The operations themselves, with formulas and shapes, are kernels/ops/kernels.def.
 *
 * Contract.  Arrays are row-major and packed unless a leading dimension (ld, in
 * elements) is given; float32.  Outputs come first, then inputs, then sizes.
 * A forward overwrites its output.  A backward overwrites dx unless it says
 * "adds".  Nothing allocates except scratch (lib/base/pool.h), nothing fails.
 * Every op gives the same bytes for any number of threads: work is cut into tiles
 * that depend on the sizes alone, and sums over tiles are made in a fixed order.
 *
 * Letters, here and everywhere: N tokens (rows), T positions of a sequence,
 * S sequences (N = S T), H hidden width, Q query heads, G key/value heads, C head width,
 * E experts, K experts chosen per token, I expert width (channels), k <= I the
 * width of a subnet, V vocabulary, L layers, A actions, B budgets, n rows of one expert.
 *
 * Expert weights have the online layout: gate_up (2I, H) with rows
 * g0,u0,g1,u1,..., down (I, H), transposed.  A subnet of width k is a prefix of both.
 */
#ifndef FM_KERNELS_H
#define FM_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"

enum fm_precision {
    FM_PRECISION_F32,
    FM_PRECISION_BF16 /* operands of products rounded to bfloat16, sums in float32 */
};

/* What the loss does to a row; weights of the two terms and the factor of the gradient. */
struct fm_loss_weights {
    float ce, kl; /* loss = ce * CE + kl * KL(teacher || student) */
    float scale;  /* dlogits = scale * dloss_row/dlogits, usually 1 / rows of the batch */
};

struct fm_ops {
    const char *name; /* "ref", "cpu" */
#define FM_OP(name, parameters, arguments) void(*name) parameters;
#include "kernels/ops/kernels.def"
#undef FM_OP
};

/* The definition: plain loops, double sums, the caller's thread alone. */
const struct fm_ops *fm_ops_ref(void);

/*
 * The fast table for this machine.  FM_EDEVICE with a sentence that names what is
 * missing where `precision` is BF16 and the CPU has no bfloat16 instructions
 * (avx512_bf16 or amx_bf16).
 */
int fm_ops_cpu(const struct fm_ops **ops, enum fm_precision precision, struct fm_err *err);

/*
 * What measurements compare with: oneDNN alone on the calling thread, C (M, N) packed = A (M, K)
 * B, or B^T of B (N, K) where tb; operands float, or bfloat16 where `bf16`.  False where oneDNN has
 * no such product here.
 */
bool fm_ops_dnnl_product(bool bf16, bool tb, int M, int N, int K, const void *A, int lda,
                         const void *B, int ldb, float *C);

/* Version of oneDNN in use, "2.6.3", and the instruction set it chose, for build.json. */
void fm_ops_dnnl_version(char *text, int size);

#endif
