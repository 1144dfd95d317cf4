/*
 * Facts about the bundle on a page: the figures of fm-pack --list for each member, the masks, the
 * history and the tokens of each expert.
 */
#include "lib/page/pagefacts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/text.h"
#include "formats/json/json.h"
#include "lib/stage/stage.h"

int fm_pagefacts_open(struct fm_pagefacts *f, const char *path, struct fm_err *err)
{
    if (fm_stage_open(&f->opened.bundle, path, FM_MEMBER_MASKS, err) ||
        fm_list_fill(&f->list, &f->opened, true, err) ||
        fm_stage_shard_bytes(&f->source, &f->opened.bundle, err))
        return err->code;
    return fm_ranking_open(&f->ranking, &f->opened.bundle, err);
}

void fm_pagefacts_release(struct fm_pagefacts *f)
{
    fm_ranking_release(&f->ranking);
    fm_list_release(&f->list);
    fm_opened_release(&f->opened);
}

const char *fm_pagefacts_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "family.fm" : basename(path);
}

uint64_t fm_pagefacts_bytes(const struct fm_pagefacts *f, uint64_t removed)
{
    uint64_t of_channels = removed * fm_opened_channel_weights(&f->opened);
    return f->list.row[0].bytes - of_channels;
}

/* ---- the model ---- */

void fm_pagefacts_model(cJSON *data, const struct fm_pagefacts *f, const char *path)
{
    const struct fm_bundle *b = &f->opened.bundle;
    const struct fm_list *list = &f->list;
    char text[FM_DIGEST_HEX];
    fm_json_add_string(data, "file", fm_pagefacts_name(path));
    fm_json_add_uint(data, "bytes", b->file.size);
    fm_digest_hex(text, &b->member[0].digest);
    fm_json_add_string(data, "manifest", text);
    fm_json_add_string(data, "stage", list->stage);
    fm_json_add_bool(data, "packed", list->packed);
    cJSON *model = fm_json_add_object(data, "model");
    fm_list_model(model, list, true);
    if (list->storage[0])
        fm_json_add_string(model, "storage", list->storage);
    if (list->granularity[0])
        fm_json_add_string(data, "granularity", list->granularity);
    if (list->adapter_budget >= 0)
        fm_json_add_double(data, "adapter_budget", list->adapter_budget);
    fm_json_add_uint(data, "source", f->source);
    double ce; /* of the checkpoint itself; a member with a merged adapter has a different loss */
    if (fm_stage_original_ce(&ce, &f->opened.bundle, f->opened.budgets.masks.mask))
        fm_json_add_double(data, "original_ce", ce);
}

/* ---- the members ---- */

/* Add a form of export: the fm-pack options that make it; `capped`: with a load cap that begins at
 * the member's budget. */
static void add_form(cJSON *forms, const char *name, const char *options, bool capped)
{
    cJSON *form = fm_json_add_object(forms, NULL);
    fm_json_add_string(form, "name", name);
    fm_json_add_string(form, "options", options);
    fm_json_add_bool(form, "capped", capped);
}

/* True if the model's experts can be rounded to that format. */
static bool has_format(const struct fm_list *list, int format)
{
    return list->rows > 0 && list->row[0].format[format].tensors > 0;
}

static void add_forms(cJSON *data, const struct fm_pagefacts *f)
{
    const struct fm_list *list = &f->list;
    cJSON *forms = fm_json_add_array(data, "forms");
    char name[64];
    for (int i = 0; i < list->kinds; i++) {
        const struct fm_list_kind *kind = &list->kind[i];
        char options[96];
        snprintf(options, sizeof options, "--layout %s%s%s%s", kind->layout->name,
                 kind->server ? " --for " : "", kind->server ? kind->server : "",
                 kind->capped ? " --load-cap " : "");
        add_form(forms, kind->name, options, kind->capped);
    }
    for (int i = 0; fm_quantisers[i]; i++) {
        const char *layout = FM_LAYOUT_ROUNDED->name, *format = fm_quantisers[i]->name;
        char options[96];
        if (!has_format(list, i))
            continue;
        snprintf(name, sizeof name, "%s %s", layout, format);
        snprintf(options, sizeof options, "--layout %s --weights %s", layout, format);
        add_form(forms, name, options, false);
    }
}

static void add_quality(cJSON *object, const struct fm_list_row *row)
{
    if (!row->known || row->interpolated) {
        fm_json_add_null(object, "quality");
        if (row->interpolated)
            fm_json_add_double(object, "between", row->ce);
        return;
    }
    cJSON *quality = fm_json_add_array(object, "quality");
    fm_json_add_double(quality, NULL, row->ce);
    fm_json_add_double(quality, NULL, row->kl);
    fm_json_add_double(quality, NULL, row->agree);
    fm_json_add_bool(object, "recovered", row->recovered);
}

/* Add the figures of one member in one form; files 0: not counted; `as_measured`: the member's
 * losses are those of the form. */
static void add_cells(cJSON *forms, uint64_t tensors, uint64_t files, bool as_measured)
{
    cJSON *form = fm_json_add_array(forms, NULL);
    fm_json_add_uint(form, NULL, tensors);
    fm_json_add_uint(form, NULL, files);
    fm_json_add_bool(form, NULL, as_measured);
}

