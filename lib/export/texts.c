/*
 * The texts of an export except the model card: config.json, which is the checkpoint's with a few
 * keys set and all others as they were written; fm-export.json, from which fm-verify can plan the
 * export again; our modelling file; and the files that the bundle carries along.
 */
#include "lib/export/texts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "formats/runtime/modeling.h"
#include "formats/tensor/hftext.h"
#include "formats/tensor/hfwriter.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/export/card.h"
#include "lib/export/trust.h"

void fm_texts_widths(struct fm_text *t, const struct fm_exportplan *p, const uint32_t *widths,
                     const char *indent)
{
    fm_text_printf(t, "[");
    for (int l = 0; l < p->from->config.L; l++) {
        int experts = fm_config_moe(&p->from->config, l) < 0 ? 0 : p->from->config.E;
        fm_text_printf(t, "%s\n%s  [", l ? "," : "", indent);
        for (int e = 0; e < experts; e++)
            fm_text_printf(t, "%s%" PRIu32, e ? ", " : "", *widths++);
        fm_text_printf(t, "]");
    }
    fm_text_printf(t, "\n%s]", indent);
}

void fm_texts_number(struct fm_text *t, double value)
{
    char text[FM_JSON_DOUBLE];
    fm_json_double(text, value);
    fm_text_printf(t, "%s", text);
}

void fm_texts_cap(struct fm_text *t, const struct fm_export_options *o)
{
    fm_text_printf(t, "[");
    fm_texts_number(t, o->load_low);
    fm_text_printf(t, ", ");
    fm_texts_number(t, o->load_high);
    fm_text_printf(t, "]");
}

/* ---- config.json ---- */

/* Set a key to a text that e now owns, or, for NULL, remove the key. */
static void add_key(struct fm_texts_edit *e, const char *key, char *value)
{
    assert(e->keys < FM_TEXTS_KEYS_MAX);
    e->value[e->keys] = value;
    e->key[e->keys++] = (struct fm_jsonedit){key, value};
}

void fm_texts_set(struct fm_texts_edit *e, const char *key, struct fm_text *value)
{
    if (!e->rc && value->failed)
        e->rc = fm_fail(e->err, FM_ENOMEM, "no memory");
    if (!e->rc)
        add_key(e, key, value->data);
    else
        free(value->data);
    *value = (struct fm_text){0};
}

void fm_texts_setf(struct fm_texts_edit *e, const char *key, const char *fmt, ...)
{
    struct fm_text t = {0};
    char *value = NULL;
    va_list list;
    va_start(list, fmt);
    t.failed = vasprintf(&value, fmt, list) < 0;
    va_end(list);
    t.data = t.failed ? NULL : value;
    fm_texts_set(e, key, &t);
}

/* Set the architecture and the classes of our modelling file. */
static void set_classes(struct fm_texts_edit *e, const struct fm_exportplan *p)
{
    const char *stock = p->from->config.family->class_name;
    fm_texts_setf(e, "architectures", "[\n    \"Fm%sForCausalLM\"\n  ]", stock);
    fm_texts_setf(e, "model_type", "\"fm_%s\"", p->from->config.family->name);
    fm_texts_setf(e, "auto_map",
                  "{\n    \"AutoConfig\": \"modeling_fm.Fm%sConfig\",\n"
                  "    \"AutoModel\": \"modeling_fm.Fm%sModel\",\n"
                  "    \"AutoModelForCausalLM\": \"modeling_fm.Fm%sForCausalLM\"\n  }",
                  stock, stock, stock);
}

void fm_texts_ours(struct fm_texts_edit *e, struct fm_exportplan *p)
{
    struct fm_text t = {0};
    set_classes(e, p);
    fm_texts_widths(&t, p, p->widths.kept, "  ");
    fm_texts_set(e, "fm_widths", &t);
}

/* True if the file of "module.Class" is carried.  A name with "--" refers to another repository. */
static bool has_module(const struct fm_exportplan *p, const char *class)
{
    char name[512];
    const char *dot = strchr(class, '.');
    int n = dot ? (int)(dot - class) : 0;
    n = snprintf(name, sizeof name, FM_MEMBER_CARRIED "%.*s.py", n, class);
    return strstr(class, "--") || (n < (int)sizeof name && fm_bundle_find(&p->from->bundle, name));
}

/* True if the files of all classes in auto_map, whose values are names or lists of names, are
 * carried. */
