/* Reference implementation of the optimiser and of arithmetic on whole arrays. */
#include "kernels/ops/ops.h"

#include <math.h>

/* p -= lr decay p;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
 * p -= lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps). */
void ref_adamw(float *p, float *m, float *v, const float *g, int64_t count, float lr, float beta1,
               float beta2, float eps, float decay, int t)
{
    double bias1 = 1 - pow(beta1, t), bias2 = 1 - pow(beta2, t);
    for (int64_t i = 0; i < count; i++) {
        double x = p[i] * (1 - (double)lr * decay);
        m[i] = (float)(beta1 * (double)m[i] + (1 - (double)beta1) * g[i]);
        v[i] = (float)(beta2 * (double)v[i] + (1 - (double)beta2) * g[i] * g[i]);
        p[i] = (float)(x - lr * (m[i] / bias1) / (sqrt(v[i] / bias2) + eps));
    }
}

void ref_add(float *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += x[i];
}

void ref_scale(float *x, float s, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x[i] *= s;
}

void ref_divide(float *x, const float *by, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = by[i] != 0 ? x[i] / by[i] : 0;
}
