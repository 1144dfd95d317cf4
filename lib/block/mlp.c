/* Cost of the MLP that all tokens go through. */
#include "lib/block/mlp.h"

/* A shared expert in a layer of experts has a share of its own. */
static double mix(const struct fm_config *c, int l)
{
    return fm_config_moe(c, l) >= 0 && c->shared > 0 ? 2.0 * c->H : 0;
}

double fm_mlp_flops(const struct fm_config *c, int l)
{
    return 2.0 * (double)fm_mlp_channel_params(c->H) * fm_config_mlp(c, l) + mix(c, l);
}

double fm_mlp_flops_back(const struct fm_config *c, int l)
{
    return fm_mlp_flops(c, l) + mix(c, l);
}
