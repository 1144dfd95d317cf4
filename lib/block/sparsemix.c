/*
 * Sparsemixer as in PhiMoE's evaluation; in its training, experts are sampled.  The two weights are
 * not renormalised: a weight is 1 if no other remaining logit is close to its own.
 */
#include "lib/block/sparsemix.h"

#include "lib/base/mem.h"
#include "lib/block/pass.h"

static int read(struct fm_config *c, const void *options, const struct fm_keys *keys,
                struct fm_err *err)
{
    double eps = 0.01;
    (void)options;
    c->router = &fm_sparsemix;
    int rc = fm_json_opt_double(keys->json, "router_jitter_noise", 0, 1e18, &eps, err);
    if (!rc && c->K != 2)
        rc = fm_fail(err, FM_ECONFIG, "num_experts_per_tok is %d; sparsemixer chooses 2", c->K);
    if (rc)
        return rc;
    c->sparsemix = fm_alloc(1, sizeof *c->sparsemix, "router settings", err);
    if (!c->sparsemix)
        return err->code;
    c->sparsemix->threshold = (float)(2 * eps);
    return FM_OK;
}

static void forward(const struct fm_pass *p, int32_t *ids, float *weights, float *logits,
                    const float *x)
{
    fm_router_logits(p, logits, x);
    p->ops->sparsemixer(ids, weights, logits, fm_pass_rows(p), p->config->E,
                        p->config->sparsemix->threshold);
}

static void backward(const struct fm_pass *p, float *dx, float *dlogits, const float *dweights,
                     const int32_t *ids, const float *weights, const float *logits)
{
    const struct fm_config *c = p->config;
    p->ops->sparsemixer_back(dlogits, dweights, ids, weights, logits, fm_pass_rows(p), c->E,
                             c->sparsemix->threshold);
    fm_router_logits_back(p, dx, dlogits);
}

const struct fm_router fm_sparsemix = {.read = read,
                                       .saves = true,
                                       .forward = forward,
                                       .backward = backward,
                                       .flops = fm_router_logits_flops};
