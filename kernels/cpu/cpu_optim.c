/* The optimiser and elementwise arithmetic, in blocks. */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"

#include <math.h>

struct adamw {
    float *p, *m, *v;
    const float *g;
    float beta1, beta2, gain1, gain2; /* gain = 1 - beta, computed in double */
    float shrink, step, root, eps;    /* lr decay, lr / bias1, 1 / sqrt(bias2) */
};

FM_CLONES(void, step_block, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct adamw a = *(const struct adamw *)args;
    float *restrict p = a.p, *restrict m = a.m, *restrict v = a.v;
    const float *restrict g = a.g;
    for (int64_t i = first; i < last; i++) {
        float mi = a.beta1 * m[i] + a.gain1 * g[i];
        float vi = a.beta2 * v[i] + a.gain2 * g[i] * g[i];
        m[i] = mi;
        v[i] = vi;
        p[i] -= a.shrink * p[i] + a.step * mi / (sqrtf(vi) * a.root + a.eps);
    }
}

void cpu_adamw(float *p, float *m, float *v, const float *g, int64_t count, float lr, float beta1,
               float beta2, float eps, float decay, int t)
{
    double bias1 = 1 - pow(beta1, t), bias2 = 1 - pow(beta2, t);
    struct adamw a = {.p = p, .m = m, .v = v, .g = g, .beta1 = beta1, .beta2 = beta2, .eps = eps};
    a.gain1 = (float)(1 - (double)beta1);
    a.gain2 = (float)(1 - (double)beta2);
    a.shrink = (float)((double)lr * decay);
    a.step = (float)(lr / bias1);
    a.root = (float)(1 / sqrt(bias2));
    fm_cpu_rows(count, 4, step_block, &a);
}

struct sum {
    float *y;
    const float *x;
};

FM_CLONES(void, add_block, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct sum *a = args;
    float *restrict y = a->y;
    const float *restrict x = a->x;
    for (int64_t i = first; i < last; i++)
        y[i] += x[i];
}

void cpu_add(float *y, const float *x, int64_t count)
{
    fm_cpu_rows(count, 2, add_block, &(struct sum){y, x});
}

struct factor {
    float *x, s;
    const float *by;
};

static void scale_block(const void *args, int64_t first, int64_t last)
{
    const struct factor *a = args;
    ref_scale(a->x + first, a->s, last - first);
}

void cpu_scale(float *x, float s, int64_t count)
{
    fm_cpu_rows(count, 1, scale_block, &(struct factor){.x = x, .s = s});
}

static void divide_block(const void *args, int64_t first, int64_t last)
{
    const struct factor *a = args;
    ref_divide(a->x + first, a->by + first, last - first);
}

void cpu_divide(float *x, const float *by, int64_t count)
{
    fm_cpu_rows(count, 2, divide_block, &(struct factor){.x = x, .by = by});
}
