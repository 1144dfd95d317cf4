/*
 * Sparsemixer as PhiMoE evaluates it (its training draws experts at random; calibration does not).
 * Weights are not renormalised: where one expert dominates, both are near 1.
 */
#include "lib/block/sparsemix.h"

static int read(struct fm_config *c, const void *options, const struct fm_keys *keys,
                struct fm_err *err)
{
    double eps = 0.01;
    (void)options;
    c->router = &fm_sparsemix;
    int rc = fm_json_opt_double(keys->json, "router_jitter_noise", 0, 1e18, &eps, err);
    if (!rc && c->K != 2)
        rc = fm_fail(err, FM_ECONFIG, "num_experts_per_tok is %d; sparsemixer chooses 2", c->K);
    *(struct fm_sparsemix *)(void *)&c->router_own = (struct fm_sparsemix){(float)(2 * eps)};
    return rc;
}

static void forward(const struct fm_pass *p, int32_t *ids, float *weights, float *logits,
                    const float *x)
{
    fm_router_logits(p, logits, x);
    p->ops->sparsemixer(ids, weights, logits, fm_pass_rows(p), p->config->E,
                        fm_sparsemix_of(p->config)->threshold);
}

static void backward(const struct fm_pass *p, float *dx, const float *dweights, const int32_t *ids,
                     const float *weights, const float *logits)
{
    const struct fm_config *c = p->config;
    int N = fm_pass_rows(p);
    struct fm_mark mark = fm_pass_mark(p);
    float *dlogits = fm_pass_floats(p, (size_t)N * (size_t)c->E);
    p->ops->sparsemixer_back(dlogits, dweights, ids, weights, logits, N, c->E,
                             fm_sparsemix_of(c)->threshold);
    fm_router_logits_back(p, dx, dlogits);
    fm_pass_release(p, mark);
}

const struct fm_router fm_sparsemix = {.name = "sparsemixer",
                                       .read = read,
                                       .saves = true,
                                       .forward = forward,
                                       .backward = backward,
                                       .flops = fm_router_logits_flops};