static bool has_modules(const struct fm_exportplan *p, const cJSON *map)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, map)
    {
        if (cJSON_IsString(v) ? !has_module(p, v->valuestring) : !has_modules(p, v))
            return false;
    }
    return true;
}

/* Under stock names: set the architecture of the checkpoint to the name that servers use, where
 * transformers 5 saves class_name followed by ForCausalLM and servers do not accept that, and that
 * of a text part without one to its class. */
static void set_architecture(struct fm_texts_edit *e, const struct fm_exportplan *p)
{
    const struct fm_model_family *family = p->from->config.family;
    const char *served = family->served_as;
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(e->json, "architectures");
    const char *have = cJSON_GetStringValue(cJSON_GetArrayItem(list, 0));
    struct fm_text saved = {0};
    fm_text_printf(&saved, "%sForCausalLM", family->class_name);
    bool missing = !list && fm_json_has(e->json, FM_HFTEXT_WRAPPER);
    if (!saved.failed && (missing || (served && have && strcmp(have, saved.data) == 0)))
        fm_texts_setf(e, "architectures", "[\n    \"%s\"\n  ]", served ? served : saved.data);
    free(saved.data);
}

void fm_texts_stock(struct fm_texts_edit *e, struct fm_exportplan *p)
{
    if (p->options.allow_code &&
        !has_modules(p, cJSON_GetObjectItemCaseSensitive(e->json, "auto_map")))
        fm_texts_setf(e, "auto_map", "{}");
    set_architecture(e, p);
    if (p->from->config.family->width_twin)
        fm_texts_setf(e, p->from->config.family->width_twin, "%d", (int)p->widths.widest);
}

/* Remove the entries of extra layers from a list. */
static void cut_list(struct fm_texts_edit *e, const char *key, int L)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(e->json, key), *entry;
    struct fm_text t = {0};
    int l = 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) <= L)
        return;
    for (entry = list->child; l < L; entry = entry->next, l++) {
        char *text = cJSON_PrintUnformatted(entry);
        if (!text)
            e->rc = fm_fail(e->err, FM_ENOMEM, "no memory for config.json");
        fm_text_printf(&t, "%s%s", l > 0 ? ", " : "[", text ? text : "");
        cJSON_free(text);
    }
    fm_text_printf(&t, "]");
    fm_texts_set(e, key, &t);
}

/*
 * If layers for multi-token prediction are left out, set every key that counts them to 0.  If the
 * checkpoint had such layers but no such key, a loader may assume a number, so the usual key is
 * added.  Keys that describe other parts become null, because loaders build these parts.
 */
static void leave_extra(struct fm_texts_edit *e, const struct fm_exportplan *p)
{
    const struct fm_extra_form *form = p->from->config.family->extra;
    bool said = false;
    if (!form || p->options.keep_extra || e->rc)
        return;
    for (const char *const *key = form->count; key && *key && !e->rc; key++) {
        if (!cJSON_GetObjectItemCaseSensitive(e->json, *key))
            continue;
        fm_texts_setf(e, *key, "0");
        said = true;
    }
    for (const char *const *key = form->list; key && *key && !e->rc; key++)
        cut_list(e, *key, p->from->config.L);
    for (const char *const *key = form->object; key && *key && !e->rc; key++)
        if (cJSON_GetObjectItemCaseSensitive(e->json, *key))
            fm_texts_setf(e, *key, "null");
    if (form->flag && cJSON_GetObjectItemCaseSensitive(e->json, form->flag))
        fm_texts_setf(e, form->flag, "false");
    if (!said && form->count && p->from->extra.tensors > 0)
        fm_texts_setf(e, form->count[0], "0");
}

/* If the export of a quantised checkpoint has values, or codes that only our modelling file reads,
 * set the dtype to that of the written weights, and remove quantization_config unless set_rounded
 * replaces it. */
static void set_plain(struct fm_texts_edit *e, const struct fm_exportplan *p)
{
    if (!p->from->config.scheme.storage || p->coded == FM_CODED_ALL || e->rc)
        return;
    bool five = fm_json_has(e->json, "dtype"); /* of transformers 5; 4 has torch_dtype */
    if (five)
        fm_texts_setf(e, "dtype", "\"%s\"", fm_dtype_torch(p->from->dtype));
    if (!five || fm_json_has(e->json, "torch_dtype"))
        fm_texts_setf(e, "torch_dtype", "\"%s\"", fm_dtype_torch(p->from->dtype));
    if (!e->rc && p->coded != FM_CODED_ROUNDED)
        add_key(e, "quantization_config", NULL);
}

