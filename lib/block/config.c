/* Functions of struct fm_config: its release, which layers have experts, the width of each layer's
 * MLP, and its output norms. */
#include <stdlib.h>

#include "formats/quant/quant.h"
#include "lib/block/block.h"

void fm_config_release(struct fm_config *c)
{
    free(c->gqa);
    free(c->mla);
    free(c->deltanet);
    free(c->shortconv);
    free(c->scored);
    free(c->sparsemix);
    free(c->limits);
    fm_schemes_free(c->schemes);
    *c = (struct fm_config){0};
}

struct fm_scheme fm_config_scheme(const struct fm_config *c, const char *name)
{
    return c->schemes && c->scheme.storage ? fm_schemes_of(c->schemes, name) : c->scheme;
}

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

unsigned fm_config_output_norms(const struct fm_config *c, int l)
{
    unsigned norms = c->output_norms & (FM_NORMS_ATTENTION | FM_NORMS_MLP);
    bool experts = c->output_norms & FM_NORMS_EXPERTS && fm_config_moe(c, l) >= 0;
    return experts ? norms | FM_NORMS_MLP : norms;
}
