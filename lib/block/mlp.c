/* The MLP's weights are never trained, so the backward computes only the gradient at x. */
#include "lib/block/mlp.h"

static void multiply(const struct fm_pass *p, float *gu, const float *x, int D)
{
    int N = fm_pass_rows(p), H = p->config->H;
    p->ops->gemm(false, true, N, 2 * D, H, 1, fm_f32(x), H, p->layer->mlp_gate_up, H, 0, gu, 2 * D);
}

/* h (N, D) from gu, every row times its token's weight s (N) if there is one. */
static void middle(const struct fm_pass *p, float *h, float *s, const float *gu, const float *x,
                   int D)
{
    const float *w = p->layer->mlp_mix;
    int N = fm_pass_rows(p), H = p->config->H;
    p->config->expert->activate(p, true, fm_to_f32(h), gu, N, D);
    if (!w)
        return;
    struct fm_mark mark = fm_scratch_mark();
    float *u = fm_scratch_floats((size_t)N);
    p->ops->gemm(false, true, N, 1, H, 1, fm_f32(x), H, fm_f32(w), H, 0, u, 1);
    p->ops->gate_rows(h, s, u, false, N, D);
    fm_scratch_release(mark);
}

void fm_mlp_forward(const struct fm_pass *p, float *kept, float *y, const float *x)
{
    int N = fm_pass_rows(p), H = p->config->H, D = fm_config_mlp(p->config, p->l);
    size_t n = (size_t)N, d = (size_t)D;
    if (D == 0)
        return;
    struct fm_mark mark = fm_scratch_mark();
    float *gu = kept ? kept : fm_scratch_floats(n * 2 * d), *h = fm_scratch_floats(n * d);
    float *s = fm_scratch_floats(n);
    multiply(p, gu, x, D);
    middle(p, h, s, gu, x, D);
    p->ops->gemm(false, false, N, H, D, 1, fm_f32(h), D, p->layer->mlp_down, H, 1, y, H);
    fm_scratch_release(mark);
}

void fm_mlp_backward(const struct fm_pass *p, float *kept, float *dx, const float *dy,
                     const float *x)
{
    const struct fm_ops *op = p->ops;
    int N = fm_pass_rows(p), H = p->config->H, D = fm_config_mlp(p->config, p->l);
    size_t n = (size_t)N, d = (size_t)D;
    if (D == 0)
        return;
    struct fm_mark mark = fm_scratch_mark();
    float *gu = kept ? kept : fm_scratch_floats(n * 2 * d), *dh = fm_scratch_floats(n * d);
    float *dgu = fm_scratch_floats(n * 2 * d);
    if (!kept)
        multiply(p, gu, x, D);
    op->gemm(false, true, N, D, H, 1, fm_f32(dy), H, p->layer->mlp_down, H, 0, dh, D);
    if (p->layer->mlp_mix) {
        float *h = fm_scratch_floats(n * d), *s = fm_scratch_floats(n), *du = fm_scratch_floats(n);
        middle(p, h, s, gu, x, D);
        op->gate_rows_back(dh, du, h, s, false, N, D);
        op->gemm(false, false, N, H, 1, 1, fm_f32(du), 1, fm_f32(p->layer->mlp_mix), H, 1, dx, H);
    }
    p->config->expert->activate_back(p, true, fm_to_f32(dgu), dh, gu, N, D, D);
    op->gemm(false, false, N, H, 2 * D, 1, fm_f32(dgu), 2 * D, p->layer->mlp_gate_up, H, 1, dx, H);
    fm_scratch_release(mark);
}

/* ---- cost ---- */

double fm_mlp_flops(const struct fm_config *c, int l)
{
    return 2.0 * (double)fm_mlp_channel_params(c->H) * fm_config_mlp(c, l) +
           (fm_config_moe(c, l) >= 0 && c->shared_mix ? 2.0 * c->H : 0);
}
