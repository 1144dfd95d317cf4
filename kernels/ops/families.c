/* Reference implementation of operations that only some families of models need. */
#include "kernels/ops/ops.h"

#include <math.h>

void ref_add_rows(float *x, const float *b, int N, int H)
{
    for (int t = 0; t < N; t++)
        for (int i = 0; i < H; i++)
            x[(size_t)t * (size_t)H + (size_t)i] += b[i];
}

void ref_clamp(float *x, float limit, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
}

void ref_clamp_back(float *dx, const float *x, float limit, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dx[i] = x[i] > limit || x[i] < -limit ? 0 : dx[i];
}

void ref_softcap(float *x, float cap, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(cap * tanh((double)x[i] / cap));
}

void ref_softcap_back(float *dx, const float *y, float cap, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double t = (double)y[i] / cap;
        dx[i] = (float)(dx[i] * (1 - t * t));
    }
}

void ref_route_raw(int32_t *ids, float *weights, float *p, int N, int E, int K)
{
    ref_route(ids, weights, p, N, E, K);
    for (int t = 0; t < N; t++) {
        float *row = p + (size_t)t * (size_t)E;
        float largest = row[ids[(size_t)t * (size_t)K]];
        double all = 0;
        for (int e = 0; e < E; e++)
            all += exp((double)row[e] - (double)largest);
        for (int e = 0; e < E; e++)
            row[e] = (float)(exp((double)row[e] - (double)largest) / all);
        for (int i = t * K; i < (t + 1) * K; i++)
            weights[i] = row[ids[i]];
    }
}

void ref_route_raw_back(float *dlogits, const float *dweights, const int32_t *ids, const float *p,
                        int N, int E, int K)
{
    for (int t = 0; t < N; t++) {
        const float *row = p + (size_t)t * (size_t)E, *g = dweights + (size_t)t * (size_t)K;
        const int32_t *id = ids + (size_t)t * (size_t)K;
        float *d = dlogits + (size_t)t * (size_t)E;
        double mean = 0;
        for (int i = 0; i < K; i++)
            mean += (double)row[id[i]] * g[i];
        for (int e = 0; e < E; e++)
            d[e] = (float)(row[e] * -mean);
        for (int i = 0; i < K; i++)
            d[id[i]] = (float)(row[id[i]] * (g[i] - mean));
    }
}

void ref_gate_rows(float *h, float *s, const float *u, bool softplus, int N, int I)
{
    for (int t = 0; t < N; t++) {
        s[t] = (float)(softplus ? fm_softplus(u[t]) : fm_sigmoid(u[t]));
        for (int j = 0; j < I; j++)
            h[(size_t)t * (size_t)I + (size_t)j] *= s[t];
    }
}

/* The derivative of the gate with respect to u, divided by the gate, computed from the gate s. */
static double gate_slope(double s, bool softplus)
{
    if (!softplus)
        return 1 - s;
    return s > 0 ? -expm1(-s) / s : 0;
}

void ref_gate_rows_back(float *dh, float *du, const float *h, const float *s, bool softplus, int N,
                        int I)
{
    for (int t = 0; t < N; t++) {
        double sum = 0;
        for (int j = 0; j < I; j++) {
            size_t at = (size_t)t * (size_t)I + (size_t)j;
            sum += (double)h[at] * dh[at];
            dh[at] *= s[t];
        }
        du[t] = (float)(gate_slope(s[t], softplus) * sum);
    }
}

void ref_multiply(float *y, const float *x, const float *z, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] * z[i];
}

void ref_gate(float *y, const float *x, const float *z, bool silu, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = (float)(x[i] * fm_sigmoid(z[i]) * (silu ? z[i] : 1));
}

/* f' is s + z s (1 - s) for silu, s (1 - s) for the sigmoid s. */
void ref_gate_back(float *dx, float *dz, const float *dy, const float *x, const float *z, bool silu,
                   int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double s = fm_sigmoid(z[i]), d = dy[i];
        dx[i] = (float)(d * s * (silu ? z[i] : 1));
        dz[i] = (float)(d * x[i] * (silu ? s + z[i] * s * (1 - s) : s * (1 - s)));
    }
}

void ref_shift(float *y, const float *x, float by, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] + by;
}
