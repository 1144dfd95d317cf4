/*
 * What a bundle contains.  A list plans every form of export of every member and adds up the plans,
 * so that it agrees with the export itself.  For a stage stream, which has no weights, only the
 * widths are planned.
 */
#include "lib/export/list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "formats/quant/quant.h"
#include "lib/base/mem.h"
#include "lib/block/mlp.h"
#include "lib/export/exportplan.h"
#include "lib/masks/methods.h"
#include "lib/stage/budgets.h"
#include "lib/stage/stage.h"

static void fill_row(struct fm_list_row *row, const struct fm_budgets *b, int i)
{
    const struct fm_mask *m = &b->masks.mask[i];
    const struct fm_budget *s = &b->budget[i];
    struct fm_quality q;
    bool known = fm_masks_quality(&q, &b->masks, i);
    *row = (struct fm_list_row){.index = i,
                                .budget = s->budget,
                                .removed = m->removed,
                                .width_min = s->width_min,
                                .width_max = s->width_max,
                                .width_mean = s->width_mean,
                                .bytes = s->bytes,
                                .params = s->params,
                                .params_active = s->params_active,
                                .known = known,
                                .interpolated = known && q.positions == 0,
                                .ce = q.ce,
                                .kl = q.kl,
                                .agree = q.agree,
                                .worst = -1,
                                .recovered = q.recovered};
    struct fm_quality full;
    memcpy(row->kind, q.kind, sizeof row->kind);
    if (known && fm_masks_quality(&full, &b->masks, 0))
        row->worst = fm_masks_worst(&row->lost, &b->masks.kinds, q.kind, full.kind);
    snprintf(row->method, sizeof row->method, "%s", m->method->name);
}

int fm_list_kinds(struct fm_list_kind kind[FM_LIST_FORMS_MAX])
{
    const struct fm_layout *const *layout;
    int n = 0;
    for (layout = fm_layouts; *layout; layout++)
        kind[n++] = (struct fm_list_kind){(*layout)->name, *layout, NULL, false};
    for (layout = fm_layouts; *layout; layout++)
        if ((*layout)->vllm)
            kind[n++] = (struct fm_list_kind){(*layout)->vllm->listed, (*layout)->vllm,
                                              (*layout)->vllm->runtime, false};
    for (layout = fm_layouts; *layout && n < FM_LIST_FORMS_MAX; layout++)
        if ((*layout)->capped)
            kind[n++] = (struct fm_list_kind){(*layout)->capped, *layout, NULL, true};
    return n;
}

/* Bytes of the planned tensors, without extra tensors. */
static uint64_t planned_bytes(const struct fm_exportplan *p)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->tensors; i++)
        bytes += p->tensor[i].from && p->tensor[i].from->extra ? 0 : p->tensor[i].t.size;
    return bytes;
}

/* Bytes of all tensors except extra ones.  Unless experts are codes, they are computed without a
 * plan: the tensors of the member, the channels that it removes but the files keep, and in every
 * layer of experts the layout's other numbers and the zeros of a wider shared expert. */
static uint64_t tensor_bytes(const struct fm_exportplan *p)
{
    const struct fm_opened *o = p->from;
    const struct fm_mask *mask = &o->budgets.masks.mask[p->index];
    uint64_t channel = fm_opened_channel_weights(o), kept = fm_planned_channels_all(p);
    uint64_t full = o->budgets.budget[p->index].bytes + mask->removed * channel;
    if (p->codes)
        return planned_bytes(p);
    full += (uint64_t)o->config.M *
            (p->options.layout->numbers +
             fm_mlp_channel_params(o->config.H) * (uint64_t)(p->widths.shared - o->config.shared)) *
            (uint64_t)fm_dtype_bits(o->dtype) / 8;
    return full - (fm_masks_channels(&o->budgets.masks) - kept) * channel;
}

/* Compute the size of one member in a form, and of all files if the bundle has weights. */
static int fill_cell(struct fm_list_form *f, struct fm_exportplan *p, int index, bool packed,
                     struct fm_err *err)
{
    fm_exportplan_widths(p, index);
    f->as_measured = fm_planned_as_measured(p);
    int rc = packed ? fm_exportplan_member(p, index, err) : FM_OK;
    f->files = packed && !rc ? fm_planned_bytes(p) : 0;
    f->tensors = rc && p->codes ? 0 : tensor_bytes(p);
    if (rc == FM_ECONFIG) { /* this export is not possible: not an error of the list */
        *err = (struct fm_err){0};
        rc = FM_OK;
    }
    return rc;
}

/* Compute the size of every member in one form.  A load cap begins at the member of the row, so
 * with one each row has its own plan. */
