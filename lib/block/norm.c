/*
 * One operation computes all norms: LayerNorm if there is a bias, else RMSNorm.  They are separate
 * blocks so that the family determines whether a checkpoint has biases.
 */
#include "lib/block/norm.h"

#include <stddef.h>

static void rms(const struct fm_ops *ops, float *y, float *rstd, const float *x, const float *w,
                const float *b, int N, int H, float eps)
{
    (void)b;
    ops->norm(fm_to_f32(y), rstd, x, w, NULL, N, H, eps);
}

static void rms_back(const struct fm_ops *ops, float *dx, const float *dy, const float *x,
                     const float *w, const float *b, const float *rstd, int N, int H)
{
    (void)b;
    ops->norm_back(dx, dy, x, w, NULL, rstd, N, H);
}

static void layer(const struct fm_ops *ops, float *y, float *rstd, const float *x, const float *w,
                  const float *b, int N, int H, float eps)
{
    ops->norm(fm_to_f32(y), rstd, x, w, b, N, H, eps);
}

static void layer_back(const struct fm_ops *ops, float *dx, const float *dy, const float *x,
                       const float *w, const float *b, const float *rstd, int N, int H)
{
    ops->norm_back(dx, dy, x, w, b, rstd, N, H);
}

/* w + 1, in scratch. */
static float *plus_one(const struct fm_ops *ops, const float *w, int H)
{
    float *sum = fm_scratch((size_t)H * sizeof *sum);
    ops->shift(sum, w, 1, H);
    return sum;
}

static void plus(const struct fm_ops *ops, float *y, float *rstd, const float *x, const float *w,
                 const float *b, int N, int H, float eps)
{
    struct fm_mark mark = fm_scratch_mark();
    rms(ops, y, rstd, x, plus_one(ops, w, H), b, N, H, eps);
    fm_scratch_release(mark);
}

static void plus_back(const struct fm_ops *ops, float *dx, const float *dy, const float *x,
                      const float *w, const float *b, const float *rstd, int N, int H)
{
    struct fm_mark mark = fm_scratch_mark();
    rms_back(ops, dx, dy, x, plus_one(ops, w, H), b, rstd, N, H);
    fm_scratch_release(mark);
}

const struct fm_norm fm_rmsnorm = {.forward = rms, .backward = rms_back};
const struct fm_norm fm_layernorm = {.bias = true, .forward = layer, .backward = layer_back};
const struct fm_norm fm_rmsnorm_plus = {.forward = plus, .backward = plus_back};
