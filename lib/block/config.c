/* Which layers of a model have experts, and how wide the other MLPs are. */
#include "lib/block/block.h"

int fm_config_moe(const struct fm_config *c, int l)
{
    int first = 0, end = c->M;
    while (first < end) {
        int middle = (first + end) / 2;
        if (c->moe[middle] < l)
            first = middle + 1;
        else
            end = middle;
    }
    return first < c->M && c->moe[first] == l ? first : -1;
}

int fm_config_mlp(const struct fm_config *c, int l)
{
    return fm_config_moe(c, l) < 0 ? c->dense : c->shared;
}