static int fill_form(struct fm_list *list, const struct fm_opened *opened, int form,
                     struct fm_err *err)
{
    const struct fm_list_kind *kind = &list->kind[form];
    struct fm_export_options o = {.layout = kind->layout, .load_cap = kind->capped, .load_high = 1};
    struct fm_exportplan p = {0};
    int rc = FM_OK;
    for (int i = 0; i < list->rows && !rc; i++) {
        if (i == 0 || kind->capped) {
            o.load_low = opened->budgets.budget[i].budget;
            fm_planned_release(&p);
            rc = fm_exportplan_begin(&p, opened, &o, err);
        }
        if (!rc)
            rc = fill_cell(&list->row[i].form[form], &p, i, list->packed, err);
    }
    fm_planned_release(&p);
    return rc;
}

/* Compute the size of every member in a format. */
static int fill_format(struct fm_list *list, const struct fm_opened *o, int format,
                       struct fm_err *err)
{
    const struct fm_export_options options = {.layout = FM_LAYOUT_ROUNDED,
                                              .quantise = fm_quantisers[format]};
    struct fm_exportplan p = {0};
    int rc = fm_exportplan_begin(&p, o, &options, err);
    for (int i = 0; i < list->rows && !rc; i++) {
        struct fm_list_format *f = &list->row[i].format[format];
        fm_exportplan_widths(&p, i);
        f->width = p.widths.widest;
        if (f->width > 0)
            rc = fm_exportplan_same_layers(&p, i, &f->tensors, err);
    }
    fm_planned_release(&p);
    if (rc == FM_ECONFIG) { /* the model cannot have the format */
        *err = (struct fm_err){0};
        rc = FM_OK;
    }
    return rc;
}

static int fill_rows(struct fm_list *list, const struct fm_opened *o, bool forms,
                     struct fm_err *err)
{
    int n = o->budgets.masks.count, rc = FM_OK;
    list->row = fm_alloc((size_t)n, sizeof *list->row, "the list of budgets", err);
    if (!list->row)
        return err->code;
    list->rows = n;
    list->texts = o->budgets.masks.kinds;
    for (int i = 0; i < n; i++)
        fill_row(&list->row[i], &o->budgets, i);
    for (int form = 0; form < list->kinds && forms && !rc; form++)
        rc = fill_form(list, o, form, err);
    for (int i = 0; fm_quantisers[i] && forms && list->packed && !rc; i++)
        rc = fill_format(list, o, i, err);
    return rc;
}

/* Copy strings of the manifest, truncated to the size of the fields. */
static int fill_words(struct fm_list *list, const struct fm_bundle *bundle, struct fm_err *err)
{
    const char *stage, *family;
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(bundle->manifest, "model");
    int rc = fm_json_get_string(bundle->manifest, "stage", &stage, err);
    if (!rc)
        rc = fm_json_get_string(model, "family", &family, err);
    if (rc)
        return fm_within(err, "%s: %s", bundle->file.path, FM_MEMBER_MANIFEST);
    snprintf(list->stage, sizeof list->stage, "%s", stage);
    snprintf(list->family, sizeof list->family, "%s", family);
    return FM_OK;
}

static int fill_served(struct fm_list *list, const cJSON *served, struct fm_err *err)
{
    const cJSON *one;
    int64_t index;
    cJSON_ArrayForEach(one, served)
    {
        double weight = 0;
        if (list->serves == FM_LORAFILE_SERVED)
            return fm_fail(err, FM_EFORMAT, "'served' has more than %d masks", FM_LORAFILE_SERVED);
        if (fm_json_get_int(one, "budget_index", 0, list->rows - 1, &index, err) ||
            fm_json_opt_double(one, "weight", 0, 1e9, &weight, err))
            return err->code;
        list->served[list->serves].budget = list->row[index].budget;
        list->served[list->serves++].weight = weight;
    }
    return FM_OK;
}

static int fill_adapter(struct fm_list *list, const struct fm_bundle *bundle, struct fm_err *err)
{
    const cJSON *adapter = cJSON_GetObjectItemCaseSensitive(bundle->manifest, "adapter");
    int64_t index = -1;
    list->adapter_budget = -1;
    if (!adapter)
        return FM_OK;
    int rc = fm_json_has(adapter, "served") && !fm_json_has(adapter, "budget_index")
                 ? fill_served(list, cJSON_GetObjectItemCaseSensitive(adapter, "served"), err)
                 : fm_json_get_int(adapter, "budget_index", 0, list->rows - 1, &index, err);
    if (rc)
        return fm_within(err, "%s: %s: adapter", bundle->file.path, FM_MEMBER_MANIFEST);
    if (index >= 0)
        list->adapter_budget = list->row[index].budget;
    return FM_OK;
}

