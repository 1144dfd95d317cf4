/*
 * Private to kernels/: the entries of the tables.  ref_* are the reference implementation in this
 * room, cpu_* the fast versions in kernels/cpu.  Contracts are in kernels.h, operations in
 * kernels.def.
 */
#ifndef FM_KERNELS_OPS_H
#define FM_KERNELS_OPS_H

#include <math.h>
#include <stddef.h>

#include "kernels/ops/kernels.h"

#define FM_OP(name, parameters, arguments, writes)                                                 \
    void ref_##name parameters;                                                                    \
    void cpu_##name parameters;
#include "kernels/ops/kernels.def"
#undef FM_OP

/* Convert elements [at, at + n) of x, values or codes with scales, to floats. */
void fm_read_floats(float *to, struct fm_in x, size_t at, size_t n);

/*
 * Access to arrays that may not be float32, through scratch: n elements to be read as floats;
 * memory for n floats to be written; and the conversion of these floats to the type of the array.
 * For float32 they use the array itself.
 */
const float *fm_widen(struct fm_in x, size_t n);
float *fm_wide(struct fm_out y, size_t n);
void fm_narrow(struct fm_out y, const float *wide, size_t n);

static inline double fm_sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* ln(1 + e^z) without overflow. */
static inline double fm_softplus(double z)
{
    return fmax(z, 0) + log1p(exp(-fabs(z)));
}

/* The index of the largest of x (E) that is not among ids[0..n), n < E; the lower index on ties. */
int32_t fm_largest_left(const float *x, const int32_t *ids, int n, int E);

/* Entries of the cpu table whose products have bfloat16 operands. */
void cpu_bf16_gemm(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
                   struct fm_in B, int ldb, float beta, float *C, int ldc);
/* Only with AMX matrix registers (kernels/cpu/cpu_amx.h). */
void cpu_bf16_attention(float *o, const float *q, const float *k, const float *v,
                        const float *sinks, int S, int T, int Q, int G, int C, int D, double root,
                        int window);
void cpu_bf16_attention_back(float *dq, float *dk, float *dv, const float *d_o, const float *o,
                             const float *q, const float *k, const float *v, const float *sinks,
                             int S, int T, int Q, int G, int C, int D, double root, int window);

/* channel_scores of one table; and channel_scores_each, which calls it batch by batch. */
typedef void fm_scores(double *s, struct fm_in gate_up, struct fm_in down, struct fm_in dgu,
                       struct fm_in x, struct fm_in h, struct fm_in dy, int n, int I, int H);
void fm_scores_each(fm_scores *scores, double *s, struct fm_in gate_up, struct fm_in down,
                    struct fm_in dgu, struct fm_in x, struct fm_in h, struct fm_in dy,
                    const int32_t *first, int parts, int I, int H);

void cpu_bf16_channel_scores_each(double *s, struct fm_in gate_up, struct fm_in down,
                                  struct fm_in dgu, struct fm_in x, struct fm_in h, struct fm_in dy,
                                  const int32_t *first, int parts, int I, int H);
void cpu_bf16_channel_scores(double *s, struct fm_in gate_up, struct fm_in down, struct fm_in dgu,
                             struct fm_in x, struct fm_in h, struct fm_in dy, int n, int I, int H);

/* The table of fm_ops_cpu for BF16, even if the CPU has no such instructions (oneDNN emulates them
 * on AVX-512): for tests. */
const struct fm_ops *fm_ops_cpu_bf16(void);

#endif
