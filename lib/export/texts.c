/* config.json and fm-export.json of an export. */
#include "lib/export/exporter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "formats/json/jsonedit.h"
#include "lib/base/mem.h"
#include "lib/stage/stage.h"

void fm_exporter_say_widths(struct fm_text *t, const struct fm_exporter *x, const uint32_t *widths,
                            const char *indent)
{
    fm_text_printf(t, "[");
    for (int l = 0; l < x->config.L; l++) {
        int experts = fm_config_moe(&x->config, l) < 0 ? 0 : x->config.E;
        fm_text_printf(t, "%s\n%s  [", l ? "," : "", indent);
        for (int e = 0; e < experts; e++)
            fm_text_printf(t, "%s%" PRIu32, e ? ", " : "", *widths++);
        fm_text_printf(t, "]");
    }
    fm_text_printf(t, "\n%s]", indent);
}

void fm_exporter_say_number(struct fm_text *t, double value)
{
    char text[32];
    int digits = 1;
    do
        snprintf(text, sizeof text, "%.*g", digits, value);
    while (strtod(text, NULL) != value && digits++ < 17);
    fm_text_printf(t, "%s", text);
}

void fm_exporter_say_cap(struct fm_text *t, const struct fm_export_options *o)
{
    fm_text_printf(t, "[");
    fm_exporter_say_number(t, o->load_low);
    fm_text_printf(t, ", ");
    fm_exporter_say_number(t, o->load_high);
    fm_text_printf(t, "]");
}

/* ---- config.json ---- */

/* The text of config.json, and the first failure. */
struct edit {
    char *text;
    size_t size;
    int rc;
    struct fm_err *err;
};

/* Set a key to a text that was just built; releases that. */
static void set(struct edit *e, const char *key, struct fm_text *value)
{
    if (e->rc == FM_OK && value->failed)
        e->rc = fm_fail(e->err, FM_ENOMEM, "no memory");
    if (e->rc == FM_OK)
        e->rc = fm_jsonedit_set(&e->text, &e->size, key, value->data, e->err);
    free(value->data);
    *value = (struct fm_text){0};
}

/* Architecture and classes of our modelling file, for a family whose class prefix is Stock. */
static void set_classes(struct edit *e, const struct fm_exporter *x)
{
    const char *stock = x->config.family->class_name;
    struct fm_text t = {0};
    fm_text_printf(&t, "[\n    \"Fm%sForCausalLM\"\n  ]", stock);
    set(e, "architectures", &t);
    fm_text_printf(&t, "\"fm_%s\"", x->config.family->name);
    set(e, "model_type", &t);
    fm_text_printf(&t,
                   "{\n    \"AutoConfig\": \"modeling_fm.Fm%sConfig\",\n"
                   "    \"AutoModel\": \"modeling_fm.Fm%sModel\",\n"
                   "    \"AutoModelForCausalLM\": \"modeling_fm.Fm%sForCausalLM\"\n  }",
                   stock, stock, stock);
    set(e, "auto_map", &t);
}

/* Every budget's widths, as this export rounds them. */
static void say_family(struct fm_text *t, const struct fm_exporter *x)
{
    size_t n = (size_t)x->config.M * (size_t)x->config.E;
    uint32_t *widths = malloc(n * sizeof *widths);
    t->failed = t->failed || !widths;
    fm_text_printf(t, "[");
    for (int b = x->first; b <= x->last && widths; b++) {
        const uint32_t *mask = fm_family_widths(&x->budgets.family, b);
        for (size_t i = 0; i < n; i++)
            widths[i] = fm_exporter_round(x, mask[i]);
        fm_text_printf(t, "%s\n    ", b > x->first ? "," : "");
        fm_exporter_say_widths(t, x, widths, "    ");
    }
    fm_text_printf(t, "\n  ]");
    free(widths);
}

static void set_elastic(struct edit *e, struct fm_exporter *x)
{
    struct fm_text t = {0};
    fm_text_printf(&t, "[");
    for (int b = x->first; b <= x->last; b++) {
        fm_text_printf(&t, "%s", b > x->first ? ", " : "");
        fm_exporter_say_number(&t, x->budgets.budget[b].budget);
    }
    fm_text_printf(&t, "]");
    set(e, "fm_budgets", &t);
    if (x->options->load_cap) {
        fm_exporter_say_cap(&t, x->options);
        set(e, "fm_load_cap", &t);
    }
    fm_exporter_say_number(&t, x->budgets.budget[x->index].budget);
    set(e, "fm_budget", &t);
    /* Last: setting a key reads all that is there, and this is long. */
    if (!x->family) {
        say_family(&t, x);
        x->family = t.failed ? NULL : t.data;
        if (t.failed)
            free(t.data);
        t = (struct fm_text){.failed = t.failed};
    }
    if (!t.failed)
        fm_text_add(&t, x->family, strlen(x->family));
    set(e, "fm_family", &t);
}