/* True if a server could take the tensor for a quantised matrix.  Then `length` is the length of
 * its module's name. */
static bool is_linear(int *length, const struct fm_planned_tensor *t)
{
    static const char end[] = ".weight", *const tables[] = {"embed_tokens", "wte"};
    size_t n = strlen(t->t.name), ends = sizeof end - 1;
    if (t->m >= 0 || t->t.dims != 2 || n <= ends || strcmp(t->t.name + n - ends, end) != 0)
        return false;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strstr(t->t.name, tables[i]))
            return false;
    *length = (int)(n - ends);
    return true;
}

/*
 * Set quantization_config for rounded experts: every other matrix is listed by the name of its
 * module, which all servers understand, including the head even if it has no tensor of its own.
 */
static void set_rounded(struct fm_texts_edit *e, const struct fm_exportplan *p)
{
    struct fm_text t = {0};
    const char *list;
    int n;
    if (p->coded != FM_CODED_ROUNDED || e->rc)
        return;
    fm_text_printf(&t, "{%s, ", fm_planned_format(p, &list));
    fm_text_printf(&t, "\"%s\": [\n    \"lm_head\"", list);
    for (size_t i = 0; i < p->tensors; i++)
        if (is_linear(&n, &p->tensor[i]) && strcmp(p->tensor[i].t.name, "lm_head.weight") != 0) {
            char module[FM_ST_NAME_BYTES_MAX + 1];
            snprintf(module, sizeof module, "%.*s", n, p->tensor[i].t.name);
            fm_text_printf(&t, ",\n    ");
            fm_text_quote(&t, module);
        }
    fm_text_printf(&t, "\n  ]}");
    fm_texts_set(e, "quantization_config", &t);
}

/*
 * Set fm_codes, which our modelling file and the tools read instead of quantization_config.  It
 * describes the codes and has a copy of quantization_config: the format's, or the checkpoint's from
 * `text`, which has only the keys that fm_trust_config kept.
 */
static void set_codes(struct fm_texts_edit *e, const struct fm_exportplan *p, const char *text,
                      size_t size)
{
    static const char *const codes[] = {
        [FM_CODE_E4M3] = "E4M3", [FM_CODE_E2M1] = "E2M1", [FM_CODE_INT4] = "INT4"};
    const struct fm_quantiser *q = p->options.quantise;
    const struct fm_config *c = q ? &p->rounded : &p->from->config;
    const struct fm_packed *packed = fm_packed_at(&p->packed, 0); /* all layers have it */
    cJSON *json = NULL;
    struct fm_text t = {0};
    const char *list;
    char *own = NULL;
    if (p->coded != FM_CODED_EXPERTS || e->rc)
        return;
    if (q && asprintf(&own, "{%s}", fm_planned_format(p, &list)) < 0)
        own = NULL;
    if (!q && !(e->rc = fm_json_tree(&json, text, size, e->err)))
        own = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(json, "quantization_config"));
    cJSON_Delete(json);
    t.failed = !own;
    fm_text_printf(&t, "{\n    \"code\": \"%s\", \"block\": [%d, %d], \"group\": %d, ",
                   codes[c->scheme.storage->code], c->scheme.block_rows, c->scheme.block_columns,
                   packed->group);
    fm_text_printf(&t, "\"scales\": \"%s\", \"factor\": \"%s\",\n    \"quantization_config\": ",
                   fm_dtype_name(packed->scales),
                   !c->scheme.storage->factor_end ? "none"
                   : c->scheme.storage->divides   ? "divides"
                                                  : "multiplies");
    fm_text_add(&t, own ? own : "", own ? strlen(own) : 0);
    fm_text_printf(&t, "\n  }");
    free(own);
    fm_texts_set(e, FM_CODES_KEY, &t);
}

