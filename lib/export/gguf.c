#include "lib/export/gguf.h"

#include "lib/model/family.h"

bool fm_gguf_same(const struct fm_config *c)
{
    const struct fm_model_family *f = c->family;
    bool wide = f->qk_norm == FM_QK_NORM_FULL;
    if (f->gguf_router != (int)c->router || c->M < c->L || c->clip > 0 || c->window > 0)
        return false;
    return !wide || (c->G == c->Q && c->eps == 1e-5F);
}
