/* The product that every router starts with, and its gradient. */
#include "lib/block/router.h"

#include "lib/block/pass.h"

void fm_router_logits(const struct fm_pass *p, float *logits, const float *x)
{
    int N = fm_pass_rows(p), E = p->config->E, H = p->config->H;
    const struct fm_router_weights *w = &p->layer->router;
    p->ops->gemm(false, true, N, E, H, 1, fm_f32(x), H, fm_f32(w->w), H, 0, logits, E);
    if (w->bias)
        p->ops->add_rows(logits, w->bias, N, E);
    if (p->closed)
        p->ops->add_rows(logits, p->closed, N, E);
}

void fm_router_logits_back(const struct fm_pass *p, float *dx, const float *dlogits)
{
    int E = p->config->E, H = p->config->H;
    p->ops->gemm(false, false, fm_pass_rows(p), H, E, 1, fm_f32(dlogits), E,
                 fm_f32(p->layer->router.w), H, 0, dx, H);
}

double fm_router_logits_flops(const struct fm_config *c)
{
    return 2.0 * c->E * c->H;
}
