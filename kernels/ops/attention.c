/* Reference implementation of rotation, causal attention and the keys of latent attention. */
#include "kernels/ops/ops.h"

#include <math.h>
#include <string.h>

#include "lib/base/pool.h"

/* (a, b) -> (a cos - b sin, b cos + a sin), a = x[i], b = x[i + R/2], or x[2 i] and x[2 i + 1]. */
void ref_rope(float *x, const float *cos, const float *sin, int N, int T, int heads, int C, int R,
              bool pairs, float sign)
{
    int half = R / 2, step = pairs ? 2 : 1, other = pairs ? 1 : half;
    for (int n = 0; n < N; n++) {
        const float *c = cos + (size_t)(n % T) * half, *s = sin + (size_t)(n % T) * half;
        for (int h = 0; h < heads; h++) {
            float *p = x + ((size_t)n * heads + h) * C;
            for (int i = 0; i < half; i++) {
                float *q = p + i * step;
                double a = q[0], b = q[other], sn = (double)sign * s[i];
                q[0] = (float)(a * c[i] - b * sn);
                q[other] = (float)(b * c[i] + a * sn);
            }
        }
    }
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static int first_key(int t, int window)
{
    return window > 0 && t >= window ? t - window + 1 : 0;
}

/* p[j], j in [j0, t]: softmax over the visible keys of q . k_j / root, and over the sink if there
 * is one.  Rows of k are `step` apart. */
static void softmax_row(double *p, const float *q, const float *k, size_t step, int j0, int t,
                        int C, double root, const float *sink)
{
    double top = sink ? *sink : -INFINITY, sum = 0;
    for (int j = j0; j <= t; j++) {
        p[j] = dot(q, k + j * step, C) / root;
        if (p[j] > top)
            top = p[j];
    }
    if (sink)
        sum = exp(*sink - top);
    for (int j = j0; j <= t; j++)
        sum += p[j] = exp(p[j] - top);
    for (int j = j0; j <= t; j++)
        p[j] /= sum;
}

/* o[t] = sum over visible j of softmax_j(q[t] . k[j] / root) v[j]. */
void ref_attention(float *o, const float *q, const float *k, const float *v, const float *sinks,
                   int S, int T, int Q, int G, int C, int D, double root, int window)
{
    struct fm_mark mark = fm_scratch_mark();
    double *p = fm_scratch((size_t)T * sizeof *p);
    size_t q_step = (size_t)Q * C, o_step = (size_t)Q * D, k_step = (size_t)G * C;
    size_t v_step = (size_t)G * D;
    for (int s = 0; s < S; s++) {
        for (int h = 0; h < Q; h++) {
            size_t row0 = (size_t)s * T;
            const float *kh = k + row0 * k_step + (size_t)(h / (Q / G)) * C;
            const float *vh = v + row0 * v_step + (size_t)(h / (Q / G)) * D;
            for (int t = 0; t < T; t++) {
                int j0 = first_key(t, window);
                float *ot = o + (row0 + t) * o_step + (size_t)h * D;
                softmax_row(p, q + (row0 + t) * q_step + (size_t)h * C, kh, k_step, j0, t, C, root,
                            sinks ? &sinks[h] : NULL);
                for (int i = 0; i < D; i++) {
                    double sum = 0;
                    for (int j = j0; j <= t; j++)
                        sum += p[j] * vh[j * v_step + i];
                    ot[i] = (float)sum;
                }
            }
        }
    }
    fm_scratch_release(mark);
}

/* One key head of one sequence: pointers to its row 0, sums of dk (T, C) and dv (T, D) in double.
 */
struct head_back {
    float *dq;
    const float *d_o, *q, *k, *v, *sink;
    double *dk, *dv, *p, root;
    size_t q_step, o_step, k_step, v_step;
    int C, D, window;
};

/* dp = d_o . v_j,  ds = p (dp - sum_j p dp),  dq = sum_j ds k_j / root,  dk_j += ds q / root,
 * dv_j += p d_o. */
static void add_query(const struct head_back *b, int t)
{
    int j0 = first_key(t, b->window), C = b->C, D = b->D;
    const float *q = b->q + t * b->q_step, *d_o = b->d_o + t * b->o_step;
    float *dq = b->dq + t * b->q_step;
    double *p = b->p, mean = 0;
    softmax_row(p, q, b->k, b->k_step, j0, t, C, b->root, b->sink);
    for (int j = j0; j <= t; j++)
        mean += p[j] * dot(d_o, b->v + j * b->v_step, D);
    for (int j = j0; j <= t; j++)
        for (int i = 0; i < D; i++)
            b->dv[(size_t)j * D + i] += p[j] * d_o[i];
    for (int j = j0; j <= t; j++)
        p[j] *= (dot(d_o, b->v + j * b->v_step, D) - mean) / b->root; /* now ds / root */
    for (int i = 0; i < C; i++) {
        double sum = 0;
        for (int j = j0; j <= t; j++) {
            sum += p[j] * b->k[j * b->k_step + i];
            b->dk[(size_t)j * C + i] += p[j] * q[i];
        }
        dq[i] = (float)sum;
    }
}

/* Copy sum (T, W) to x, whose rows are `step` apart. */
static void put_sum(float *x, size_t step, const double *sum, int T, int W)
{
    for (int t = 0; t < T; t++)
        for (int i = 0; i < W; i++)
            x[t * step + i] = (float)sum[(size_t)t * W + i];
}

void ref_attention_back(float *dq, float *dk, float *dv, const float *d_o, const float *o,
                        const float *q, const float *k, const float *v, const float *sinks, int S,
                        int T, int Q, int G, int C, int D, double root, int window)
{
    (void)o; /* the float32 cpu table computes sum_j p dp from it */
    struct fm_mark mark = fm_scratch_mark();
    size_t nk = (size_t)T * C * sizeof(double), nv = (size_t)T * D * sizeof(double);
    struct head_back b = {.C = C, .D = D, .root = root, .window = window};
    b.q_step = (size_t)Q * C, b.o_step = (size_t)Q * D;
    b.k_step = (size_t)G * C, b.v_step = (size_t)G * D;
    b.p = fm_scratch((size_t)T * sizeof(double));
    b.dk = fm_scratch(nk);
    b.dv = fm_scratch(nv);
    for (int sg = 0; sg < S * G; sg++) {
        int g = sg % G;
        size_t row0 = (size_t)(sg / G) * T;
        size_t k0 = row0 * b.k_step + (size_t)g * C, v0 = row0 * b.v_step + (size_t)g * D;
        memset(b.dk, 0, nk);
        memset(b.dv, 0, nv);
        for (int h = g * (Q / G); h < (g + 1) * (Q / G); h++) {
            size_t q0 = row0 * b.q_step + (size_t)h * C;
            b.dq = dq + q0, b.q = q + q0;
            b.d_o = d_o + row0 * b.o_step + (size_t)h * D;
            b.k = k + k0, b.v = v + v0;
            b.sink = sinks ? &sinks[h] : NULL;
            for (int t = 0; t < T; t++)
                add_query(&b, t);
        }
        put_sum(dk + k0, b.k_step, b.dk, T, C);
        put_sum(dv + v0, b.v_step, b.dv, T, D);
    }
    fm_scratch_release(mark);
}

void ref_join_keys(float *k, float *v, const float *kv, const float *r, int N, int Q, int A, int R,
                   int D)
{
    for (size_t n = 0; n < (size_t)N; n++) {
        for (size_t h = n * Q; h < (n + 1) * Q; h++) {
            memcpy(k + h * (A + R), kv + h * (A + D), A * sizeof *k);
            memcpy(k + h * (A + R) + A, r + n * R, R * sizeof *k);
            memcpy(v + h * D, kv + h * (A + D) + A, D * sizeof *v);
        }
    }
}

void ref_join_keys_back(float *dkv, float *dr, const float *dk, const float *dv, int N, int Q,
                        int A, int R, int D)
{
    for (size_t n = 0; n < (size_t)N; n++) {
        for (size_t h = n * Q; h < (n + 1) * Q; h++) {
            memcpy(dkv + h * (A + D), dk + h * (A + R), A * sizeof *dkv);
            memcpy(dkv + h * (A + D) + A, dv + h * D, D * sizeof *dkv);
        }
        for (int i = 0; i < R; i++) {
            double sum = 0;
            for (size_t h = n * Q; h < (n + 1) * Q; h++)
                sum += dk[h * (A + R) + A + i];
            dr[n * R + i] = (float)sum;
        }
    }
}
