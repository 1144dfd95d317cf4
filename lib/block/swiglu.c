/*
 * SwiGLU experts.  Their rows are interleaved in memory and in bundles (gate 0, up 0, gate 1, ...),
 * so that a narrower expert is a prefix.
 */
#include "lib/block/swiglu.h"

#include <string.h>

#include "lib/block/pass.h"

static int read(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *act = cJSON_GetObjectItemCaseSensitive(keys->json, "hidden_act");
    const char *name = NULL;
    (void)c;
    if (!act || cJSON_IsNull(act))
        return FM_OK;
    int rc = fm_json_get_string(keys->json, "hidden_act", &name, err);
    if (!rc && strcmp(name, "silu") != 0)
        rc = fm_fail(err, FM_ECONFIG, "hidden_act '%.64s' is not supported; supported: silu", name);
    return rc;
}

static void activate(const struct fm_pass *p, struct fm_out h, const float *gu, int n, int I)
{
    p->ops->swiglu(h, gu, n, I);
}

static void activate_back(const struct fm_pass *p, struct fm_out dgu, const float *dh,
                          const float *gu, int n, int I, int k)
{
    p->ops->swiglu_back(dgu, dh, gu, n, I, k);
}

const struct fm_expert_form fm_swiglu = {.name = "swiglu",
                                         .rows = 2,
                                         .read = read,
                                         .activate = activate,
                                         .activate_back = activate_back};