/* Make config.json the configuration of the multimodal wrapper or of the text model only. */
static int wrap_config(char **text, size_t *size, const struct fm_exportplan *p, struct fm_err *err)
{
    const struct fm_jsonedit text_only = {FM_HFTEXT_WRAPPER, NULL};
    char *whole = NULL;
    /* The checkpoint is not multimodal. */
    if (!fm_hftext_wrapped(p->from->config_text, p->from->config_bytes))
        return FM_OK;
    /* fm_wrapper determines the tensor names. */
    if (!p->wrapped && p->from->config.family->wrapper_form)
        return FM_OK;
    if (!p->wrapped)
        return fm_jsonedit_set(text, size, &text_only, 1, err);
    int rc = fm_hftext_wrap(&whole, *text, *size, p->options.quantise, err);
    if (rc)
        return rc;
    free(*text);
    *text = whole;
    *size = strlen(whole);
    return FM_OK;
}

static int add_config(struct fm_exportplan *p, struct fm_err *err)
{
    struct fm_texts_edit e = {.err = err};
    size_t size = p->from->config_bytes;
    char *text = fm_alloc(size + 1, 1, "config.json", err);
    if (!text)
        return err->code;
    memcpy(text, p->from->config_text, size);
    e.rc = fm_json_tree(&e.json, text, size, err);
    if (!e.rc && p->options.layout->config)
        p->options.layout->config(&e, p);
    leave_extra(&e, p);
    set_plain(&e, p);
    set_rounded(&e, p);
    if (!e.rc)
        e.rc = fm_trust_config(p, &text, &size, e.key, e.keys, err);
    set_codes(&e, p, text, size);
    if (!e.rc)
        e.rc = fm_jsonedit_set(&text, &size, e.key, e.keys, err);
    for (int i = 0; i < e.keys; i++)
        free(e.value[i]);
    cJSON_Delete(e.json);
    if (!e.rc)
        e.rc = wrap_config(&text, &size, p, err);
    if (!e.rc)
        return fm_planned_add_file(p, "config.json", text, size, size, false, err);
    free(text);
    return fm_within(err, "config.json");
}

/* ---- fm-export.json ---- */

static void say_digest(struct fm_text *t, const struct fm_exportplan *p, const char *key,
                       const char *member, const char *end)
{
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &fm_bundle_find(&p->from->bundle, member)->digest);
    fm_text_printf(t, "  \"%s\": \"%s\"%s\n", key, hex, end);
}

static uint64_t shard_size(const struct fm_export_options *o)
{
    if (o->layout->cannot[FM_WITH_SHARDS])
        return 0;
    return o->shard_bytes ? o->shard_bytes : FM_EXPORT_SHARD_BYTES;
}

int fm_texts_files(struct fm_filetable *t, const struct fm_exportplan *p, struct fm_err *err)
{
    *t = (struct fm_filetable){
        .entry = fm_alloc(p->files + 1, sizeof *t->entry, "the table of files", err)};
    if (!t->entry)
        return err->code;
    for (size_t i = 0; i < p->files; i++) {
        struct fm_filetable_entry *e = &t->entry[t->entries];
        if (strcmp(p->file[i].name, FM_EXPORT_JSON) == 0)
            continue;
        snprintf(e->name, sizeof e->name, "%s", p->file[i].name);
        e->bytes = p->file[i].bytes;
        t->entries++;
    }
    fm_filetable_sort(t);
    return FM_OK;
}

/* Put the table of files, whose digests are computed last, into the text of fm-export.json. */
static int list_files(struct fm_text *t, const struct fm_exportplan *p, struct fm_err *err)
{
    struct fm_filetable table = {0};
    int rc = fm_texts_files(&table, p, err);
    if (!rc)
        rc = fm_filetable_write(&table, &t->data, &t->size, err);
    fm_filetable_release(&table);
    return rc;
}

/* Add "keep_config": ["a", "b"], if there are any. */
static void say_keys(struct fm_text *t, const char *const *key)
{
    if (!*key)
        return;
    fm_text_printf(t, "  \"keep_config\": [");
    for (const char *const *k = key; *k; k++)
        fm_text_printf(t, "%s\"%s\"", k > key ? ", " : "", *k);
    fm_text_printf(t, "],\n");
}