/* What vLLM reads for its fused layers: a width per decoder layer. */
static void set_fused(struct edit *e, const struct fm_exporter *x)
{
    struct fm_text t = {0};
    fm_text_printf(&t, "\"layer\"");
    set(e, "fm_layout", &t);
    fm_text_printf(&t, "[");
    for (int l = 0; l < x->config.L; l++) {
        int m = fm_config_moe(&x->config, l);
        size_t first = (size_t)(m < 0 ? 0 : m) * (size_t)x->config.E;
        fm_text_printf(&t, "%s%" PRIu32, l ? ", " : "", m < 0 ? 0 : x->widths[first]);
    }
    fm_text_printf(&t, "]");
    set(e, "moe_intermediate_size", &t);
}

/* Is the file of "module.Class" carried?  One with "--" in front is in another repository. */
static bool has_module(const struct fm_exporter *x, const char *class)
{
    char name[512];
    const char *dot = strchr(class, '.');
    int n = dot ? (int)(dot - class) : 0;
    n = snprintf(name, sizeof name, FM_MEMBER_CARRIED "%.*s.py", n, class);
    return strstr(class, "--") || (n < (int)sizeof name && fm_bundle_find(&x->bundle, name));
}

/* Are the files of all classes in auto_map, names and lists of names, carried? */
static bool has_modules(const struct fm_exporter *x, const cJSON *map)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, map)
    {
        if (cJSON_IsString(v) ? !has_module(x, v->valuestring) : !has_modules(x, v))
            return false;
    }
    return true;
}

/* Under stock names the architecture is the checkpoint's, by the name that servers know. */
static void set_architecture(struct edit *e, const struct fm_exporter *x, const cJSON *config)
{
    const struct fm_model_family *family = x->config.family;
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(config, "architectures");
    const char *have = cJSON_GetStringValue(cJSON_GetArrayItem(list, 0));
    struct fm_text saved = {0}, t = {0};
    fm_text_printf(&saved, "%sForCausalLM", family->class_name);
    if (family->served_as && have && !saved.failed && strcmp(have, saved.data) == 0) {
        fm_text_printf(&t, "[\n    \"%s\"\n  ]", family->served_as);
        set(e, "architectures", &t);
    }
    free(saved.data);
}

/* An auto_map whose files are not here would only be stumbled over. */
static void set_stock_classes(struct edit *e, const struct fm_exporter *x)
{
    cJSON *json = NULL;
    struct fm_text t = {0};
    e->rc = fm_json_tree(&json, x->config_text, x->config_bytes, e->err);
    if (!has_modules(x, cJSON_GetObjectItemCaseSensitive(json, "auto_map"))) {
        fm_text_printf(&t, "{}");
        set(e, "auto_map", &t);
    }
    set_architecture(e, x, json);
    cJSON_Delete(json);
}

static void set_stock(struct edit *e, const struct fm_exporter *x)
{
    struct fm_text t = {0};
    if (x->options->layout == FM_LAYOUT_NATIVE)
        return;
    set_stock_classes(e, x);
    if (x->options->layout != FM_LAYOUT_UNIFORM)
        return;
    fm_text_printf(&t, "%d", x->rows);
    set(e, x->config.family->width_key, &t);
}

static void set_ours(struct edit *e, struct fm_exporter *x)
{
    struct fm_text t = {0};
    set_classes(e, x);
    fm_exporter_say_widths(&t, x, x->widths, "  ");
    set(e, "fm_widths", &t);
    if (x->options->layout == FM_LAYOUT_ELASTIC)
        set_elastic(e, x);
    if (x->options->vllm)
        set_fused(e, x);
}

int fm_exporter_config(struct fm_exporter *x, struct fm_err *err)
{
    struct edit e = {.size = x->config_bytes, .err = err};
    e.text = fm_alloc(e.size + 1, 1, "config.json", err);
    if (!e.text)
        return err->code;
    memcpy(e.text, x->config_text, e.size);
    if (fm_exporter_models(x))
        set_ours(&e, x);
    else
        set_stock(&e, x);
    if (e.rc == FM_OK)
        return fm_exporter_add_file(x, "config.json", e.text, e.size, e.size, false, err);
    free(e.text);
    return fm_within(err, "config.json");
}
