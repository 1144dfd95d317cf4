/* Reference implementation of RMSNorm and, if there is a bias, LayerNorm. */
#include "kernels/ops/ops.h"

#include <math.h>

/* The mean of x for LayerNorm (b != NULL), 0 for RMSNorm. */
static double centre(const float *x, const float *b, int H)
{
    double sum = 0;
    for (int i = 0; b && i < H; i++)
        sum += x[i];
    return sum / H;
}

/* With c = x - centre(x): rstd = 1 / sqrt(mean(c^2) + eps), y = w c rstd + b. */
void ref_norm(struct fm_out y, float *rstd, const float *x, const float *w, const float *b, int N,
              int H, float eps)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_wide(y, (size_t)N * H);
    for (int t = 0; t < N; t++) {
        const float *xt = x + (size_t)t * H;
        float *yt = wide + (size_t)t * H;
        double mean = centre(xt, b, H), sum = 0;
        for (int i = 0; i < H; i++)
            sum += (xt[i] - mean) * (xt[i] - mean);
        double r = 1 / sqrt(sum / H + eps);
        rstd[t] = (float)r;
        for (int i = 0; i < H; i++)
            yt[i] = (float)(w[i] * ((xt[i] - mean) * r) + (b ? b[i] : 0));
    }
    fm_narrow(y, wide, (size_t)N * H);
    fm_scratch_release(mark);
}

/* dx += rstd (w dy) - x rstd^3 / H sum(w dy x): the second term is the gradient through rstd.  If x
 * was centred, w dy is centred too, by the gradient through the mean. */
void ref_norm_back(float *dx, const float *dy, const float *x, const float *w, const float *b,
                   const float *rstd, int N, int H)
{
    for (int t = 0; t < N; t++) {
        const float *xt = x + (size_t)t * H, *dyt = dy + (size_t)t * H;
        float *dxt = dx + (size_t)t * H;
        double r = rstd[t], mean = centre(xt, b, H), sum = 0, through = 0;
        for (int i = 0; i < H; i++) {
            sum += (double)w[i] * dyt[i] * (xt[i] - mean);
            through += b ? (double)w[i] * dyt[i] / H : 0;
        }
        double along = r * r * r / H * sum;
        for (int i = 0; i < H; i++)
            dxt[i] =
                (float)(dxt[i] + (r * ((double)w[i] * dyt[i] - through) - along * (xt[i] - mean)));
    }
}
