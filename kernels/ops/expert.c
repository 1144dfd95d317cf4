/*
 * What happens to the rows of an expert: gathered, through its gate, up and down, scored, and
 * combined again.  The definitions.
 */
#include "kernels/ops/ops.h"

#include <math.h>

void ref_gather(float *y, const float *x, const int32_t *rows, const float *scale, int n, int H)
{
    for (int r = 0; r < n; r++)
        for (int i = 0; i < H; i++) {
            float value = x[(size_t)rows[r] * H + i];
            y[(size_t)r * H + i] = scale ? scale[r] * value : value;
        }
}

void ref_combine(float *y, const float *z, const int32_t *where, const float *weights, int N, int K,
                 int H)
{
    for (int t = 0; t < N; t++)
        for (int i = 0; i < H; i++) {
            double sum = y[(size_t)t * H + i];
            for (int j = 0; j < K; j++) {
                size_t slot = (size_t)t * K + j;
                sum += (weights ? (double)weights[slot] : 1) * z[(size_t)where[slot] * H + i];
            }
            y[(size_t)t * H + i] = (float)sum;
        }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* silu(g) = g sigmoid(g). */
void ref_swiglu(float *h, const float *gu, int n, int I)
{
    for (size_t i = 0; i < (size_t)n * I; i++) {
        double g = gu[2 * i], u = gu[2 * i + 1];
        h[i] = (float)(g * sigmoid(g) * u);
    }
}

/* dg = dh u silu'(g), du = dh silu(g); silu'(g) = s (1 + g (1 - s)), s = sigmoid(g). */
void ref_swiglu_back(float *dgu, const float *dh, const float *gu, int n, int I, int k)
{
    for (int r = 0; r < n; r++)
        for (int j = 0; j < k; j++) {
            size_t from = (size_t)r * I + j, to = (size_t)r * k + j;
            double g = gu[2 * from], u = gu[2 * from + 1], s = sigmoid(g);
            dgu[2 * to] = (float)(dh[from] * u * s * (1 + g * (1 - s)));
            dgu[2 * to + 1] = (float)(dh[from] * g * s);
        }
}

void ref_dot_rows(float *g, const float *a, const float *b, int n, int I, int k)
{
    for (int r = 0; r < n; r++) {
        double sum = 0;
        for (int j = 0; j < k; j++)
            sum += (double)a[(size_t)r * I + j] * b[(size_t)r * I + j];
        g[r] = (float)sum;
    }
}

void ref_channel_sums(double *c, const float *h, const float *dh, int n, int I)
{
    for (int r = 0; r < n; r++)
        for (int j = 0; j < I; j++)
            c[j] += (double)h[(size_t)r * I + j] * dh[(size_t)r * I + j];
}

/* sum over i of (w[i] sum_r a[r] b[r, i])^2, i < H: one row of weights and its gradient. The rows
 * of a are `step` apart. */
static double score_row(const float *w, const float *a, int step, const float *b, int n, int H)
{
    double score = 0;
    for (int i = 0; i < H; i++) {
        double grad = 0;
        for (int r = 0; r < n; r++)
            grad += (double)a[(size_t)r * step] * b[(size_t)r * H + i];
        score += (w[i] * grad) * (w[i] * grad);
    }
    return score;
}

/* s[j] += gate row j, up row j and down row j, each sum of (theta dtheta)^2. */
void ref_channel_scores(double *s, const float *gate_up, const float *down, const float *dgu,
                        const float *x, const float *h, const float *dy, int n, int I, int H)
{
    for (int j = 0; j < I; j++) {
        const float *gate = gate_up + 2 * (size_t)j * H;
        s[j] += score_row(gate, dgu + 2 * j, 2 * I, x, n, H);
        s[j] += score_row(gate + H, dgu + 2 * j + 1, 2 * I, x, n, H);
        s[j] += score_row(down + (size_t)j * H, h + j, I, dy, n, H);
    }
}