/* Add the last text, fm-export.json, which lists the other files. */
static int add_export_json(struct fm_exportplan *p, struct fm_err *err)
{
    const struct fm_mask *mask = &p->from->budgets.masks.mask[p->index];
    const struct fm_export_options *o = &p->options;
    struct fm_text t = {0};
    fm_text_printf(&t, "{\n  \"schema\": %d,\n  \"suite\": \"fm\",\n  \"layout\": \"%s\",\n",
                   FM_BUNDLE_SCHEMA, o->layout->name);
    fm_text_printf(&t, "  \"for\": \"%s\",\n  \"index\": %d,\n",
                   o->layout->runtime ? o->layout->runtime : fm_server_name(o->server), p->index);
    fm_text_printf(&t, "  \"removed\": %" PRIu64 ",\n  \"budget\": %.17g,\n", mask->removed,
                   p->from->budgets.budget[p->index].budget);
    if (o->base_model)
        fm_text_printf(&t, "  \"base_model\": \"%s\",\n", o->base_model);
    if (o->load_cap) {
        fm_text_printf(&t, "  \"load_cap\": ");
        fm_texts_cap(&t, o);
        fm_text_printf(&t, ",\n");
    }
    if (o->allow_code)
        fm_text_printf(&t, "  \"allow_code\": true,\n");
    if (o->quantise || p->from->packed.storage)
        fm_text_printf(&t, "  \"weights\": \"%s\",\n",
                       o->quantise ? o->quantise->name
                       : p->codes  ? "keep"
                                   : "bf16");
    say_keys(&t, o->keep_config);
    if (o->keep_extra)
        fm_text_printf(&t, "  \"keep_extra\": true,\n");
    fm_text_printf(&t, "  \"pad_multiple\": %" PRIu32 ",\n  \"shard_size\": %" PRIu64 ",\n",
                   o->pad_multiple ? o->pad_multiple : 1, shard_size(o));
    fm_text_printf(&t, "  \"widths\": ");
    fm_texts_widths(&t, p, p->widths.kept, "  ");
    fm_text_printf(&t, ",\n");
    say_digest(&t, p, "config", FM_MEMBER_CARRIED "config.json", ",");
    say_digest(&t, p, "ranking", FM_MEMBER_RANKING, "");
    fm_text_printf(&t, "}\n");
    int rc = t.failed ? FM_OK : list_files(&t, p, err);
    if (!rc)
        return fm_planned_add_text(p, FM_EXPORT_JSON, &t, err);
    free(t.data);
    return rc;
}

/* ---- all of them ---- */

/* True for names that an export writes itself, whatever the checkpoint carried. */
static bool is_own(const char *name)
{
    static const char *const own[] = {"config.json",      FM_EXPORT_JSON,    FM_EXPORT_CARD,
                                      FM_EXPORT_MODELING, FM_HFWRITER_INDEX, NULL};
    return fm_names_index(own, name) >= 0;
}

/* True for files that describe codes that the export does not have: ModelOpt's if the export has
 * values, codes that only our modelling file reads, or other names of modules; always GPTQ's,
 * because its codes are exported with the names and the config.json of compressed-tensors. */
static bool is_settings(const struct fm_exportplan *p, const char *name)
{
    if (!p->from->config.scheme.storage)
        return false;
    return strcmp(name, "quantize_config.json") == 0 ||
           (strcmp(name, "hf_quant_config.json") == 0 &&
            (p->coded != FM_CODED_ALL ||
             /* the text model of a multimodal checkpoint */
             (!p->wrapped && fm_hftext_wrapped(p->from->config_text, p->from->config_bytes))));
}

static int add_modeling(struct fm_exportplan *p, struct fm_err *err)
{
    struct fm_text t = {0};
    size_t size;
    const char *text = fm_modeling_text(&size);
    fm_text_add(&t, text, size);
    return fm_planned_add_text(p, FM_EXPORT_MODELING, &t, err);
}

int fm_texts_plan(struct fm_exportplan *p, struct fm_err *err)
{
    assert(p->files == p->weight_files); /* texts come after them */
    int rc = fm_trust_begin(p, err);
    if (!rc)
        rc = add_config(p, err);
    if (!rc && p->options.layout->modeling)
        rc = add_modeling(p, err);
    for (size_t i = 0; i < p->from->bundle.members && !rc; i++) {
        const struct fm_member *m = &p->from->bundle.member[i];
        const char *name = m->name + strlen(FM_MEMBER_CARRIED);
        if (strncmp(m->name, FM_MEMBER_CARRIED, strlen(FM_MEMBER_CARRIED)) == 0 && !is_own(name) &&
            !is_settings(p, name))
            rc = fm_trust_carried(p, m, err);
    }
    if (!rc)
        rc = fm_card_plan(p, err); /* after carried files, whose code it lists */
    return rc ? rc : add_export_json(p, err);
}
