/* Rotation and causal attention: the definitions. */
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

/* p[j], j in [j0, t]: softmax over the visible keys of q . k_j / sqrt(C). Rows of k are `step`
 * apart.
 */
static void softmax_row(double *p, const float *q, const float *k, size_t step, int j0, int t,
                        int C)
{
    double top = -INFINITY, sum = 0;
    for (int j = j0; j <= t; j++) {
        p[j] = dot(q, k + j * step, C) / sqrt(C);
        if (p[j] > top)
            top = p[j];
    }
    for (int j = j0; j <= t; j++)
        sum += p[j] = exp(p[j] - top);
    for (int j = j0; j <= t; j++)
        p[j] /= sum;
}

/* o[t] = sum over visible j of softmax_j(q[t] . k[j] / sqrt(C)) v[j]. */
void ref_attention(float *o, const float *q, const float *k, const float *v, int S, int T, int Q,
                   int G, int C, int window)
{
    struct fm_mark mark = fm_scratch_mark();
    double *p = fm_scratch((size_t)T * sizeof *p);
    size_t q_step = (size_t)Q * C, kv_step = (size_t)G * C;
    for (int s = 0; s < S; s++) {
        for (int h = 0; h < Q; h++) {
            size_t q0 = s * T * q_step + (size_t)h * C;
            size_t kv0 = s * T * kv_step + (size_t)(h / (Q / G)) * C;
            for (int t = 0; t < T; t++) {
                int j0 = first_key(t, window);
                size_t at = q0 + t * q_step;
                softmax_row(p, q + at, k + kv0, kv_step, j0, t, C);
                for (int i = 0; i < C; i++) {
                    double sum = 0;
                    for (int j = j0; j <= t; j++)
                        sum += p[j] * v[kv0 + j * kv_step + i];
                    o[at + i] = (float)sum;
                }
            }
        }
    }
    fm_scratch_release(mark);
}

/* One key head of one sequence: pointers at its row 0, sums of dk and dv (T, C) in double. */
struct head_back {
    float *dq;
    const float *d_o, *q, *k, *v;
    double *dk, *dv, *p;
    size_t q_step, kv_step;
    int T, C, window;
};

/* dp = d_o . v_j,  ds = p (dp - sum_j p dp),  dq += ds k / sqrt(C),  dk_j += ds q / sqrt(C),
 * dv_j += p d_o. */
static void add_query(const struct head_back *b, int t)
{
    int j0 = first_key(t, b->window), C = b->C;
    const float *q = b->q + t * b->q_step, *d_o = b->d_o + t * b->q_step;
    float *dq = b->dq + t * b->q_step;
    double *p = b->p, mean = 0;
    softmax_row(p, q, b->k, b->kv_step, j0, t, C);
    for (int j = j0; j <= t; j++)
        mean += p[j] * dot(d_o, b->v + j * b->kv_step, C);
    for (int j = j0; j <= t; j++)
        for (int i = 0; i < C; i++)
            b->dv[(size_t)j * C + i] += p[j] * d_o[i];
    for (int j = j0; j <= t; j++)
        p[j] *= (dot(d_o, b->v + j * b->kv_step, C) - mean) / sqrt(C); /* now ds / sqrt(C) */
    for (int i = 0; i < C; i++) {
        double sum = 0;
        for (int j = j0; j <= t; j++) {
            sum += p[j] * b->k[j * b->kv_step + i];
            b->dk[(size_t)j * C + i] += p[j] * q[i];
        }
        dq[i] = (float)sum;
    }
}

void ref_attention_back(float *dq, float *dk, float *dv, const float *d_o, const float *o,
                        const float *q, const float *k, const float *v, int S, int T, int Q, int G,
                        int C, int window)
{
    (void)o; /* the faster tables take sum_j p dp from it */
    struct fm_mark mark = fm_scratch_mark();
    size_t head = (size_t)T * C;
    struct head_back b = {.T = T, .C = C, .window = window};
    b.q_step = (size_t)Q * C;
    b.kv_step = (size_t)G * C;
    b.p = fm_scratch((size_t)T * sizeof(double));
    b.dk = fm_scratch(head * sizeof(double));
    b.dv = fm_scratch(head * sizeof(double));
    for (int sg = 0; sg < S * G; sg++) {
        size_t kv0 = (size_t)(sg / G) * T * b.kv_step + (size_t)(sg % G) * C;
        memset(b.dk, 0, head * sizeof(double));
        memset(b.dv, 0, head * sizeof(double));
        for (int h = sg % G * (Q / G); h < (sg % G + 1) * (Q / G); h++) {
            size_t q0 = (size_t)(sg / G) * T * b.q_step + (size_t)h * C;
            b.dq = dq + q0, b.d_o = d_o + q0, b.q = q + q0;
            b.k = k + kv0, b.v = v + kv0;
            for (int t = 0; t < T; t++)
                add_query(&b, t);
        }
        for (size_t i = 0; i < head; i++) {
            size_t at = kv0 + i / C * b.kv_step + i % C;
            dk[at] = (float)b.dk[i];
            dv[at] = (float)b.dv[i];
        }
    }
    fm_scratch_release(mark);
}
