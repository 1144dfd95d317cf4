/*
 * Masks of a served model come from a bundle, or are drawn as for one clipped layer, with another
 * seed for each layer.
 */
#include "lib/bench/servemask.h"

#include <math.h>
#include <string.h>

#include "formats/bundle/bundle.h"
#include "lib/bench/kernelcase.h"
#include "lib/stage/stage.h"

/* One layer's shape and masks as fm-bench kernels draws them; other layers have other seeds. */
static int draw(struct fm_kernelcase *k, const struct fm_servemask *m, int l, struct fm_err *err)
{
    struct fm_kernelbench_options o = {.shape = m->options->shape,
                                       .budgets = m->options->budgets,
                                       .dtype = m->options->dtype,
                                       .threads = 1,
                                       .seed = m->seed ^ (uint64_t)l << 40};
    return fm_kernelcase_shape(k, &o, err);
}

static int open_drawn(struct fm_servemask *m, struct fm_config *config, struct fm_err *err)
{
    struct fm_kernelcase k = {0};
    int rc = draw(&k, m, 0, err);
    config->H = k.layer.H;
    config->I = k.I;
    config->E = k.layer.E;
    config->K = k.K;
    m->B = k.layer.B;
    fm_kernelcase_release(&k);
    return rc;
}

/* The masks nearest to the budgets, each once. */
static int choose_masks(struct fm_servemask *m, struct fm_err *err)
{
    double budget[FM_KERNELBENCH_BUDGETS_MAX];
    const struct fm_masks *f = &m->budgets.masks;
    int count;
    if (fm_kernelcase_budgets(budget, &count, m->options->budgets, err))
        return err->code;
    for (int b = 0; b < count; b++) {
        int best = 0;
        for (int i = 1; i < f->count; i++)
            if (fabs(fm_masks_budget(f, i) - budget[b]) <
                fabs(fm_masks_budget(f, best) - budget[b]))
                best = i;
        if (m->B == 0 || m->mask[m->B - 1] != best)
            m->mask[m->B++] = best;
    }
    return FM_OK;
}

static int open_family(struct fm_servemask *m, struct fm_config *config, struct fm_err *err)
{
    struct fm_bundle bundle = {0};
    struct fm_stage_model model;
    int rc = fm_stage_open(&bundle, m->options->family, FM_MEMBER_MASKS, err);
    if (!rc)
        rc = fm_stage_model_read(&model, &bundle, err);
    if (!rc)
        rc = fm_budgets_open(&m->budgets, &bundle, err);
    if (!rc)
        rc = choose_masks(m, err);
    if (!rc) {
        config->H = model.H;
        config->I = model.I;
        config->E = model.E;
        config->K = model.K;
        m->layers = model.M;
        m->model_layers = model.L;
    }
    fm_bundle_close(&bundle);
    return rc;
}

int fm_servemask_open(struct fm_servemask *m, const struct fm_servebench_options *o, uint64_t seed,
                      struct fm_config *config, struct fm_err *err)
{
    m->options = o;
    m->seed = seed;
    return o->family ? open_family(m, config, err) : open_drawn(m, config, err);
}

void fm_servemask_close(struct fm_servemask *m)
{
    fm_budgets_release(&m->budgets);
}

int fm_servemask_draw(const struct fm_servemask *m, int l, int32_t *widths, struct fm_err *err)
{
    struct fm_kernelcase k = {0};
    const struct fm_masks *f = &m->budgets.masks;
    if (!m->layers) {
        if (!draw(&k, m, l, err))
            memcpy(widths, k.widths, (size_t)k.layer.B * (size_t)k.layer.E * sizeof *widths);
        fm_kernelcase_release(&k);
        return err->code;
    }
    for (int b = 0; b < m->B; b++) {
        const uint32_t *from = fm_masks_widths(f, m->mask[b]) + (size_t)l * (size_t)f->E;
        for (int e = 0; e < f->E; e++)
            widths[b * f->E + e] = (int32_t)from[e];
    }
    return FM_OK;
}
