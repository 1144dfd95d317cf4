/*
 * uniform: stock names, every expert equally wide.  The width is the mask's mean width, rounded up
 * to a multiple that the grouped products of stock runtimes require.  The architecture stays the
 * same, so any program that runs the original loads the export.  If config.json gives the width of
 * the shared expert as a number of experts, that number also changes, and zeros fill the rest of
 * the last expert.
 *
 * Its form for --drop-experts is for vLLM 0.33: experts without channels in the mask are left out
 * and listed in config.json (FM_REMOVED_KEY), and each is replaced by a constant output.  The
 * router is unchanged.  The other experts share one width.
 */
#include "lib/export/runtimes.h"
#include "lib/export/plan.h"
#include "lib/export/texts.h"

static void level_model(struct fm_exportplan *p)
{
    const struct fm_config *c = &p->from->config;
    uint32_t k = fm_actions_uniform_export(p->from->budgets.masks.mask[p->index].removed, c->M,
                                           c->E, c->I, p->from->budgets.actions.multiple);
    for (int i = 0; i < c->M * c->E; i++)
        p->widths.kept[i] = k;
}

/* Give all experts that have channels the same width. */
static void level_kept(struct fm_exportplan *p)
{
    size_t n = fm_opened_experts(p->from);
    uint32_t *kept = p->widths.kept;
    uint64_t sum = 0, experts = 0;
    for (size_t i = 0; i < n; i++) {
        sum += kept[i];
        experts += kept[i] > 0;
    }
    for (size_t i = 0; i < n; i++)
        if (kept[i] > 0)
            kept[i] = fm_actions_round(
                (sum + experts - 1) / experts,
                fm_actions_both(p->from->budgets.actions.multiple, FM_UNIFORM_MULTIPLE),
                p->from->config.I);
}

static void set_config(struct fm_texts_edit *edit, struct fm_exportplan *p)
{
    const struct fm_config *c = &p->from->config;
    const struct fm_model_family *family = c->family;
    struct fm_text t = {0};
    fm_texts_stock(edit, p);
    fm_text_printf(&t, "%d", (int)p->widths.widest);
    fm_texts_set(edit, family->width_key, &t);
    if (!family->shared_key || c->shared == 0)
        return;
    fm_text_printf(&t, "%d", p->widths.shared / (int)p->widths.widest);
    fm_texts_set(edit, family->shared_key, &t);
}

/* Also write {"3": [0, 17]}: the layers that lack experts, and which ones. */
static void set_removed(struct fm_texts_edit *edit, struct fm_exportplan *p)
{
    const struct fm_config *c = &p->from->config;
    struct fm_text t = {0};
    int layers = 0;
    set_config(edit, p);
    for (int m = 0; m < c->M; m++) {
        const uint32_t *stored = p->widths.stored + (size_t)m * (size_t)c->E;
        int removed = 0;
        for (int e = 0; e < c->E; e++)
            if (stored[e] == 0 && removed++ == 0)
                fm_text_printf(&t, "%s\n    \"%d\": [%d", layers++ ? "]," : "{", c->moe[m], e);
            else if (stored[e] == 0)
                fm_text_printf(&t, ", %d", e);
    }
    fm_text_printf(&t, layers ? "]\n  }" : "{}");
    fm_texts_set(edit, FM_REMOVED_KEY, &t);
}

static void say_running(struct fm_text *t, const struct fm_exportplan *p)
{
    if (!fm_runtimes_llama(&p->from->config))
        return;
    if (p->codes || p->options.quantise)
        fm_text_printf(t, "llama.cpp: its converter reads only plain weights; export again with "
                          "`--weights bf16`, convert\nthat, and quantise the GGUF file.\n\n");
    else
        fm_text_printf(t, "llama.cpp:\n\n"
                          "    python convert_hf_to_gguf.py DIR --outfile model.gguf\n"
                          "    llama-cli -m model.gguf\n\n");
}

static const struct fm_layout dropped = {
    .name = "uniform",
    .one_width = true,
    .plain =
        "with --drop-experts is for vLLM, which supports constant outputs only with plain weights",
    .drops = true,
    .multiple = FM_UNIFORM_MULTIPLE,
    .level = level_kept,
    .leveled = "one width for all remaining experts",
    .names = FM_NAMING_STOCK,
    .experts = fm_exportplan_stock,
    .sharded = true,
    .files = fm_exportplan_shards,
    .config = set_removed,
    .about =
        "Layout `uniform` without removed experts: stock names, one width for all remaining\n"
        "experts, and a constant output for each expert of which the mask keeps no channel.  The\n"
        "router is unchanged and still chooses removed experts.  This is a format of vLLM 0.33.",
    .vllm_options = "",
    .sglang_options = "",
    .split = FM_SPLIT_EXPERTS,
};

const struct fm_layout fm_layout_uniform = {
    .name = "uniform",
    .dropped = &dropped,
    .one_width = true,
    .multiple = FM_UNIFORM_MULTIPLE,
    .level = level_model,
    .leveled = "one width for all experts",
    .names = FM_NAMING_STOCK,
    .experts = fm_exportplan_stock,
    .sharded = true,
    .files = fm_exportplan_shards,
    .config = set_config,
    .about = "Layout `uniform`: stock names, all experts of the same width; any program that runs\n"
             "the original architecture can load it.",
    .vllm_options = "",
    .sglang_options = "",
    .running = say_running,
    .split = FM_SPLIT_EXPERTS,
};
