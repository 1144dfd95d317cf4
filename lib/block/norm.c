/* One operation computes all norms: LayerNorm if there is a bias, else RMSNorm. */
#include "lib/block/norm.h"

#include "lib/base/pool.h"

const struct fm_norm fm_rmsnorm = {0}, fm_rmsnorm_plus = {.plus = true},
                     fm_layernorm = {.bias = true};

/* The factors (H): w, or w + 1 in scratch. */
static const float *factors(const struct fm_ops *ops, const struct fm_config *c, const float *w,
                            int H)
{
    if (!c->norm->plus)
        return w;
    float *sum = fm_scratch_floats((size_t)H);
    ops->shift(sum, w, 1, H);
    return sum;
}

void fm_norm_forward(const struct fm_ops *ops, const struct fm_config *c, float *y, float *rstd,
                     const float *x, const float *w, const float *b, int N, int H)
{
    struct fm_mark mark = fm_scratch_mark();
    ops->norm(fm_to_f32(y), rstd, x, factors(ops, c, w, H), b, N, H, c->eps);
    fm_scratch_release(mark);
}

void fm_norm_backward(const struct fm_ops *ops, const struct fm_config *c, float *dx,
                      const float *dy, const float *x, const float *w, const float *b,
                      const float *rstd, int N, int H)
{
    struct fm_mark mark = fm_scratch_mark();
    ops->norm_back(dx, dy, x, factors(ops, c, w, H), b, rstd, N, H);
    fm_scratch_release(mark);
}
