#include "kernels/ops.h"

#include <math.h>

/* rstd = 1 / sqrt(mean(x^2) + eps), y = w x rstd. */
void ref_rmsnorm(float *y, float *rstd, const float *x, const float *w, int N, int H, float eps)
{
    for (int t = 0; t < N; t++) {
        const float *xt = x + (size_t)t * H;
        float *yt = y + (size_t)t * H;
        double sum = 0;
        for (int i = 0; i < H; i++)
            sum += (double)xt[i] * xt[i];
        double r = 1 / sqrt(sum / H + eps);
        rstd[t] = (float)r;
        for (int i = 0; i < H; i++)
            yt[i] = (float)(w[i] * (xt[i] * r));
    }
}

/* dx += rstd (w dy) - x rstd^3 / H sum(w dy x): the second term is the gradient through rstd. */
void ref_rmsnorm_back(float *dx, const float *dy, const float *x, const float *w, const float *rstd,
                      int N, int H)
{
    for (int t = 0; t < N; t++) {
        const float *xt = x + (size_t)t * H, *dyt = dy + (size_t)t * H;
        float *dxt = dx + (size_t)t * H;
        double r = rstd[t], sum = 0;
        for (int i = 0; i < H; i++)
            sum += (double)w[i] * dyt[i] * xt[i];
        double along = r * r * r / H * sum;
        for (int i = 0; i < H; i++)
            dxt[i] = (float)(dxt[i] + (r * w[i] * dyt[i] - along * xt[i]));
    }
}
