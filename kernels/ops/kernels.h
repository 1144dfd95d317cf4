/*
 * The operations a decoder layer is made of, as a table of functions.  A machine
 * is a filled table: `ref` is the definition (plain loops, sums in double), `cpu`
 * is fast (oneDNN products, all cores).  The model is written once, against the
 * table.
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

    /* C (M, N) = alpha op(A) op(B) + beta C, beta 0 or 1.  op(A) is (M, K): A itself, or the
     * transpose of A (K, M) where ta; op(B) is (K, N), or the transpose of B (N, K) where tb.
     * With beta 0, C is not read. */
    void (*gemm)(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
                 const float *B, int ldb, float beta, float *C, int ldc);

    /* y (N, H) = w * x * rstd, rstd (N) = 1 / sqrt(mean(x^2) + eps), kept for the backward.  With
     * b (H), else NULL, this is LayerNorm: x - mean(x) stands for x, and b is added. */
    void (*norm)(float *y, float *rstd, const float *x, const float *w, const float *b, int N,
                 int H, float eps);
    /* Adds into dx (N, H): rstd w dy - x rstd^3 / H sum(w dy x), less its mean where there is b. */
    void (*norm_back)(float *dx, const float *dy, const float *x, const float *w, const float *b,
                      const float *rstd, int N, int H);

    /* In place on x (N, heads, C): rotate pairs (i, i + C/2) of row t by the angle whose
     * cos, sin (T, C/2) are given, position = row mod T.  sign -1 rotates back: the backward. */
    void (*rope)(float *x, const float *cos, const float *sin, int N, int T, int heads, int C,
                 float sign);

    /* o (N, Q, C): causal attention of q (N, Q, C) over k, v (N, G, C) inside each sequence of T
     * rows, query head h on key head h / (Q/G), scores times C^-0.5; with window > 0 a
     * query sees only the `window` positions ending at its own. */
    void (*attention)(float *o, const float *q, const float *k, const float *v, int S, int T, int Q,
                      int G, int C, int window);
    /* dq, dk, dv from the gradient d_o at o; probabilities are computed again. */
    void (*attention_back)(float *dq, float *dk, float *dv, const float *d_o, const float *o,
                           const float *q, const float *k, const float *v, int S, int T, int Q,
                           int G, int C, int window);

    /* Softmax over the E logits of a row, the K largest (ties: lower index), renormalised to sum 1:
     * ids, weights (N, K), largest first. */
    void (*route)(int32_t *ids, float *weights, const float *logits, int N, int E, int K);
    /* dlogits (N, E) from dweights (N, K): w_i (g_i - sum_j w_j g_j) at chosen experts, else 0. */
    void (*route_back)(float *dlogits, const float *dweights, const int32_t *ids,
                       const float *weights, int N, int E, int K);

    /* The same without renormalising: the weights are probabilities.  p (N, E) holds the logits and
     * receives the probabilities, which the backward needs of all experts. */
    void (*route_raw)(int32_t *ids, float *weights, float *p, int N, int E, int K);
    /* dlogits (N, E) from dweights (N, K): p_j ([j chosen] g_j - sum_i p_i g_i), for all j. */
    void (*route_raw_back)(float *dlogits, const float *dweights, const int32_t *ids,
                           const float *p, int N, int E, int K);

    /* PhiMoE's two experts: twice the largest logit of those left, weighted by its share in the
     * softmax over those whose quotient (largest - z) / max(|z|, largest) is at most threshold. */
    void (*sparsemixer)(int32_t *ids, float *weights, const float *logits, int N, int E,
                        float threshold);
    /* dlogits (N, E) from dweights (N, 2): the sum of the softmaxes' gradients. */
    void (*sparsemixer_back)(float *dlogits, const float *dweights, const int32_t *ids,
                             const float *weights, const float *logits, int N, int E,
                             float threshold);

    /* Adds the row b (H) to every row of x (N, H). */
    void (*add_rows)(float *x, const float *b, int N, int H);

    /* x[i] into [-limit, limit], i < count, in place. */
    void (*clamp)(float *x, float limit, int64_t count);
    /* dx[i] = 0 where x[i], as it was before, is outside; the bounds are inside. */
    void (*clamp_back)(float *dx, const float *x, float limit, int64_t count);

    /* s (N) = sigmoid(u); h (N, I): row t times s[t], in place. */
    void (*gate_rows)(float *h, float *s, const float *u, int N, int I);
    /* dh (N, I), the gradient at h, becomes the one at h as it was before: dh[t] *= s[t]; the one
     * at u is du (N) = (1 - s) <dh, h>. */
    void (*gate_rows_back)(float *dh, float *du, const float *h, const float *s, int N, int I);

    /* y (n, H): y[r] = x[rows[r]], times scale[r] where scale is not NULL. */
    void (*gather)(float *y, const float *x, const int32_t *rows, const float *scale, int n, int H);
    /* Adds into y (N, H): y[t] += sum over j of weights[t,j] * z[where[t,j]], j in order.
     * z (R, H) holds the rows of all experts; weights NULL means 1. */
    void (*combine)(float *y, const float *z, const int32_t *where, const float *weights, int N,
                    int K, int H);

    /* h (n, I) = silu(g) * u from gu (n, 2I) interleaved. */
    void (*swiglu)(float *h, const float *gu, int n, int I);
    /* dgu (n, 2k), packed, from dh (n, I) and gu (n, 2I): channels [0, k) alone. */
    void (*swiglu_back)(float *dgu, const float *dh, const float *gu, int n, int I, int k);
    /* g (n): g[r] = sum over j < k of a[r,j] * b[r,j], both (n, I). */
    void (*dot_rows)(float *g, const float *a, const float *b, int n, int I, int k);
    /* Adds into c (I): sum over rows r in [0, n), in order, of h[r,j] * dh[r,j], in double. */
    void (*channel_sums)(double *c, const float *h, const float *dh, int n, int I);
    /* Adds into s (I): the sum over the parameters of channel j of (theta * dtheta)^2, where
     * dgate_up (2I, H) = dgu^T x, ddown (I, H) = h^T dy are made tile by tile and dropped.
     * dgu (n, 2I), x (n, H), h (n, I), dy (n, H) with the router weight in it. METHOD 1. */
    void (*channel_scores)(double *s, const float *gate_up, const float *down, const float *dgu,
                           const float *x, const float *h, const float *dy, int n, int I, int H);

    /* x (N, H) = rows ids[] of table (V, H). */
    void (*embed)(float *x, const int32_t *ids, const float *table, int N, int H);
    /* One row of logits each.  ce[r] = logsumexp - logit of target[r]; kl[r] = sum over the
     * vocabulary of p_teacher (log p_teacher - log p_student), 0 where teacher is NULL; top[r] the
     * index of the largest logit (lowest on ties).  With weights, logits become dlogits =
     * scale (ce (p - onehot) + kl (p - p_teacher)).  A target of -1: all zero for that row. */
    void (*loss)(double *ce, double *kl, int32_t *top, float *logits, const float *teacher,
                 const int32_t *target, int n, int V, const struct fm_loss_weights *weights);

    /* AdamW, step t counted from 1: p (count) changes, m and v are its moments.  p -= lr * decay *
     * p first, then the bias-corrected step. */
    void (*adamw)(float *p, float *m, float *v, const float *g, int64_t count, float lr,
                  float beta1, float beta2, float eps, float decay, int t);

    /* y[i] += x[i], i < count. */
    void (*add)(float *y, const float *x, int64_t count);
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
