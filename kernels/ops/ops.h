/*
 * Private to kernels/: the entries of the tables.  ref_* are the definitions, one
 * file per subject (gemm norm attention route expert vocab optim); cpu_* are the
 * fast ones in cpu_*.c.  Contracts are in kernels.h.
 */
#ifndef FM_KERNELS_OPS_H
#define FM_KERNELS_OPS_H

#include <stddef.h>

#include "kernels/ops/kernels.h"

void ref_gemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
              const float *B, int ldb, float beta, float *C, int ldc);
void ref_norm(float *y, float *rstd, const float *x, const float *w, const float *b, int N, int H,
              float eps);
void ref_norm_back(float *dx, const float *dy, const float *x, const float *w, const float *b,
                   const float *rstd, int N, int H);
void ref_rope(float *x, const float *cos, const float *sin, int N, int T, int heads, int C,
              float sign);
void ref_attention(float *o, const float *q, const float *k, const float *v, int S, int T, int Q,
                   int G, int C, int window);
void ref_attention_back(float *dq, float *dk, float *dv, const float *d_o, const float *o,
                        const float *q, const float *k, const float *v, int S, int T, int Q, int G,
                        int C, int window);
void ref_route(int32_t *ids, float *weights, const float *logits, int N, int E, int K);
void ref_route_back(float *dlogits, const float *dweights, const int32_t *ids, const float *weights,
                    int N, int E, int K);
void ref_route_raw(int32_t *ids, float *weights, float *p, int N, int E, int K);
void ref_route_raw_back(float *dlogits, const float *dweights, const int32_t *ids, const float *p,
                        int N, int E, int K);
void ref_sparsemixer(int32_t *ids, float *weights, const float *logits, int N, int E,
                     float threshold);
void ref_sparsemixer_back(float *dlogits, const float *dweights, const int32_t *ids,
                          const float *weights, const float *logits, int N, int E, float threshold);
void ref_add_rows(float *x, const float *b, int N, int H);
void ref_clamp(float *x, float limit, int64_t count);
void ref_clamp_back(float *dx, const float *x, float limit, int64_t count);
void ref_gate_rows(float *h, float *s, const float *u, int N, int I);
void ref_gate_rows_back(float *dh, float *du, const float *h, const float *s, int N, int I);
void ref_gather(float *y, const float *x, const int32_t *rows, const float *scale, int n, int H);
void ref_combine(float *y, const float *z, const int32_t *where, const float *weights, int N, int K,
                 int H);
void ref_swiglu(float *h, const float *gu, int n, int I);
void ref_swiglu_back(float *dgu, const float *dh, const float *gu, int n, int I, int k);
void ref_dot_rows(float *g, const float *a, const float *b, int n, int I, int k);
void ref_channel_sums(double *c, const float *h, const float *dh, int n, int I);
void ref_channel_scores(double *s, const float *gate_up, const float *down, const float *dgu,
                        const float *x, const float *h, const float *dy, int n, int I, int H);
void ref_embed(float *x, const int32_t *ids, const float *table, int N, int H);
void ref_loss(double *ce, double *kl, int32_t *top, float *logits, const float *teacher,
              const int32_t *target, int n, int V, const struct fm_loss_weights *weights);
void ref_adamw(float *p, float *m, float *v, const float *g, int64_t count, float lr, float beta1,
               float beta2, float eps, float decay, int t);
void ref_add(float *y, const float *x, int64_t count);

void cpu_gemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
              const float *B, int ldb, float beta, float *C, int ldc);
void cpu_norm(float *y, float *rstd, const float *x, const float *w, const float *b, int N, int H,
              float eps);
void cpu_norm_back(float *dx, const float *dy, const float *x, const float *w, const float *b,
                   const float *rstd, int N, int H);
void cpu_rope(float *x, const float *cos, const float *sin, int N, int T, int heads, int C,
              float sign);
void cpu_attention(float *o, const float *q, const float *k, const float *v, int S, int T, int Q,
                   int G, int C, int window);
void cpu_attention_back(float *dq, float *dk, float *dv, const float *d_o, const float *o,
                        const float *q, const float *k, const float *v, int S, int T, int Q, int G,
                        int C, int window);
void cpu_route(int32_t *ids, float *weights, const float *logits, int N, int E, int K);
void cpu_route_back(float *dlogits, const float *dweights, const int32_t *ids, const float *weights,
                    int N, int E, int K);
void cpu_route_raw(int32_t *ids, float *weights, float *p, int N, int E, int K);
void cpu_route_raw_back(float *dlogits, const float *dweights, const int32_t *ids, const float *p,
                        int N, int E, int K);
void cpu_add_rows(float *x, const float *b, int N, int H);
void cpu_clamp(float *x, float limit, int64_t count);
void cpu_clamp_back(float *dx, const float *x, float limit, int64_t count);
void cpu_gate_rows(float *h, float *s, const float *u, int N, int I);
void cpu_gate_rows_back(float *dh, float *du, const float *h, const float *s, int N, int I);
void cpu_gather(float *y, const float *x, const int32_t *rows, const float *scale, int n, int H);
void cpu_combine(float *y, const float *z, const int32_t *where, const float *weights, int N, int K,
                 int H);
void cpu_swiglu(float *h, const float *gu, int n, int I);
void cpu_swiglu_back(float *dgu, const float *dh, const float *gu, int n, int I, int k);
void cpu_dot_rows(float *g, const float *a, const float *b, int n, int I, int k);
void cpu_channel_sums(double *c, const float *h, const float *dh, int n, int I);
void cpu_channel_scores(double *s, const float *gate_up, const float *down, const float *dgu,
                        const float *x, const float *h, const float *dy, int n, int I, int H);
void cpu_embed(float *x, const int32_t *ids, const float *table, int N, int H);
void cpu_loss(double *ce, double *kl, int32_t *top, float *logits, const float *teacher,
              const int32_t *target, int n, int V, const struct fm_loss_weights *weights);
void cpu_adamw(float *p, float *m, float *v, const float *g, int64_t count, float lr, float beta1,
               float beta2, float eps, float decay, int t);
void cpu_add(float *y, const float *x, int64_t count);

/* The entries of cpu whose products have bfloat16 operands. */
void cpu_bf16_gemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
                   const float *B, int ldb, float beta, float *C, int ldc);
void cpu_bf16_channel_scores(double *s, const float *gate_up, const float *down, const float *dgu,
                             const float *x, const float *h, const float *dy, int n, int I, int H);

/* The table that fm_ops_cpu gives for BF16, also where the CPU has no such instructions (oneDNN
 * emulates them on AVX-512): for tests. */
const struct fm_ops *fm_ops_cpu_bf16(void);

#endif
