/* The two clamped forms: they differ in biases and in the names of the activation that are
 * accepted. */
#include "lib/block/clamped.h"

#include <float.h>

#include "lib/block/pass.h"

static int read(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const char *const names[] = {"silu", c->expert->bias ? NULL : "swigluoai", NULL};
    double alpha = 1.702, limit = 7;
    int which, rc = fm_keys_word(&which, keys, "hidden_act", names, err);
    if (!rc)
        rc = fm_json_opt_double(keys->json, "swiglu_alpha", FLT_MIN, FLT_MAX, &alpha, err);
    if (!rc)
        rc = fm_json_opt_double(keys->json, "swiglu_limit", FLT_MIN, FLT_MAX, &limit, err);
    c->alpha = (float)alpha;
    c->limit = (float)limit;
    return rc;
}

static void activate(const struct fm_pass *p, bool mlp, struct fm_out h, const float *gu, int n,
                     int I)
{
    (void)mlp;
    p->ops->swiglu_clamped(h, gu, n, I, p->config->alpha, p->config->limit);
}

static void activate_back(const struct fm_pass *p, bool mlp, struct fm_out dgu, const float *dh,
                          const float *gu, int n, int I, int k)
{
    (void)mlp;
    p->ops->swiglu_clamped_back(dgu, dh, gu, n, I, k, p->config->alpha, p->config->limit);
}

const struct fm_expert_form fm_swiglu_clamped = {
    .rows = 2, .bias = true, .read = read, .activate = activate, .activate_back = activate_back};

const struct fm_expert_form fm_swiglu_clamped_unbiased = {
    .rows = 2, .read = read, .activate = activate, .activate_back = activate_back};
