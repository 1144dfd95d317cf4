/*
 * The MLP that every token of a layer goes through: a dense layer's own, or the shared expert
 * beside the chosen ones, whose output is weighted by a sigmoid of the token.  It is never pruned
 * and its weights get no gradient.
 */
#include "lib/engine/layering.h"

/* Gate and up of all tokens, (N, 2 D): the kept ones, or room for them. */
static float *take_gu(const struct fm_pass *p, const struct fm_inner *a, size_t count)
{
    return a->mlp_gu ? a->mlp_gu : fm_floats(p, count);
}

static void multiply(const struct fm_pass *p, const struct fm_inner *a, float *gu, int D)
{
    int N = p->S * p->T, H = p->config->H;
    p->ops->gemm(false, true, N, 2 * D, H, 1, fm_f32(a->xm), H, fm_f32(p->layer->mlp_gate_up), H, 0,
                 gu, 2 * D);
}

/* h (N, D) from gu, every row times its token's share s (N) where there is one. */
static void middle(const struct fm_pass *p, const struct fm_inner *a, float *h, float *s,
                   const float *gu, int D)
{
    const float *w = p->layer->mlp_mix;
    int N = p->S * p->T, H = p->config->H;
    p->ops->swiglu(fm_to_f32(h), gu, N, D);
    if (!w)
        return;
    struct fm_mark mark = fm_pass_mark(p);
    float *u = fm_floats(p, (size_t)N);
    p->ops->gemm(false, true, N, 1, H, 1, fm_f32(a->xm), H, fm_f32(w), H, 0, u, 1);
    p->ops->gate_rows(h, s, u, N, D);
    fm_pass_release(p, mark);
}

void fm_mlp(const struct fm_pass *p, const struct fm_inner *a, float *y)
{
    int N = p->S * p->T, H = p->config->H, D = fm_config_mlp(p->config, p->l);
    size_t n = (size_t)N, d = (size_t)D;
    if (D == 0)
        return;
    struct fm_mark mark = fm_pass_mark(p);
    float *gu = take_gu(p, a, n * 2 * d), *h = fm_floats(p, n * d), *s = fm_floats(p, n);
    multiply(p, a, gu, D);
    middle(p, a, h, s, gu, D);
    p->ops->gemm(false, false, N, H, D, 1, fm_f32(h), D, fm_f32(p->layer->mlp_down), H, 1, y, H);
    fm_pass_release(p, mark);
}

void fm_mlp_back(const struct fm_pass *p, const struct fm_inner *a, float *dxm, const float *dy)
{
    const struct fm_ops *op = p->ops;
    int N = p->S * p->T, H = p->config->H, D = fm_config_mlp(p->config, p->l);
    size_t n = (size_t)N, d = (size_t)D;
    if (D == 0)
        return;
    struct fm_mark mark = fm_pass_mark(p);
    float *gu = take_gu(p, a, n * 2 * d), *dh = fm_floats(p, n * d), *dgu = fm_floats(p, n * 2 * d);
    if (!a->mlp_gu)
        multiply(p, a, gu, D);
    op->gemm(false, true, N, D, H, 1, fm_f32(dy), H, fm_f32(p->layer->mlp_down), H, 0, dh, D);
    if (p->layer->mlp_mix) {
        float *h = fm_floats(p, n * d), *s = fm_floats(p, n), *du = fm_floats(p, n);
        middle(p, a, h, s, gu, D);
        op->gate_rows_back(dh, du, h, s, N, D);
        op->gemm(false, false, N, H, 1, 1, fm_f32(du), 1, fm_f32(p->layer->mlp_mix), H, 1, dxm, H);
    }
    op->swiglu_back(fm_to_f32(dgu), dh, gu, N, D, D);
    op->gemm(false, false, N, H, 2 * D, 1, fm_f32(dgu), 2 * D, fm_f32(p->layer->mlp_gate_up), H, 1,
             dxm, H);
    fm_pass_release(p, mark);
}
