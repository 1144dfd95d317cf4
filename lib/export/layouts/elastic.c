/*
 * elastic: the whole family in one directory, in the form of ragged at full width. config.json has
 * the widths of every budget: fm_budgets (B), fm_family (B rows as fm_widths) and fm_budget, the
 * initial one.  Each layer of experts has an additional tensor, experts.budget (1): the index of
 * the current member, which a running server can change; -1 selects the one of config.json.
 *
 * With a load cap (R, R2) it holds only the members with budgets from R to R2.  Every expert has
 * the largest of its widths in these members, and config.json has fm_load_cap.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/export/card.h"
#include "lib/export/exportplan.h"
#include "lib/export/tensors.h"
#include "lib/export/texts.h"

/* ---- widths ---- */

/* With a load cap, make every expert as wide as the widest of the members that are kept. */
static void cover_members(struct fm_exportplan *p)
{
    uint32_t *kept = p->widths.kept;
    for (int b = p->first; b <= p->last && p->options.load_cap; b++) {
        const uint32_t *mask = fm_masks_widths(&p->from->budgets.masks, b);
        for (size_t i = 0; i < fm_opened_experts(p->from); i++)
            kept[i] = b == p->first || mask[i] > kept[i] ? mask[i] : kept[i];
    }
}

/* Without a load cap, files have every channel: the full model is a member of every family. */
static void store_all(struct fm_exportplan *p)
{
    for (size_t i = 0; i < fm_opened_experts(p->from) && !p->options.load_cap; i++)
        p->widths.kept[i] = p->widths.stored[i] = (uint32_t)p->from->config.I;
    p->widths.full = !p->options.load_cap;
}

/* ---- tensors ---- */

/* The number of integers from 0 on that the dtype holds exactly; the index of a budget must be
 * one of them. */
static int exact_integers(enum fm_dtype dtype)
{
    return dtype == FM_BF16 ? 257 : dtype == FM_F16 ? 2049 : 1 << 24;
}

static int check_index(const struct fm_exportplan *p, struct fm_err *err)
{
    int most = exact_integers(p->from->dtype), budgets = p->last - p->first + 1;
    if (budgets > most)
        return fm_fail(err, FM_ECONFIG,
                       "layout elastic: %d budgets, but an index in %s can count only %d; use a "
                       "larger --budget-step of fm-train, or --load-cap",
                       budgets, fm_dtype_name(p->from->dtype), most);
    return FM_OK;
}

/* From "model.layers.0.mlp.experts.down" make "model.layers.0.mlp.experts.budget". */
static int add_index(struct fm_exportplan *p, int m, struct fm_err *err)
{
    char name[FM_WEIGHT_NAME_BYTES + 8];
    fm_weights_name_of(name, &p->from->config, FM_NAMING_RAGGED, FM_PART_DOWN_T,
                       p->from->config.moe[m], 0);
    char *last = strrchr(name, '.');
    assert(last);
    snprintf(last, sizeof name - (size_t)(last - name), ".budget");
    /* -1: the budget of config.json or of the environment. */
    struct fm_planned_tensor t = {.m = m, .kind = FM_PLANNED_NUMBERS, .number = {-1}};
    t.t = (struct fm_tensor){.name = name, .dtype = p->from->dtype, .dims = 1, .shape = {1}};
    return fm_planned_add_tensor(p, &t, err);
}

static int plan_experts(struct fm_exportplan *p, int m, struct fm_err *err)
{
    if (check_index(p, err) || fm_tensors_flat(p, m, err))
        return err->code;
    return add_index(p, m, err);
}

/* ---- texts ---- */

/* Write the widths of every budget, as rounded in this export. */
static void say_family(struct fm_text *t, const struct fm_exportplan *p)
{
    uint32_t *widths = malloc(fm_opened_experts(p->from) * sizeof *widths);
    t->failed = t->failed || !widths;
    fm_text_printf(t, "[");
    for (int b = p->first; b <= p->last && widths; b++) {
        fm_exportplan_served(p, b, widths);
        fm_text_printf(t, "%s\n    ", b > p->first ? "," : "");
        fm_texts_widths(t, p, widths, "    ");
    }
    fm_text_printf(t, "\n  ]");
    free(widths);
}