/* Set how the checkpoint stores its weights, and the bytes of its files. */
static int fill_storage(struct fm_list *list, const struct fm_bundle *bundle, struct fm_err *err)
{
    struct fm_config config;
    int rc = fm_stage_config_read(&config, bundle, err);
    if (rc)
        return rc;
    if (config.scheme.storage) {
        fm_storage_names(list->storage, &config.scheme, config.schemes);
        list->bytes_plain = fm_config_params(&config, NULL) *
                            (uint64_t)fm_dtype_bits(config.scheme.storage->written) / 8;
    }
    struct fm_err unknown = {0};
    if (fm_stage_shard_bytes(&list->bytes_stored, bundle, &unknown) && config.scheme.storage) {
        *err = unknown;
        rc = err->code;
    }
    fm_config_release(&config);
    return rc;
}

static void fill_model(struct fm_list *list, const struct fm_stage_model *model)
{
    list->layers = model->L;
    list->extra = model->extra;
    list->M = model->M;
    memcpy(list->moe, model->moe, sizeof list->moe);
    list->experts = model->E;
    list->experts_per_token = model->K;
    list->hidden = model->H;
    list->channels = model->I;
    list->vocabulary = model->V;
    list->params = model->params;
    snprintf(list->dtype, sizeof list->dtype, "%s", fm_dtype_name(model->dtype));
}

int fm_list_fill(struct fm_list *list, struct fm_opened *o, bool forms, struct fm_err *err)
{
    struct fm_stage_model model;
    *list = (struct fm_list){.adapter_budget = -1};
    list->kinds = fm_list_kinds(list->kind);
    if (fm_stage_config_check(&o->bundle, err) || fm_stage_model_read(&model, &o->bundle, err) ||
        fill_words(list, &o->bundle, err) || fill_storage(list, &o->bundle, err))
        return err->code;
    list->packed = fm_bundle_find(&o->bundle, FM_MEMBER_SEGMENTS);
    if (fm_bundle_find(&o->bundle, FM_MEMBER_MASKS)) {
        const cJSON *train = fm_stage_history_of(&o->bundle, "fm-train");
        const cJSON *options = cJSON_GetObjectItemCaseSensitive(train, "options");
        const char *text = fm_json_string_value(options, "granularity");
        for (int g = 0; text && g < FM_GRANULARITIES; g++)
            if (strcmp(text, fm_granularity_name((enum fm_granularity)g)) == 0)
                snprintf(list->granularity, sizeof list->granularity, "%s", text);
        if (fm_opened_read(o, list->packed && forms ? FM_OPENED_WEIGHTS : 0, err))
            return err->code;
        list->codes = list->packed && o->packed.storage;
        if (fill_rows(list, o, forms, err))
            return err->code;
    }
    if (fill_adapter(list, &o->bundle, err))
        return err->code;
    fill_model(list, &model);
    return FM_OK;
}

int fm_list_read(struct fm_list *list, const char *path, bool forms, struct fm_err *err)
{
    struct fm_opened o = {0};
    *list = (struct fm_list){.adapter_budget = -1};
    int rc = fm_stage_open(&o.bundle, path, NULL, err);
    if (!rc)
        rc = fm_list_fill(list, &o, forms, err);
    fm_opened_release(&o);
    return rc;
}

int fm_list_recommended(const struct fm_list *list)
{
    int last = -1;
    for (int i = 0; i < list->rows; i++) {
        const struct fm_list_row *r = &list->row[i];
        if (!r->known || r->interpolated)
            continue;
        if (!(r->agree >= FM_LIST_AGREEMENT))
            break;
        last = r->removed > 0 ? i : last;
    }
    return last;
}

void fm_list_release(struct fm_list *list)
{
    free(list->row);
    *list = (struct fm_list){0};
}

static void add_quality(cJSON *object, const struct fm_list_row *row, const struct fm_kinds *kinds)
{
    if (!row->known) {
        fm_json_add_null(object, "quality");
        return;
    }
    cJSON *quality = fm_json_add_object(object, "quality");
    fm_json_add_double(quality, "ce", row->ce);
    fm_json_add_double(quality, "kl", row->kl);
    fm_json_add_double(quality, "agree", row->agree);
    fm_json_add_bool(quality, "recovered", row->recovered);
    fm_json_add_bool(quality, "interpolated", row->interpolated);
    fm_budgets_add_kinds(quality, kinds, row->kind);
    if (row->worst >= 0) {
        fm_json_add_string(quality, "worst", kinds->name[row->worst]);
        fm_json_add_double(quality, "worst_lost", row->lost);
    }
}

