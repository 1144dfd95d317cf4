/*
 * Routers that choose by score.  kernels/ops/scored.c computes the choice and its gradient.
 * Families describe the rule by different keys of config.json.  An unsupported rule is an error,
 * because the model would be computed with different experts.
 */
#include "lib/block/scored.h"

#include <float.h>

#include "lib/base/mem.h"
#include "lib/block/pass.h"

/* Read n_group groups of the E experts, of which topk_group are kept. */
static int read_sizes(struct fm_route_rule *r, const struct fm_config *c, const cJSON *json,
                      struct fm_err *err)
{
    int rc = fm_keys_size_opt(&r->groups, json, "n_group", FM_EXPERTS_MAX, err);
    if (!rc)
        rc = fm_keys_size_opt(&r->topk_group, json, "topk_group", FM_EXPERTS_MAX, err);
    if (rc)
        return rc;
    if (c->E % r->groups != 0 || r->topk_group > r->groups)
        return fm_fail(
            err, FM_EFORMAT,
            "%d experts cannot be divided into n_group %d groups of which topk_group %d are kept",
            c->E, r->groups, r->topk_group);
    int each = c->E / r->groups;
    if (r->groups > 1 && (each < r->group_sum || c->K > r->topk_group * each))
        return fm_fail(err, FM_EFORMAT,
                       "n_group %d leaves %d experts in a group; with topk_group %d that is too "
                       "few to choose %d",
                       r->groups, each, r->topk_group, c->K);
    return FM_OK;
}

static int read_groups(struct fm_route_rule *r, const struct fm_config *c,
                       const struct fm_scored_options *o, const struct fm_keys *keys,
                       struct fm_err *err)
{
    static const char *const noaux[] = {"noaux_tc", NULL};
    static const char *const methods[] = {"greedy", "group_limited_greedy", NULL};
    bool by_method = o->groups == FM_GROUPS_METHOD;
    int which = 0, rc = FM_OK;
    r->groups = r->topk_group = 1;
    r->group_sum = by_method ? 1 : 2;
    if (o->groups == FM_GROUPS_NONE)
        return FM_OK;
    rc = fm_keys_word(&which, keys, "topk_method", by_method ? methods : noaux, err);
    return rc || (by_method && which == 0) ? rc : read_sizes(r, c, keys->json, err);
}

static int read_weighing(struct fm_route_rule *r, const struct fm_scored_options *o,
                         const struct fm_keys *keys, struct fm_err *err)
{
    const char *key = o->scale_key ? o->scale_key : "routed_scaling_factor";
    double scale = o->scale > 0 ? o->scale : 1, least = o->least_key ? o->least : 0;
    bool renormalised = o->renormalised;
    int rc = FM_OK;
    if (o->norm_key)
        rc = fm_json_opt_bool(keys->json, "norm_topk_prob", &renormalised, err);
    if (!rc && o->scale > 0)
        rc = fm_json_opt_double(keys->json, key, 0, FLT_MAX, &scale, err);
    if (!rc && o->least_key)
        rc = fm_json_opt_double(keys->json, o->least_key, 0, FLT_MAX, &least, err);
    r->renormalised = renormalised;
    r->eps = (float)o->eps;
    r->least = (float)least;
    r->scale = (float)scale;
    if (!rc && !(r->scale > 0))
        rc = fm_fail(err, FM_EFORMAT, "%s is not above 0", key);
    return rc;
}

static int read(struct fm_config *c, const void *options, const struct fm_keys *keys,
                struct fm_err *err)
{
    const struct fm_scored_options *o = options;
    struct fm_scored *s = c->scored = fm_alloc(1, sizeof *s, "router settings", err);
    if (!s)
        return err->code;
    c->router = &fm_scored;
    s->rule.sigmoid = o->sigmoid;
    const char *const known[] = {o->sigmoid ? "sigmoid" : "softmax", NULL};
    int which = 0;
    if (fm_keys_word(&which, keys, "scoring_func", known, err) ||
        read_groups(&s->rule, c, o, keys, err))
        return err->code;
    return read_weighing(&s->rule, o, keys, err);
}

/* A copy of the pass whose products are float32. */
static struct fm_pass exact(const struct fm_pass *p)
{
    struct fm_pass same = *p;
    same.ops = p->ops->f32;
    return same;
}

/* The bias for the choice, in scratch if the pass closes experts: it includes `closed`, because a
 * closed expert has score 0 and could still be chosen if its bias is large. */
static const float *choice_bias(const struct fm_pass *p, const float *bias)
{
    if (!p->closed)
        return bias;
    float *both = fm_scratch_floats((size_t)p->config->E);
    p->ops->copy(both, p->closed, (size_t)p->config->E * sizeof *both);
    if (bias)
        p->ops->add(both, bias, p->config->E);
    return both;
}

/* `scores` (N, E) receives the logits, then the scores. */
static void forward(const struct fm_pass *p, int32_t *ids, float *weights, float *scores,
                    const float *x)
{
    const struct fm_config *c = p->config;
    struct fm_pass f32 = exact(p);
    struct fm_mark mark = fm_scratch_mark();
    fm_router_logits(&f32, scores, x);
    p->ops->route_scored(ids, weights, scores, choice_bias(p, p->layer->router.choice_bias),
                         &c->scored->rule, fm_pass_rows(p), c->E, c->K);
    fm_scratch_release(mark);
}

static void backward(const struct fm_pass *p, float *dx, float *dlogits, const float *dweights,
                     const int32_t *ids, const float *weights, const float *scores)
{
    const struct fm_config *c = p->config;
    struct fm_pass f32 = exact(p);
    (void)weights;
    p->ops->route_scored_back(dlogits, dweights, ids, scores, &c->scored->rule, fm_pass_rows(p),
                              c->E, c->K);
    fm_router_logits_back(&f32, dx, dlogits);
}

const struct fm_router fm_scored = {.read = read,
                                    .saves = true,
                                    .forward = forward,
                                    .backward = backward,
                                    .flops = fm_router_logits_flops};
