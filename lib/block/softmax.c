/*
 * Routers by softmax.  A renormalised weight and its gradient depend only on the chosen logits.  A
 * raw probability depends on every expert's logit, so that router keeps the probabilities of all.
 */
#include "lib/block/softmax.h"

#include "lib/block/pass.h"

static int read(struct fm_config *c, const void *options, const struct fm_keys *keys,
                struct fm_err *err)
{
    const struct fm_softmax_options *o = options;
    bool renormalised = o->renormalised;
    int rc = o->key ? fm_json_opt_bool(keys->json, "norm_topk_prob", &renormalised, err) : FM_OK;
    c->router = o->scaled ? &fm_softmax_scaled : renormalised ? &fm_softmax : &fm_softmax_raw;
    return rc;
}

static void forward(const struct fm_pass *p, int32_t *ids, float *weights, float *keep,
                    const float *x)
{
    const struct fm_config *c = p->config;
    int N = fm_pass_rows(p);
    struct fm_mark mark = fm_scratch_mark();
    float *logits = fm_scratch_floats((size_t)N * (size_t)c->E);
    (void)keep;
    fm_router_logits(p, logits, x);
    p->ops->route(ids, weights, logits, N, c->E, c->K);
    fm_scratch_release(mark);
}

static void backward(const struct fm_pass *p, float *dx, float *dlogits, const float *dweights,
                     const int32_t *ids, const float *weights, const float *keep)
{
    const struct fm_config *c = p->config;
    (void)keep;
    p->ops->route_back(dlogits, dweights, ids, weights, fm_pass_rows(p), c->E, c->K);
    fm_router_logits_back(p, dx, dlogits);
}

/* `all` (N, E) receives the logits, then the probabilities. */
static void forward_raw(const struct fm_pass *p, int32_t *ids, float *weights, float *all,
                        const float *x)
{
    const struct fm_config *c = p->config;
    fm_router_logits(p, all, x);
    p->ops->route_raw(ids, weights, all, fm_pass_rows(p), c->E, c->K);
}

static void backward_raw(const struct fm_pass *p, float *dx, float *dlogits, const float *dweights,
                         const int32_t *ids, const float *weights, const float *all)
{
    const struct fm_config *c = p->config;
    (void)weights;
    p->ops->route_raw_back(dlogits, dweights, ids, all, fm_pass_rows(p), c->E, c->K);
    fm_router_logits_back(p, dx, dlogits);
}

/* `all` (N, E) receives the renormalised weights (N, K); K is at most E. */
static void forward_scaled(const struct fm_pass *p, int32_t *ids, float *weights, float *all,
                           const float *x)
{
    const struct fm_config *c = p->config;
    int N = fm_pass_rows(p);
    forward(p, ids, all, NULL, x);
    p->ops->gather(fm_to_f32(weights), fm_f32(p->layer->router.scale), ids, all, N * c->K, 1);
}

static void backward_scaled(const struct fm_pass *p, float *dx, float *dlogits,
                            const float *dweights, const int32_t *ids, const float *weights,
                            const float *all)
{
    int count = fm_pass_rows(p) * p->config->K;
    struct fm_mark mark = fm_scratch_mark();
    float *d = fm_scratch_floats((size_t)count);
    (void)weights;
    p->ops->gather(fm_to_f32(d), fm_f32(p->layer->router.scale), ids, dweights, count, 1);
    backward(p, dx, dlogits, d, ids, all, NULL);
    fm_scratch_release(mark);
}

const struct fm_router fm_softmax = {
    .read = read, .forward = forward, .backward = backward, .flops = fm_router_logits_flops};
const struct fm_router fm_softmax_raw = {.read = read,
                                         .saves = true,
                                         .forward = forward_raw,
                                         .backward = backward_raw,
                                         .flops = fm_router_logits_flops};
const struct fm_router fm_softmax_scaled = {.read = read,
                                            .saves = true,
                                            .forward = forward_scaled,
                                            .backward = backward_scaled,
                                            .flops = fm_router_logits_flops};