static void add_forms(cJSON *object, const struct fm_list *list, const struct fm_list_row *row)
{
    cJSON *layouts = fm_json_add_object(object, "layouts");
    for (int i = 0; i < list->kinds; i++) {
        cJSON *form = fm_json_add_object(layouts, list->kind[i].name);
        fm_json_add_uint(form, "tensors", row->form[i].tensors);
        if (row->form[i].files > 0)
            fm_json_add_uint(form, "files", row->form[i].files);
        fm_json_add_bool(form, "as_measured", row->form[i].as_measured);
        if (list->codes)
            fm_json_add_bool(form, "codes", !list->kind[i].layout->cannot[FM_WITH_CODES]);
    }
}

void fm_list_add_member(cJSON *object, const struct fm_list_row *row, const char *inside)
{
    fm_json_add_uint(object, "index", (uint64_t)row->index);
    fm_json_add_double(object, "budget", row->budget);
    fm_json_add_uint(object, "removed", row->removed);
    fm_json_add_string(object, "method", row->method);
    cJSON *widths = inside ? fm_json_add_object(object, inside) : object;
    fm_json_add_uint(widths, "min", row->width_min);
    fm_json_add_double(widths, "mean", row->width_mean);
    fm_json_add_uint(widths, "max", row->width_max);
    fm_json_add_uint(object, "bytes", row->bytes);
    fm_json_add_uint(object, "params", row->params);
    fm_json_add_uint(object, "params_active", row->params_active);
}

/* Add the formats that the model can have. */
static void add_formats(cJSON *object, const struct fm_list_row *row)
{
    cJSON *formats = fm_json_add_object(object, "formats");
    for (int i = 0; fm_quantisers[i]; i++) {
        if (row->format[i].tensors == 0)
            continue;
        cJSON *one = fm_json_add_object(formats, fm_quantisers[i]->name);
        fm_json_add_uint(one, "tensors", row->format[i].tensors);
        fm_json_add_uint(one, "width", row->format[i].width);
    }
}

void fm_list_model(cJSON *model, const struct fm_list *list, bool moe_layers)
{
    fm_json_add_string(model, "family", list->family);
    fm_json_add_string(model, "dtype", list->dtype);
    fm_json_add_uint(model, "layers", (uint64_t)list->layers);
    cJSON *moe = moe_layers ? fm_json_add_array(model, "moe_layers") : NULL;
    for (int m = 0; moe && m < list->M; m++)
        fm_json_add_uint(moe, NULL, (uint64_t)list->moe[m]);
    fm_json_add_uint(model, "experts", (uint64_t)list->experts);
    fm_json_add_uint(model, "experts_per_token", (uint64_t)list->experts_per_token);
    fm_json_add_uint(model, "hidden", (uint64_t)list->hidden);
    fm_json_add_uint(model, "channels", (uint64_t)list->channels);
    fm_json_add_uint(model, "vocabulary", (uint64_t)list->vocabulary);
    fm_json_add_uint(model, "params", list->params);
}

void fm_list_json(cJSON *tree, const struct fm_list *list)
{
    fm_json_add_string(tree, "stage", list->stage);
    cJSON *model = fm_json_add_object(tree, "model");
    fm_list_model(model, list, list->M < list->layers);
    fm_extra_json(model, &list->extra);
    if (list->storage[0]) {
        fm_json_add_string(model, "storage", list->storage);
        fm_json_add_uint(model, "bytes_stored", list->bytes_stored);
        fm_json_add_uint(model, "bytes_plain", list->bytes_plain);
    }
    if (list->granularity[0])
        fm_json_add_string(tree, "granularity", list->granularity);
    if (list->adapter_budget >= 0)
        fm_json_add_double(tree, "adapter_budget", list->adapter_budget);
    cJSON *served = list->serves ? fm_json_add_array(tree, "served") : NULL;
    for (int i = 0; i < list->serves; i++) {
        cJSON *one = fm_json_add_object(served, NULL);
        fm_json_add_double(one, "budget", list->served[i].budget);
        fm_json_add_double(one, "weight", list->served[i].weight);
    }
    if (fm_list_recommended(list) >= 0)
        fm_json_add_uint(tree, "recommended", (uint64_t)fm_list_recommended(list));
    if (list->rows > 0)
        fm_json_add_string(tree, "reference", "original");
    cJSON *budgets = fm_json_add_array(tree, "budgets");
    for (int i = 0; i < list->rows; i++) {
        const struct fm_list_row *row = &list->row[i];
        cJSON *object = fm_json_add_object(budgets, NULL);
        fm_list_add_member(object, row, "widths");
        add_quality(object, row, &list->texts);
        add_forms(object, list, row);
        if (list->packed)
            add_formats(object, row);
    }
}
