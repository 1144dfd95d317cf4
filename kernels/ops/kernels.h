/*
 * This room, kernels/ops: the operations of a decoder as a contract, and a reference implementation
 * in plain loops, against which every faster table is tested.  It deals with arrays and sizes only,
 * not with files, models or layers.  In reading order: this header, kernels.def, norm.c (a forward
 * and its backward), gemm, attention, delta, route, scored, sparsemixer, expert, clamped, sums,
 * vocab, optim, solve, families, memory, ref.c (the reference table), scan (a table for debugging).
 *
 * The contract: the operations of a decoder layer as a table of functions (struct fm_ops).  `ref`
 * is the reference implementation (plain loops, sums in double), `cpu` is fast (products by
 * oneDNN or matrix registers, all cores).  The model is written once, against the table.  The
 * operations themselves, with formulas and shapes, are in kernels/ops/kernels.def.
 *
 * Operations.  Arrays are row-major and packed unless a leading dimension (ld, in elements) is
 * given; float32 unless they carry their type (struct fm_in, struct fm_out).  Outputs come first,
 * then inputs, then sizes.  An operation overwrites its outputs unless its description says that it
 * adds to them or works in place.  Operations allocate only scratch and do not fail.  Every
 * operation gives the same bytes for any number of threads: work is cut into tiles that depend only
 * on the sizes, and sums over tiles are computed in a fixed order.
 *
 * Letters, unless a comment redefines them: N tokens (rows), T positions of a sequence, S sequences
 * (N = S T), H hidden width, Q query heads, G key/value heads, C head width, E experts, K experts
 * chosen per token, I expert width (channels), k <= I the width of a subnet, D width of a value
 * head, or of a dense layer's or shared expert's MLP, V vocabulary, L layers, M those with experts,
 * A actions, B budgets, P micro-batches that go through a layer together, R = N K chosen rows of
 * all experts, n rows of one expert (or of whatever an op works on).  In a product M, N, K are its
 * own sizes: rows and columns of the result, terms of a sum.
 *
 * Expert weights have the online layout: gate_up (2I, H) with rows g0,u0,g1,u1,..., down (I, H),
 * transposed.  A subnet of width k is a prefix of both.
 */
#ifndef FM_KERNELS_H
#define FM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/base/pool.h"
#include "lib/base/scaled.h"

/* An array with its type: F32 and BF16 everywhere; F16, F64 and codes with their scales if an
 * operation says so.  fm_in is for reading, fm_out for writing. */
struct fm_in {
    const void *data;
    enum fm_dtype dtype;
    const struct fm_scales *scales; /* of the codes in data; NULL: data holds values */
};
struct fm_out {
    void *data;
    enum fm_dtype dtype;
};

static inline struct fm_in fm_f32(const float *x)
{
    return (struct fm_in){x, FM_F32, NULL};
}

static inline struct fm_out fm_to_f32(float *y)
{
    return (struct fm_out){y, FM_F32};
}

/* The array that was written, for reading. */
static inline struct fm_in fm_written(struct fm_out y)
{
    return (struct fm_in){y.data, y.dtype, NULL};
}

/* Element i of an array of values, and what follows it. */
static inline struct fm_in fm_element(struct fm_in x, size_t i)
{
    const char *at = (const char *)x.data + i * (size_t)(fm_dtype_bits(x.dtype) / 8);
    return (struct fm_in){at, x.dtype, NULL};
}

static inline struct fm_out fm_element_out(struct fm_out y, size_t i)
{
    return (struct fm_out){(char *)y.data + i * (size_t)(fm_dtype_bits(y.dtype) / 8), y.dtype};
}

enum fm_precision {
    FM_PRECISION_F32,
    FM_PRECISION_BF16 /* operands of products rounded to bfloat16, sums in float32 */
};

/* The loss of a row: weights of its two terms, and the scale of the gradient. */
struct fm_loss_weights {
    float ce, kl; /* loss = ce * CE + kl * KL(teacher || student) */
    float scale;  /* dlogits = scale * dloss_row/dlogits, usually 1 / rows of the batch */
};

/* How a router scores E experts, chooses K of them, and weights those. */
struct fm_route_rule {
    bool sigmoid; /* a score is the sigmoid of its logit; else the softmax over all experts */
    int groups, topk_group; /* experts come in `groups` groups of E / groups adjacent ones, and are
                               chosen from the best `topk_group` groups; 1 and 1: no groups */
    int group_sum;          /* a group's score is the sum of its best 1 or 2 experts */
    bool renormalised; /* weights are divided by their sum + eps, or by `least` if that is larger */
    float eps, least;
    float scale; /* the weights are multiplied by it */
};

struct fm_ops {
    const char *name;         /* "ref", "cpu" */
    const struct fm_ops *f32; /* the same table with products of float32 operands */
    enum fm_dtype operand; /* type to which products round their operands: arrays that only products
                              read should have it */
#define FM_OP(name, parameters, arguments, writes) void(*name) parameters;
#include "kernels/ops/kernels.def"
#undef FM_OP
};

/* The reference implementation: plain loops, double sums, on the caller's thread. */
const struct fm_ops *fm_ops_ref(void);

/*
 * The fast table for this machine.  FM_EDEVICE, naming what is missing, if `precision` is BF16 and
 * the CPU has no bfloat16 instructions (avx512_bf16 or amx_bf16) or FM_ISA excludes them, or if
 * oneDNN cannot be limited to FM_ISA; FM_ENOMEM.
 */
int fm_ops_cpu(const struct fm_ops **ops, enum fm_precision precision, struct fm_err *err);

/*
 * Baseline for measurements: only oneDNN, on the calling thread.  C (M, N) packed = A (M, K) B, or
 * A B^T with B (N, K) if tb; operands are float, or bfloat16 if `bf16`.  False if oneDNN has no
 * such product on this machine.
 */
bool fm_ops_dnnl_product(bool bf16, bool tb, int M, int N, int K, const void *A, int lda,
                         const void *B, int ldb, float *C);

/* Version of oneDNN in use and the instruction set it chose, "2.6.3 avx2", for build.json. */
void fm_ops_dnnl_version(char *text, int size);

#endif