static void set_config(struct fm_texts_edit *edit, struct fm_exportplan *p)
{
    struct fm_text t = {0};
    fm_texts_ours(edit, p);
    fm_text_printf(&t, "[");
    for (int b = p->first; b <= p->last; b++) {
        fm_text_printf(&t, "%s", b > p->first ? ", " : "");
        fm_texts_number(&t, p->from->budgets.budget[b].budget);
    }
    fm_text_printf(&t, "]");
    fm_texts_set(edit, "fm_budgets", &t);
    if (p->options.load_cap) {
        fm_texts_cap(&t, &p->options);
        fm_texts_set(edit, "fm_load_cap", &t);
    }
    fm_texts_number(&t, p->from->budgets.budget[p->index].budget);
    fm_texts_set(edit, "fm_budget", &t);
    if (!p->family) {
        say_family(&t, p);
        p->family = t.failed ? NULL : t.data;
        if (t.failed)
            free(t.data);
        t = (struct fm_text){.failed = t.failed};
    }
    if (!t.failed)
        fm_text_add(&t, p->family, strlen(p->family));
    fm_texts_set(edit, "fm_family", &t);
}

/* ---- card ---- */

static const char about[] =
    "Layout `elastic`: the whole family in one directory.  Experts have full width and\n"
    "their channels in ranked order; a budget uses a prefix of each, and is chosen when "
    "the\nmodel is loaded or while it is served.";
static const char about_capped[] =
    "Layout `elastic`, capped: some budgets of the family in one directory.  Experts have the\n"
    "largest width that these budgets use and their channels in ranked order; a budget uses a\n"
    "prefix of each, and is chosen when the model is loaded or while it is served.";

/* Title, description, and a table with a line for every budget. */
static void say_card(struct fm_text *t, const struct fm_exportplan *p)
{
    const struct fm_budget *budget = p->from->budgets.budget;
    bool measured = fm_planned_as_measured(p), interpolated = false;
    fm_text_printf(t, "\n# A family of pruned mixture-of-experts models, budgets %.4g to %.4f\n\n",
                   budget[p->first].budget, budget[p->last].budget);
    fm_card_intro(t, p->options.load_cap ? about_capped : about);
    fm_text_printf(t, "| bytes of the weight files | %" PRIu64 " |\n|---|---|\n",
                   fm_planned_weight_bytes(p));
    fm_text_printf(t, "| initial budget | %.4f |\n", budget[p->index].budget);
    if (p->options.load_cap)
        fm_text_printf(t,
                       "| bytes of channels left out, which no budget here uses | %" PRIu64 " |\n",
                       fm_planned_channel_bytes(p, fm_planned_freed(p)));
    fm_card_weights(t, p);
    if (measured)
        fm_card_held_out(t, &p->from->bundle);
    fm_text_printf(t,
                   "\n| budget | mean width | active parameters | held-out cross-entropy%s | "
                   "divergence | same token |\n|---|---|---|---|---|---|\n",
                   fm_card_rounding(p));
    for (int b = p->first; b <= p->last; b++) {
        struct fm_quality q;
        bool known = measured && fm_masks_quality(&q, &p->from->budgets.masks, b);
        interpolated = interpolated || (known && !q.positions);
        fm_text_printf(t, "| %.4f | %.1f | %" PRIu64 " |", budget[b].budget, budget[b].width_mean,
                       budget[b].params_active);
        if (known)
            fm_text_printf(t, " %s%.4f | %.4f | %.4f |\n", q.positions ? "" : "~", q.ce, q.kl,
                           q.agree);
        else
            fm_text_printf(t, " | | |\n");
    }
    if (interpolated)
        fm_text_printf(t, "\n`~`: interpolated between measured budgets.\n");
    if (!measured)
        fm_text_printf(t, "\nLosses were not measured; `fm-bench quality` measures this "
                          "directory.\n");
}

const struct fm_layout fm_layout_elastic = {
    .name = "elastic",
    .cannot = {[FM_WITH_FIT] = "has all members",
               [FM_WITH_FORMATS] = FM_WHY_ONE_FORMAT,
               [FM_WITH_TP] = FM_WHY_WHOLE,
               [FM_WITH_PARTS] = FM_WHY_TEXT},
    .modeling = true,
    .all_members = true,
    .capped = "load-cap",
    .level = cover_members,
    .store = store_all,
    .names = FM_NAMING_RAGGED,
    .numbers = 1,
    .experts = plan_experts,
    .config = set_config,
    .card = say_card,
    .vllm_options = " --no-enable-prefix-caching",
    .sglang_options = " --disable-radix-cache",
    .running =
        "Set the budget as `fm_budget` in config.json, or as `FM_BUDGET=0.4` in the\n"
        "environment of the program; in transformers, `model.set_budget(0.4)` changes it at any "
        "time.  To change\nit in a running server, write the budget's index to the tensor "
        "`experts.budget` of every layer\n(vLLM: `LLM.apply_model`, SGLang: "
        "`update_weights_from_tensor`).  Prefixes cached at one budget\nare wrong for another, so "
        "the commands above disable prefix caching.  fm-clients(7) has the\ncalls, also over HTTP, "
        "and explains how to keep the caches.\n\n",
};
