/* RMSNorm and LayerNorm on blocks of rows; sums in lanes (kernels/cpu/cpu.h). */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"

#include <math.h>

#include "lib/base/pool.h"

struct norm {
    struct fm_out y;
    float *rstd;
    const float *x, *w, *b;
    int H;
    float eps;
};

/* The mean of x for LayerNorm (b != NULL), 0 for RMSNorm. */
FM_INLINE float centre(const float *x, const float *b, int H)
{
    return b ? (float)(fm_sum(x, H) / H) : 0;
}

FM_CLONES(void, norm_rows, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct norm *a = args;
    int H = a->H;
    const float *restrict w = a->w;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_out to = fm_element_out(a->y, (size_t)(first * H));
    float *wide = fm_wide(to, (size_t)((last - first) * H));
    for (int64_t t = first; t < last; t++) {
        const float *restrict x = a->x + t * H;
        float *restrict y = wide + (t - first) * H;
        float mean = centre(x, a->b, H);
        for (int i = 0; i < H; i++)
            y[i] = x[i] - mean;
        float r = (float)(1 / sqrt(fm_dot(y, y, H) / H + a->eps));
        a->rstd[t] = r;
        for (int i = 0; i < H; i++)
            y[i] = w[i] * (y[i] * r);
        if (a->b)
            for (int i = 0; i < H; i++)
                y[i] += a->b[i];
    }
    fm_narrow(to, wide, (size_t)((last - first) * H));
    fm_scratch_release(mark);
}

void cpu_norm(struct fm_out y, float *rstd, const float *x, const float *w, const float *b, int N,
              int H, float eps)
{
    fm_cpu_rows(N, 2 * (int64_t)H, norm_rows, &(struct norm){y, rstd, x, w, b, H, eps});
}

struct norm_back {
    float *dx;
    const float *dy, *x, *w, *b, *rstd;
    int H;
};

/* sum of w dy (x - mean), in the order of fm_dot. */
FM_INLINE double sum_along(const float *w, const float *dy, const float *x, float mean, int n)
{
    float lane[FM_LANES] = {0};
    int i = 0;
    for (; i + FM_LANES <= n; i += FM_LANES)
        for (int l = 0; l < FM_LANES; l++)
            lane[l] += w[i + l] * dy[i + l] * (x[i + l] - mean);
    for (int l = 0; i < n; i++, l++)
        lane[l] += w[i] * dy[i] * (x[i] - mean);
    return fm_add_lanes(lane);
}

FM_CLONES(void, norm_back_rows, (const void *args, int64_t first, int64_t last),
          (args, first, last))
{
    const struct norm_back *a = args;
    int H = a->H;
    const float *restrict w = a->w;
    for (int64_t t = first; t < last; t++) {
        const float *restrict x = a->x + t * H, *restrict dy = a->dy + t * H;
        float *restrict dx = a->dx + t * H;
        float r = a->rstd[t], mean = centre(x, a->b, H);
        float along = (float)((double)r * r * r / H * sum_along(w, dy, x, mean, H));
        float through = a->b ? (float)(r * fm_dot(w, dy, H) / H) : 0;
        for (int i = 0; i < H; i++)
            dx[i] += r * w[i] * dy[i] - through - along * (x[i] - mean);
    }
}

void cpu_norm_back(float *dx, const float *dy, const float *x, const float *w, const float *b,
                   const float *rstd, int N, int H)
{
    fm_cpu_rows(N, 3 * (int64_t)H, norm_back_rows, &(struct norm_back){dx, dy, x, w, b, rstd, H});
}