static void add_row(cJSON *array, const struct fm_list *list, const struct fm_list_row *row)
{
    cJSON *object = fm_json_add_object(array, NULL);
    fm_list_add_member(object, row, NULL);
    add_quality(object, row);
    cJSON *forms = fm_json_add_array(object, "forms");
    for (int i = 0; i < list->kinds; i++)
        add_cells(forms, row->form[i].tensors, row->form[i].files, row->form[i].as_measured);
    for (int i = 0; fm_quantisers[i]; i++)
        if (has_format(list, i))
            add_cells(forms, row->format[i].tensors, 0, false);
}

void fm_pagefacts_budgets(cJSON *data, const struct fm_pagefacts *f, const int *shown, int n)
{
    add_forms(data, f);
    int recommended = fm_list_recommended(&f->list);
    fm_json_add_uint(data, "budgets_all", (uint64_t)f->list.rows);
    if (recommended >= 0)
        fm_json_add_uint(data, "recommended", (uint64_t)recommended);
    fm_json_add_double(data, "agreement", FM_LIST_AGREEMENT);
    cJSON *budgets = fm_json_add_array(data, "budgets");
    for (int i = 0; i < n; i++)
        add_row(budgets, &f->list, &f->list.row[shown[i]]);
}

/* ---- masks ---- */

/*
 * Neighbouring masks of a family differ in few experts, so a mask is written as its difference from
 * the one before; even if all experts change, it takes at most a sign and a letter for each.  128
 * experts in 48 layers at 100 budgets are 614,400 widths: as numbers they would take about three
 * times the limit of a page.
 */
static void add_letter(struct fm_text *t, int action)
{
    static const char signs[] = FM_PAGEFACTS_SIGNS;
    int low = action % 52, high = action / 52;
    char c = (char)(low < 26 ? 'A' + low : 'a' + low - 26);
    assert(high < (int)sizeof signs);
    if (high > 0)
        fm_text_add(t, &signs[high - 1], 1);
    fm_text_add(t, &c, 1);
}

/* Append a mask as its difference from `before`; NULL means the full mask. */
static void add_difference(struct fm_text *t, const struct fm_actions *actions,
                           const uint32_t *before, const uint32_t *widths, size_t experts)
{
    int same = 0;
    uint32_t full = actions->width[actions->count - 1];
    for (size_t i = 0; i < experts; i++) {
        if (widths[i] == (before ? before[i] : full)) {
            same++;
            continue;
        }
        if (same)
            fm_text_printf(t, "%d", same);
        same = 0;
        add_letter(t, fm_actions_find(actions, widths[i]));
    }
}

void fm_pagefacts_masks(cJSON *data, const struct fm_budgets *budgets, const int *shown, int n)
{
    const struct fm_masks *f = &budgets->masks;
    const struct fm_actions *actions = &budgets->actions;
    cJSON *widths = fm_json_add_array(data, "actions");
    cJSON *masks = fm_json_add_array(data, "masks");
    for (int i = 0; i < actions->count; i++)
        fm_json_add_uint(widths, NULL, actions->width[i]);
    for (int i = 0; i < n; i++) {
        struct fm_text t = {0};
        fm_text_add(&t, "", 0); /* a mask that equals the one before is an empty text */
        add_difference(&t, actions, i ? fm_masks_widths(f, shown[i - 1]) : NULL,
                       fm_masks_widths(f, shown[i]), (size_t)f->M * (size_t)f->E);
        fm_json_add(masks, NULL, t.failed ? NULL : cJSON_CreateString(t.data));
        free(t.data);
    }
}

/* ---- calibration ---- */

void fm_pagefacts_tokens(cJSON *data, const struct fm_pagefacts *f)
{
    const struct fm_ranking *r = &f->ranking;
    cJSON *tokens = fm_json_add_array(data, "tokens");
    cJSON *starved = fm_json_add_array(data, "starved");
    cJSON *unreached = fm_json_add_array(data, "unreached");
    for (int m = 0; m < r->M; m++) {
        double slots = fm_ranking_slots(r, m);
        for (int e = 0; e < r->E; e++) {
            uint64_t at = (uint64_t)m * (uint64_t)r->E + (uint64_t)e;
            enum fm_reach reach = fm_ranking_reach(r, m, e, slots);
            fm_json_add_uint(tokens, NULL, (uint64_t)r->tokens[at]);
            if (reach != FM_REACH_ENOUGH)
                fm_json_add_uint(reach == FM_REACH_NONE ? unreached : starved, NULL, at);
        }
    }
}

int fm_pagefacts_history(cJSON *data, const struct fm_pagefacts *f, size_t limit,
                         struct fm_err *err)
{
    const cJSON *manifest = f->opened.bundle.manifest;
    cJSON *origin = cJSON_CreateObject();
    static const char *const keys[] = {"model", "history"};
    for (int i = 0; i < 2; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(manifest, keys[i]);
        fm_json_add(origin, keys[i], cJSON_Duplicate(item, true));
    }
    char *text = cJSON_PrintUnformatted(origin);
    bool fits = text && strlen(text) <= limit;
    fm_json_add(data, "origin", fits ? origin : cJSON_CreateNull());
    if (!fits)
        cJSON_Delete(origin);
    bool failed = !text;
    free(text);
    return failed ? fm_fail(err, FM_ENOMEM, "no memory for the page") : FM_OK;
}
