/*
 * Recovery `router`: the routers' weights, and the biases of their logits (fm-method(7)).  At one
 * mask only the divergence from the full model counts, so that they route as in the full model.
 */
#include "lib/learn/tune.h"

static double bytes(const struct fm_recoverer *r, double kept)
{
    const struct fm_config *c = r->task.config;
    (void)kept;
    return (double)c->E * (c->H + 1) * sizeof(float);
}

static int init(struct fm_adapter *a, const struct fm_config *c, const struct fm_recover_options *o,
                const uint32_t *widths, struct fm_err *err)
{
    (void)o, (void)widths;
    return fm_adapter_init_routers(a, c->M, c->E, c->H, fm_weights_biased_router(c), err);
}

static void add_router(const struct fm_adapter *a, const struct fm_ops *ops, float *gradient,
                       const struct fm_router_view *v)
{
    int E = a->E, H = a->H;
    float *bias = gradient + (size_t)E * (size_t)H;
    ops->f32->gemm(true, false, E, H, v->n, 1, fm_f32(v->dlogits), E, fm_f32(v->x), H, 1, gradient,
                   H);
    for (int i = 0; a->biased && i < v->n; i++)
        ops->add(bias, v->dlogits + (size_t)i * (size_t)E, E);
}

const struct fm_recovery fm_recovery_router = {
    .name = "router",
    .made = "routers",
    .trains = true,
    .run = &fm_tuning,
    .bytes = bytes,
    .init = init,
    .router = add_router,
};
