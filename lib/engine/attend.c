/* Attention of one layer: norm, projections, biases, norms of q and k, clamping, rotation. */
#include "lib/engine/layering.h"

#include <assert.h>
#include <math.h>

void fm_layer_angles(float *cos_table, float *sin_table, const struct fm_config *config, int T)
{
    int half = config->C / 2;
    for (int i = 0; i < half; i++) {
        float power = (float)(2 * i) / (float)config->C;
        float whole = config->rope_factor[i] * (float)pow(config->rope_theta, (double)power);
        float frequency = 1.0f / whole;
        for (int t = 0; t < T; t++) {
            float angle = (float)t * frequency;
            size_t at = (size_t)t * (size_t)half + (size_t)i;
            cos_table[at] = (float)cos((double)angle) * config->rope_scale;
            sin_table[at] = (float)sin((double)angle) * config->rope_scale;
        }
    }
}

/* Rows and their width as the norm of q or k sees N vectors of `heads` heads. */
static int norm_rows(const struct fm_config *c, int N, int heads)
{
    return c->qk_norm == FM_QK_NORM_HEAD ? N * heads : N;
}

static int norm_width(const struct fm_config *c, int heads)
{
    return c->qk_norm == FM_QK_NORM_HEAD ? c->C : heads * c->C;
}

/* y (N, heads C) = xn W^T, and its bias where there is one. */
static void project(const struct fm_pass *p, float *y, const float *xn, const float *w,
                    const float *bias, int heads)
{
    int N = p->S * p->T, H = p->config->H, width = heads * p->config->C;
    p->ops->gemm(false, true, N, width, H, 1, fm_f32(xn), H, fm_f32(w), H, 0, y, width);
    if (bias)
        p->ops->add_rows(y, bias, N, width);
}

/* q or k: projected into raw where it is normalised then, clamped, rotated. */
static void turn(const struct fm_pass *p, float *y, float *raw, float *rstd, const float *xn,
                 const float *w, const float *bias, const float *norm, int heads)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T;
    project(p, raw ? raw : y, xn, w, bias, heads);
    if (raw)
        p->ops->norm(fm_to_f32(y), rstd, raw, norm, NULL, norm_rows(c, N, heads),
                     norm_width(c, heads), c->eps);
    if (c->clip > 0)
        p->ops->clamp(y, c->clip, (int64_t)N * heads * c->C);
    p->ops->rope(y, p->cos, p->sin, N, p->T, heads, c->C, 1);
}

void fm_attend(const struct fm_pass *p, struct fm_inner *a, float *x1)
{
    const struct fm_config *c = p->config;
    const struct fm_ops *op = p->ops;
    const struct fm_layer *w = p->layer;
    int N = p->S * p->T, H = c->H, QC = c->Q * c->C, GC = c->G * c->C;
    op->norm(fm_to_f32(a->xn), a->rstd, x1, w->input_norm, w->input_norm_bias, N, H, c->eps);
    turn(p, a->q, a->q_raw, a->q_rstd, a->xn, w->q, w->q_bias, w->q_norm, c->Q);
    turn(p, a->k, a->k_raw, a->k_rstd, a->xn, w->k, w->k_bias, w->k_norm, c->G);
    project(p, a->v, a->xn, w->v, w->v_bias, c->G);
    if (c->clip > 0) {
        op->copy(a->v_raw, a->v, (size_t)N * (size_t)GC * sizeof *a->v);
        op->clamp(a->v, c->clip, (int64_t)N * GC);
    }
    op->attention(a->o, a->q, a->k, a->v, p->S, p->T, c->Q, c->G, c->C, c->window);
    op->gemm(false, true, N, H, QC, 1, fm_f32(a->o), QC, fm_f32(w->o), QC, 1, x1, H);
    if (w->o_bias)
        op->add_rows(x1, w->o_bias, N, H);
}

/* dy (N, heads C), the gradient behind turn(), becomes the one at the projection. */
static void turn_back(const struct fm_pass *p, float *dy, const float *raw, const float *rstd,
                      const float *norm, int heads)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T, rows = norm_rows(c, N, heads), width = norm_width(c, heads);
    size_t n = (size_t)N * (size_t)heads * (size_t)c->C;
    struct fm_mark mark = fm_pass_mark(p);
    assert(raw || c->clip == 0);
    p->ops->rope(dy, p->cos, p->sin, N, p->T, heads, c->C, -1);
    if (raw) {
        float *y = fm_floats(p, n), *again = fm_floats(p, (size_t)rows);
        if (c->clip > 0) {
            p->ops->norm(fm_to_f32(y), again, raw, norm, NULL, rows, width, c->eps);
            p->ops->clamp_back(dy, y, c->clip, (int64_t)n);
        }
        p->ops->copy(y, dy, n * sizeof *y);
        p->ops->zero(dy, n * sizeof *dy);
        p->ops->norm_back(dy, y, raw, norm, NULL, rstd, rows, width);
    }
    fm_pass_release(p, mark);
}

void fm_attend_back(const struct fm_pass *p, const struct fm_inner *a, float *dx, const float *x)
{
    const struct fm_config *c = p->config;
    const struct fm_ops *op = p->ops;
    const struct fm_layer *w = p->layer;
    int N = p->S * p->T, H = c->H, QC = c->Q * c->C, GC = c->G * c->C;
    size_t n = (size_t)N;
    struct fm_mark mark = fm_pass_mark(p);
    float *d_o = fm_floats(p, n * (size_t)QC), *dq = fm_floats(p, n * (size_t)QC);
    float *dk = fm_floats(p, n * (size_t)GC), *dv = fm_floats(p, n * (size_t)GC);
    float *dxn = fm_floats(p, n * (size_t)H);
    op->gemm(false, false, N, QC, H, 1, fm_f32(dx), H, fm_f32(w->o), QC, 0, d_o, QC);
    op->attention_back(dq, dk, dv, d_o, a->o, a->q, a->k, a->v, p->S, p->T, c->Q, c->G, c->C,
                       c->window);
    turn_back(p, dq, a->q_raw, a->q_rstd, w->q_norm, c->Q);
    turn_back(p, dk, a->k_raw, a->k_rstd, w->k_norm, c->G);
    if (c->clip > 0)
        op->clamp_back(dv, a->v_raw, c->clip, (int64_t)N * GC);
    op->gemm(false, false, N, H, QC, 1, fm_f32(dq), QC, fm_f32(w->q), H, 0, dxn, H);
    op->gemm(false, false, N, H, GC, 1, fm_f32(dk), GC, fm_f32(w->k), H, 1, dxn, H);
    op->gemm(false, false, N, H, GC, 1, fm_f32(dv), GC, fm_f32(w->v), H, 1, dxn, H);
    op->norm_back(dx, dxn, x, w->input_norm, w->input_norm_bias, a->rstd, N, H);
    fm_pass_release(p, mark);
}
