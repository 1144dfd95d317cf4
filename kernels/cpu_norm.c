#include "kernels/cpu.h"
#include "kernels/ops.h"

#include <math.h>

struct norm {
    float *y, *rstd;
    const float *x, *w;
    int H;
    float eps;
};

FM_CLONES static void norm_rows(const void *args, int64_t first, int64_t last)
{
    const struct norm *a = args;
    int H = a->H;
    const float *restrict w = a->w;
    for (int64_t t = first; t < last; t++) {
        const float *restrict x = a->x + t * H;
        float *restrict y = a->y + t * H;
        float r = (float)(1 / sqrt(fm_dot(x, x, H) / H + a->eps));
        a->rstd[t] = r;
        for (int i = 0; i < H; i++)
            y[i] = w[i] * (x[i] * r);
    }
}

void cpu_rmsnorm(float *y, float *rstd, const float *x, const float *w, int N, int H, float eps)
{
    fm_cpu_rows(N, 2 * (int64_t)H, norm_rows, &(struct norm){y, rstd, x, w, H, eps});
}

struct norm_back {
    float *dx;
    const float *dy, *x, *w, *rstd;
    int H;
};

/* sum of w dy x, as fm_dot. */
FM_INLINE double sum_along(const float *w, const float *dy, const float *x, int n)
{
    float lane[FM_LANES] = {0};
    int i = 0;
    for (; i + FM_LANES <= n; i += FM_LANES)
        for (int l = 0; l < FM_LANES; l++)
            lane[l] += w[i + l] * dy[i + l] * x[i + l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += w[i] * dy[i] * x[i];
    return fm_add_lanes(lane);
}

FM_CLONES static void norm_back_rows(const void *args, int64_t first, int64_t last)
{
    const struct norm_back *a = args;
    int H = a->H;
    const float *restrict w = a->w;
    for (int64_t t = first; t < last; t++) {
        const float *restrict x = a->x + t * H, *restrict dy = a->dy + t * H;
        float *restrict dx = a->dx + t * H;
        float r = a->rstd[t];
        float along = (float)((double)r * r * r / H * sum_along(w, dy, x, H));
        for (int i = 0; i < H; i++)
            dx[i] += r * w[i] * dy[i] - along * x[i];
    }
}

void cpu_rmsnorm_back(float *dx, const float *dy, const float *x, const float *w, const float *rstd,
                      int N, int H)
{
    fm_cpu_rows(N, 3 * (int64_t)H, norm_back_rows, &(struct norm_back){dx, dy, x, w, rstd, H});
}
