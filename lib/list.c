#include "lib/list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "formats/json.h"
#include "lib/base/mem.h"
#include "lib/budgets.h"
#include "lib/stage.h"

static void fill_row(struct fm_list_row *row, const struct fm_budgets *b, int i)
{
    const struct fm_mask *m = &b->family.mask[i];
    const struct fm_budget *s = &b->budget[i];
    *row = (struct fm_list_row){.index = i,
                                .budget = s->budget,
                                .removed = m->removed,
                                .width_min = s->width_min,
                                .width_max = s->width_max,
                                .width_mean = s->width_mean,
                                .bytes = s->bytes,
                                .params = s->params,
                                .params_active = s->params_active,
                                .measured = m->quality.positions > 0,
                                .ce = m->quality.ce,
                                .kl = m->quality.kl,
                                .agree = m->quality.agree,
                                .recovered = m->quality.recovered};
    snprintf(row->method, sizeof row->method, "%s", fm_method_name(m->method));
}

static int fill_rows(struct fm_list *list, const struct fm_bundle *bundle, struct fm_err *err)
{
    struct fm_budgets b = {0};
    int rc = fm_budgets_open(&b, bundle, err);
    if (rc == FM_OK) {
        list->row = fm_alloc((size_t)b.family.count, sizeof *list->row, "the list of budgets", err);
        rc = list->row ? FM_OK : err->code;
    }
    if (rc == FM_OK) {
        list->rows = b.family.count;
        for (int i = 0; i < list->rows; i++)
            fill_row(&list->row[i], &b, i);
    }
    fm_budgets_release(&b);
    return rc;
}

/* Manifest facts that are words: cut to their room, the tables have their own words for these. */
static int fill_words(struct fm_list *list, const struct fm_bundle *bundle, struct fm_err *err)
{
    const char *stage, *family;
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(bundle->manifest, "model");
    int rc = fm_json_get_string(bundle->manifest, "stage", &stage, err);
    if (rc == FM_OK)
        rc = fm_json_get_string(model, "family", &family, err);
    if (rc != FM_OK)
        return fm_within(err, "%s: %s", bundle->file.path, FM_MEMBER_MANIFEST);
    snprintf(list->stage, sizeof list->stage, "%s", stage);
    snprintf(list->family, sizeof list->family, "%s", family);
    return FM_OK;
}

static int fill_adapter(struct fm_list *list, const struct fm_bundle *bundle, struct fm_err *err)
{
    const cJSON *adapter = cJSON_GetObjectItemCaseSensitive(bundle->manifest, "adapter");
    int64_t index = -1;
    list->adapter_budget = -1;
    if (!adapter)
        return FM_OK;
    int rc = fm_json_get_int(adapter, "budget_index", 0, list->rows - 1, &index, err);
    if (rc != FM_OK)
        return fm_within(err, "%s: %s: adapter", bundle->file.path, FM_MEMBER_MANIFEST);
    list->adapter_budget = list->row[index].budget;
    return FM_OK;
}

int fm_list_read(struct fm_list *list, const char *path, struct fm_err *err)
{
    *list = (struct fm_list){.adapter_budget = -1};
    struct fm_bundle bundle = {0};
    struct fm_stage_model model;
    int rc = fm_stage_open(&bundle, path, NULL, err);
    if (rc == FM_OK)
        rc = fm_stage_model_read(&model, &bundle, err);
    if (rc == FM_OK)
        rc = fill_words(list, &bundle, err);
    if (rc == FM_OK && fm_bundle_find(&bundle, FM_MEMBER_MASKS))
        rc = fill_rows(list, &bundle, err);
    if (rc == FM_OK)
        rc = fill_adapter(list, &bundle, err);
    if (rc == FM_OK) {
        list->layers = model.L;
        list->experts = model.E;
        list->experts_per_token = model.K;
        list->hidden = model.H;
        list->channels = model.I;
        list->vocabulary = model.V;
        list->params = model.params;
        snprintf(list->dtype, sizeof list->dtype, "%s", fm_dtype_name(model.dtype));
    }
    fm_bundle_close(&bundle);
    return rc;
}

void fm_list_release(struct fm_list *list)
{
    free(list->row);
    *list = (struct fm_list){0};
}

static void add_quality(cJSON *object, const struct fm_list_row *row)
{
    if (!row->measured) {
        cJSON_AddNullToObject(object, "quality");
        return;
    }
    cJSON *quality = cJSON_AddObjectToObject(object, "quality");
    fm_json_add_double(quality, "ce", row->ce);
    fm_json_add_double(quality, "kl", row->kl);
    fm_json_add_double(quality, "agree", row->agree);
    cJSON_AddBoolToObject(quality, "recovered", row->recovered);
}

static void add_row(cJSON *array, const struct fm_list_row *row)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToArray(array, object);
    fm_json_add_uint(object, "index", (uint64_t)row->index);
    fm_json_add_double(object, "budget", row->budget);
    fm_json_add_uint(object, "removed", row->removed);
    cJSON_AddStringToObject(object, "method", row->method);
    cJSON *widths = cJSON_AddObjectToObject(object, "widths");
    fm_json_add_uint(widths, "min", row->width_min);
    fm_json_add_double(widths, "mean", row->width_mean);
    fm_json_add_uint(widths, "max", row->width_max);
    fm_json_add_uint(object, "bytes", row->bytes);
    fm_json_add_uint(object, "params", row->params);
    fm_json_add_uint(object, "params_active", row->params_active);
    add_quality(object, row);
}

char *fm_list_json(const struct fm_list *list)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "stage", list->stage);
    cJSON *model = cJSON_AddObjectToObject(tree, "model");
    cJSON_AddStringToObject(model, "family", list->family);
    cJSON_AddStringToObject(model, "dtype", list->dtype);
    fm_json_add_uint(model, "layers", (uint64_t)list->layers);
    fm_json_add_uint(model, "experts", (uint64_t)list->experts);
    fm_json_add_uint(model, "experts_per_token", (uint64_t)list->experts_per_token);
    fm_json_add_uint(model, "hidden", (uint64_t)list->hidden);
    fm_json_add_uint(model, "channels", (uint64_t)list->channels);
    fm_json_add_uint(model, "vocabulary", (uint64_t)list->vocabulary);
    fm_json_add_uint(model, "params", list->params);
    if (list->adapter_budget >= 0)
        fm_json_add_double(tree, "adapter_budget", list->adapter_budget);
    cJSON *budgets = cJSON_AddArrayToObject(tree, "budgets");
    for (int i = 0; i < list->rows; i++)
        add_row(budgets, &list->row[i]);
    char *text = fm_json_print(tree);
    cJSON_Delete(tree);
    return text;
}
