/*
 * uniform: stock names, every expert equally wide.  The width is the mask's mean width, rounded up
 * to a multiple that the grouped products of stock runtimes require.  The architecture stays the
 * same, so any program that runs the original loads the export.  If config.json gives the width of
 * the shared expert as a number of experts, that number also changes, and zeros fill the rest of
 * the last expert.  Programs build layers for multi-token prediction with the same widths, so with
 * --keep-extra such a layer gets them, too.
 */
#include "lib/export/tensors.h"
#include "lib/export/texts.h"

static void level_model(struct fm_exportplan *p)
{
    const struct fm_config *c = &p->from->config;
    uint32_t k = fm_actions_uniform_export(p->from->budgets.masks.mask[p->index].removed, c->M,
                                           c->E, c->I, p->from->budgets.actions.multiple);
    for (int i = 0; i < c->M * c->E; i++)
        p->widths.kept[i] = k;
}

/* If config.json gives the width of the shared expert as a number of experts, make it a multiple of
 * theirs. */
static void widen_shared(struct fm_exportplan *p)
{
    int width = (int)p->widths.stored[0], shared = p->widths.shared;
    if (p->from->config.family->shared_key && width > 0)
        p->widths.shared = (shared + width - 1) / width * width;
}

/* If every expert is removed, the width of the shared expert cannot be a multiple of theirs. */
static int plan_experts(struct fm_exportplan *p, int m, struct fm_err *err)
{
    const struct fm_config *c = &p->from->config;
    if (p->widths.stored[0] > 0 || !c->family->shared_key || c->shared == 0)
        return fm_tensors_stock(p, m, err);
    return fm_fail(
        err, FM_ECONFIG,
        "layout uniform: experts have no channels left, but config.json gives the width of the "
        "shared expert, %d, as a multiple of theirs (%s); use a smaller budget or another layout",
        c->shared, c->family->shared_key);
}

static void set_config(struct fm_texts_edit *edit, struct fm_exportplan *p)
{
    const struct fm_config *c = &p->from->config;
    const struct fm_model_family *family = c->family;
    fm_texts_stock(edit, p);
    fm_texts_setf(edit, family->width_key, "%d", (int)p->widths.widest);
    if (family->shared_key && c->shared > 0)
        fm_texts_setf(edit, family->shared_key, "%d", p->widths.shared / (int)p->widths.widest);
}

const struct fm_layout fm_layout_uniform = {
    .name = "uniform",
    .cannot = {[FM_WITH_LOAD_CAP] = FM_WHY_SINGLE, [FM_WITH_KEYS] = FM_WHY_ALL_KEYS},
    .one_width = true,
    .multiple = FM_UNIFORM_MULTIPLE,
    .level = level_model,
    .store = widen_shared,
    .leveled = "one width for all experts",
    .granularity = "model",
    .names = FM_NAMING_STOCK,
    .experts = plan_experts,
    .config = set_config,
    .about = "Layout `uniform`: stock names, all experts of the same width; any program that runs\n"
             "the original architecture can load it.",
};
