/* SwiGLU with a limit for each layer; layers without one are computed as in swiglu.c. */
#include "lib/block/limited.h"

#include <float.h>

#include "lib/base/mem.h"
#include "lib/block/pass.h"
#include "lib/block/swiglu.h"

static int read_limits(float *limit, int layers, const cJSON *json, const char *key,
                       struct fm_err *err)
{
    const cJSON *list, *entry;
    int l = 0, rc = fm_keys_list(&list, json, key, layers, err);
    if (rc)
        return rc;
    cJSON_ArrayForEach(entry, list)
    {
        double value = cJSON_IsNull(entry) ? 0 : cJSON_IsNumber(entry) ? entry->valuedouble : -1;
        if (!(value >= 0 && value <= FLT_MAX))
            return fm_fail(err, FM_EFORMAT, "%s of layer %d is not a number from 0 on", key, l);
        limit[l++] = (float)value;
    }
    return FM_OK;
}

static int read(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int layers = 0;
    c->limits = fm_alloc(1, sizeof *c->limits, "limits of the activation", err);
    if (!c->limits || fm_keys_size(&layers, keys->json, "num_hidden_layers", FM_LAYERS_MAX, err) ||
        read_limits(c->limits->expert, layers, keys->json, "swiglu_limits", err) ||
        read_limits(c->limits->mlp, layers, keys->json, "swiglu_limits_shared", err))
        return err->code;
    return fm_swiglu.read(c, keys, err);
}

static float limit_of(const struct fm_pass *p, bool mlp)
{
    const struct fm_limits *limits = p->config->limits;
    return mlp ? limits->mlp[p->l] : limits->expert[p->l];
}

static void activate(const struct fm_pass *p, bool mlp, struct fm_out h, const float *gu, int n,
                     int I)
{
    float limit = limit_of(p, mlp);
    if (limit > 0)
        p->ops->swiglu_limited(h, gu, n, I, limit);
    else
        p->ops->swiglu(h, gu, n, I);
}

static void activate_back(const struct fm_pass *p, bool mlp, struct fm_out dgu, const float *dh,
                          const float *gu, int n, int I, int k)
{
    float limit = limit_of(p, mlp);
    if (limit > 0)
        p->ops->swiglu_limited_back(dgu, dh, gu, n, I, k, limit);
    else
        p->ops->swiglu_back(dgu, dh, gu, n, I, k);
}

const struct fm_expert_form fm_swiglu_limited = {
    .rows = 2, .read = read, .activate = activate, .activate_back = activate_back};
