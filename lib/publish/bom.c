/*
 * Most of a bill is a translation of the bundle's manifest: entries of its history become tasks,
 * and their values become properties, each named by the path of keys that leads to it.
 */
#include "lib/publish/bom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/file/text.h"
#include "formats/json/json.h"
#include "formats/sign/oms.h"
#include "formats/tensor/hfcache.h"
#include "lib/base/clock.h"
#include "lib/export/card.h"
#include "lib/export/opened.h"
#include "lib/export/plan.h"
#include "lib/export/record.h"
#include "lib/publish/files.h"
#include "lib/stage/stage.h"

#define JSON_BYTES_MAX ((size_t)64 << 20)
#define SERIAL "urn:uuid:00000000-0000-8000-8000-000000000000" /* UUID version 8: custom */

struct bom {
    const struct fm_bom_options *options;
    struct fm_bom_report *report;
    struct fm_opened from; /* the bundle */
    struct fm_files files;
    cJSON *export_json; /* for an export: its fm-export.json */
    int index;          /* for an export: index of its mask */
    char name[64];      /* name of the component */
    cJSON *tree;
};

/* ---- small parts ---- */

static void add_property(cJSON *to, const char *name, const char *value)
{
    cJSON *p = fm_json_add_object(to, NULL);
    fm_json_add_string(p, "name", name);
    fm_json_add_string(p, "value", value);
}

static void add_number(cJSON *to, const char *name, double value)
{
    char text[FM_JSON_DOUBLE];
    fm_json_double(text, value);
    add_property(to, name, text);
}

/* Add the number or string at `key` of an object of the manifest, if there is one. */
static void add_member_of(cJSON *to, const char *name, const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    if (cJSON_IsNumber(value))
        add_number(to, name, value->valuedouble);
    if (cJSON_IsString(value))
        add_property(to, name, value->valuestring);
}

/* Append a scalar value as text. */
static void print_plain(struct fm_text *t, const cJSON *value)
{
    char number[FM_JSON_DOUBLE];
    const char *text = cJSON_IsString(value) ? value->valuestring
                       : cJSON_IsTrue(value) ? "true"
                       : cJSON_IsNull(value) ? "null"
                                             : "false";
    if (cJSON_IsNumber(value))
        fm_json_double(number, value->valuedouble);
    text = cJSON_IsNumber(value) ? number : text;
    fm_text_add(t, text, strlen(text));
}

static bool holds_containers(const cJSON *value)
{
    const cJSON *c;
    cJSON_ArrayForEach(c, value)
    {
        if (c->child)
            return true;
    }
    return false;
}

/* Add the properties of `value`, each named by `path` and the keys that lead to it; a list of
 * scalars is one property.  FM_ENOMEM.  The JSON reader limits the depth. */
static int flatten(cJSON *to, const char *path, const cJSON *value, struct fm_err *err)
{
    const cJSON *c;
    char *name = NULL;
    int i = 0, rc = FM_OK;
    if (cJSON_IsObject(value) || holds_containers(value)) {
        cJSON_ArrayForEach(c, value)
        {
            int n = c->string ? asprintf(&name, "%s.%s", path, c->string)
                              : asprintf(&name, "%s.%d", path, i++);
            if (n < 0)
                return fm_fail(err, FM_ENOMEM, "no memory for a bill of materials");
            rc = flatten(to, name, c, err);
            free(name);
            if (rc)
                return rc;
        }
        return FM_OK;
    }
    struct fm_text text = {0};
    const cJSON *list = cJSON_IsArray(value) ? value : NULL;
    if (!list)
        print_plain(&text, value);
    cJSON_ArrayForEach(c, list)
    {
        fm_text_add(&text, ", ", i++ ? 2 : 0);
        print_plain(&text, c);
    }
    fm_text_add(&text, "", 0);
    if (text.failed)
        rc = fm_fail(err, FM_ENOMEM, "no memory for a bill of materials");
    else
        add_property(to, path, text.data);
    free(text.data);
    return rc;
}

/* Take the value of a line "key: value" or "- value"; false if the line does not start with
 * `begin`. */
static bool take_value(char *value, size_t size, const char *line, const char *begin)
{
    size_t n = strlen(begin);
    if (strncmp(line, begin, n) != 0)
        return false;
    snprintf(value, size, "%.*s", (int)strcspn(line + n, "\n"), line + n);
    return true;
}

/* Add the licenses of the parent's card, from lines of front matter (lib/export/opened.h).  The
 * identifiers are the hub's, and not all of them are SPDX's, so they are given as names. */
static void add_licenses(cJSON *component, const char *front_matter)
{
    cJSON *list = NULL, *license = NULL;
    char value[512];
    for (const char *line = front_matter; *line; line = fm_card_next(line)) {
        if (take_value(value, sizeof value, line, "license: ") ||
            take_value(value, sizeof value, line, "- ")) {
            list = list ? list : fm_json_add_array(component, "licenses");
            license = fm_json_add_object(fm_json_add_object(list, NULL), "license");
            fm_json_add_string(license, "name", value);
            fm_json_add_string(license, "acknowledgement", "declared");
        } else if (take_value(value, sizeof value, line, "license_link: ") && license &&
                   strncmp(value, "https://", 8) == 0) {
            fm_json_add_string(license, "url", value);
        }
    }
}

/* ---- origin ---- */

static void add_ancestor(const struct bom *b, cJSON *component)
{
    const struct fm_bom_report *r = b->report;
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(b->from.bundle.manifest, "model"), *shard;
    cJSON *pedigree = fm_json_add_object(component, "pedigree");
    cJSON *parent = fm_json_add_object(fm_json_add_array(pedigree, "ancestors"), NULL);
    char purl[512];
    fm_json_add_string(parent, "type", "machine-learning-model");
    fm_json_add_string(parent, "bom-ref", "parent");
    fm_json_add_string(parent, "name", r->parent);
    if (r->revision[0])
        fm_json_add_string(parent, "version", r->revision);
    add_licenses(parent, b->from.license);
    snprintf(purl, sizeof purl, "pkg:huggingface/%s%s%s", r->parent, r->revision[0] ? "@" : "",
             r->revision);
    if (strchr(r->parent, '/'))
        fm_json_add_string(parent, "purl", purl);
    cJSON *files = fm_json_add_array(parent, "components");
    cJSON_ArrayForEach(shard, cJSON_GetObjectItemCaseSensitive(model, "shards"))
    {
        cJSON *file = fm_json_add_object(files, NULL);
        fm_json_add_string(file, "type", "file");
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(shard, "name"));
        fm_json_add_string(file, "name", name ? name : "?");
        cJSON *properties = fm_json_add_array(file, "properties");
        add_member_of(properties, "fm:bytes", shard, "size");
        add_member_of(properties, "fm:header:xxh3-128", shard, "header");
    }
    cJSON *properties = fm_json_add_array(parent, "properties");
    add_member_of(properties, "fm:config.json:xxh3-128", model, "config");
    add_property(properties, "fm:family", fm_config_family(&b->from.config));
    add_member_of(properties, "fm:params", model, "params");
    fm_json_add_string(pedigree, "notes",
                       "Channels of routed experts were ranked and removed; the tasks of "
                       "formulation are the stages.");
}

static const cJSON *history(const struct bom *b)
{
    return cJSON_GetObjectItemCaseSensitive(b->from.bundle.manifest, "history");
}

/* Add the calibration or held-out data of an entry: {"digest", "sequences", "seq_len", ...}. */
static int add_dataset(cJSON *datasets, const char *tool, const char *key, const cJSON *data,
                       struct fm_err *err)
{
    char text[256];
    int64_t sequences = 0, length = 0;
    if (!cJSON_IsObject(data))
        return FM_OK;
    int rc = fm_json_opt_int(data, "sequences", 0, INT64_MAX, &sequences, err);
    if (!rc)
        rc = fm_json_opt_int(data, "seq_len", 0, INT64_MAX, &length, err);
    if (rc)
        return rc;
    cJSON *o = fm_json_add_object(datasets, NULL);
    fm_json_add_string(o, "type", "dataset");
    snprintf(text, sizeof text, "%s of %.32s",
             strcmp(key, "tokens") == 0 ? "calibration" : "held-out data", tool);
    fm_json_add_string(o, "name", text);
    snprintf(text, sizeof text, "%lld sequences of %lld tokens; digests are XXH3-128 of token ids",
             (long long)sequences, (long long)length);
    cJSON *properties = fm_json_add_array(fm_json_add_object(o, "contents"), "properties");
    fm_json_add_string(o, "description", text);
    return flatten(properties, "fm:data", data, err);
}

static int add_datasets(const struct bom *b, cJSON *parameters, struct fm_err *err)
{
    static const char *const keys[] = {"tokens", "held_out"};
    cJSON *datasets = fm_json_add_array(parameters, "datasets");
    const cJSON *entry;
    int rc = FM_OK;
    cJSON_ArrayForEach(entry, history(b))
    {
        const char *tool = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "tool"));
        for (size_t i = 0; i < 2 && !rc; i++)
            rc = add_dataset(datasets, tool ? tool : "?", keys[i],
                             cJSON_GetObjectItemCaseSensitive(entry, keys[i]), err);
    }
    return rc;
}

/* Add a task for each stage. */
static int add_formulation(const struct bom *b, struct fm_err *err)
{
    cJSON *formula = fm_json_add_object(fm_json_add_array(b->tree, "formulation"), NULL);
    cJSON *flow = fm_json_add_object(fm_json_add_array(formula, "workflows"), NULL);
    fm_json_add_string(flow, "bom-ref", "history");
    fm_json_add_string(flow, "uid", "history");
    fm_json_add_string(flow, "name", "stages of the family");
    fm_json_add_string(fm_json_add_array(flow, "taskTypes"), NULL, "build");
    cJSON *tasks = fm_json_add_array(flow, "tasks");
    const cJSON *entry;
    int stage = 0, rc = FM_OK;
    cJSON_ArrayForEach(entry, history(b))
    {
        const char *tool = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "tool"));
        const cJSON *options = cJSON_GetObjectItemCaseSensitive(entry, "options");
        const cJSON *result = cJSON_GetObjectItemCaseSensitive(entry, "result");
        char id[32];
        cJSON *task = fm_json_add_object(tasks, NULL);
        snprintf(id, sizeof id, "stage-%d", ++stage);
        fm_json_add_string(task, "bom-ref", id);
        fm_json_add_string(task, "uid", id);
        fm_json_add_string(task, "name", tool ? tool : "?");
        fm_json_add_string(fm_json_add_array(task, "taskTypes"), NULL, "build");
        cJSON *properties = fm_json_add_array(task, "properties");
        if (!rc && options)
            rc = flatten(properties, "fm:options", options, err);
        if (!rc && result)
            rc = flatten(properties, "fm:result", result, err);
    }
    return rc;
}

/* ---- what was measured ---- */

static void add_metric(cJSON *metrics, const char *type, double value, const char *slice)
{
    char text[FM_JSON_DOUBLE];
    cJSON *m = fm_json_add_object(metrics, NULL);
    fm_json_double(text, value);
    fm_json_add_string(m, "type", type);
    fm_json_add_string(m, "value", text);
    fm_json_add_string(m, "slice", slice);
}

static const char CE[] = "cross-entropy, nats per token",
                  KL[] = "KL divergence from the original, nats per token",
                  AGREE[] = "share of tokens whose most probable token is the original's";

/* Add the figures of mask i that fm-train or fm-recover measured. */
static void add_mask(const struct bom *b, cJSON *metrics, int i)
{
    const struct fm_masks *masks = &b->from.budgets.masks;
    const struct fm_quality *q = &masks->mask[i].quality;
    char slice[128];
    if (q->positions == 0)
        return;
    snprintf(slice, sizeof slice, "mask %d, budget %.4f, on %lld held-out positions%s", i,
             fm_masks_budget(masks, i), (long long)q->positions,
             q->recovered ? ", with the adapter" : "");
    add_metric(metrics, CE, q->ce, slice);
    add_metric(metrics, KL, q->kl, slice);
    add_metric(metrics, AGREE, q->agree, slice);
}

/* Add the figures {"ce", "kl", "agree"} that fm-bench measured on these files. */
static void add_measured(cJSON *metrics, const cJSON *measured, const char *slice)
{
    static const struct {
        const char *key, *type;
    } figure[] = {{"ce", CE}, {"kl", KL}, {"agree", AGREE}};
    for (size_t i = 0; i < sizeof figure / sizeof *figure; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(measured, figure[i].key);
        if (cJSON_IsNumber(value))
            add_metric(metrics, figure[i].type, value->valuedouble, slice);
    }
}

static void add_metrics(const struct bom *b, cJSON *card)
{
    const struct fm_masks *masks = &b->from.budgets.masks;
    const cJSON *measured = cJSON_GetObjectItemCaseSensitive(b->export_json, FM_EXPORT_MEASURED);
    const cJSON *digest = cJSON_GetObjectItemCaseSensitive(measured, "digest"), *member;
    cJSON *metrics =
        fm_json_add_array(fm_json_add_object(card, "quantitativeAnalysis"), "performanceMetrics");
    double original;
    char slice[160];
    if (fm_stage_original_ce(&original, &b->from.bundle, masks->mask))
        add_metric(metrics, CE, original, "the original, on the held-out positions of the family");
    /* An export may have other widths or values than its mask was measured with. */
    for (int i = 0; !b->export_json && i < masks->count; i++)
        add_mask(b, metrics, i);
    if (!measured)
        return;
    const char *hex = cJSON_IsString(digest) ? digest->valuestring : "unknown";
    snprintf(slice, sizeof slice, "these files, on held-out tokens with XXH3-128 %.32s", hex);
    add_measured(metrics, measured, slice);
    cJSON_ArrayForEach(member, cJSON_GetObjectItemCaseSensitive(measured, "members"))
    {
        const cJSON *budget = cJSON_GetObjectItemCaseSensitive(member, "budget");
        snprintf(slice, sizeof slice, "these files at budget %.4f, on the same tokens",
                 cJSON_IsNumber(budget) ? budget->valuedouble : -1);
        add_measured(metrics, member, slice);
    }
}

/* ---- the complete bill ---- */

static int add_card(const struct bom *b, cJSON *component, struct fm_err *err)
{
    cJSON *card = fm_json_add_object(component, "modelCard"), *config = NULL;
    cJSON *parameters = fm_json_add_object(card, "modelParameters");
    fm_json_add_string(parameters, "task", "text-generation");
    fm_json_add_string(parameters, "architectureFamily", "mixture-of-experts");
    int rc = fm_json_tree(&config, b->from.config_text, b->from.config_bytes, err);
    const cJSON *names = cJSON_GetObjectItemCaseSensitive(config, "architectures");
    if (names && cJSON_IsString(names->child))
        fm_json_add_string(parameters, "modelArchitecture", names->child->valuestring);
    if (!rc)
        rc = add_datasets(b, parameters, err);
    fm_json_add_string(fm_json_add_object(fm_json_add_array(parameters, "inputs"), NULL), "format",
                       "text");
    fm_json_add_string(fm_json_add_object(fm_json_add_array(parameters, "outputs"), NULL), "format",
                       "text");
    add_metrics(b, card);
    cJSON_Delete(config);
    return rc;
}

static int add_component(const struct bom *b, struct fm_err *err)
{
    cJSON *metadata = fm_json_add_object(b->tree, "metadata");
    cJSON *tools = fm_json_add_array(fm_json_add_object(metadata, "tools"), "components");
    cJSON *tool = fm_json_add_object(tools, NULL);
    fm_json_add_string(tool, "type", "application");
    fm_json_add_string(tool, "name", "fm-pack");
    fm_json_add_string(tool, "version", FM_VERSION);
    cJSON *component = fm_json_add_object(metadata, "component");
    fm_json_add_string(component, "type", "machine-learning-model");
    fm_json_add_string(component, "bom-ref", "model");
    fm_json_add_string(component, "name", b->name);
    add_licenses(component, b->from.license);
    add_ancestor(b, component);
    int rc = add_card(b, component, err);
    cJSON *properties = fm_json_add_array(component, "properties");
    if (!b->export_json) {
        add_number(properties, "fm:budgets", b->from.budgets.masks.count);
        return rc;
    }
    static const char *const keys[] = {"layout", "for", "index", "removed", "budget", "weights"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !rc; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(b->export_json, keys[i]);
        char name[32];
        snprintf(name, sizeof name, "fm:%s", keys[i]);
        if (value)
            rc = flatten(properties, name, value, err);
    }
    return rc;
}

static void add_files(const struct bom *b)
{
    cJSON *list = fm_json_add_array(b->tree, "components");
    for (size_t i = 0; i < b->files.entries; i++) {
        const struct fm_files_entry *e = &b->files.entry[i];
        char hex[FM_SHA256_HEX];
        cJSON *file = fm_json_add_object(list, NULL);
        fm_sha256_hex(hex, &e->digest);
        fm_json_add_string(file, "type", "file");
        bool single = strcmp(e->name, FM_OMS_FILE) == 0;
        fm_json_add_string(file, "name",
                           b->files.directory ? e->name
                                              : basename(single ? b->files.path : e->name));
        cJSON *hash = fm_json_add_object(fm_json_add_array(file, "hashes"), NULL);
        fm_json_add_string(hash, "alg", "SHA-256");
        fm_json_add_string(hash, "content", hex);
        add_number(fm_json_add_array(file, "properties"), "fm:bytes", (double)e->bytes);
    }
}

/* The serial number is a UUID made from the SHA-256 of the text with zeros in its place. */
static int number(cJSON *serial, const char *text, struct fm_err *err)
{
    struct fm_sha256 digest;
    char hex[FM_SHA256_HEX];
    struct fm_sha256_hasher *h = fm_sha256_new(err);
    if (!h)
        return err->code;
    fm_sha256_add(h, text, strlen(text));
    int rc = fm_sha256_done(&digest, h, err);
    fm_sha256_free(h);
    if (rc)
        return rc;
    fm_sha256_hex(hex, &digest);
    snprintf(serial->valuestring, sizeof SERIAL, "urn:uuid:%.8s-%.4s-8%.3s-8%.3s-%.12s", hex,
             hex + 8, hex + 12, hex + 15, hex + 18);
    return FM_OK;
}

static int print(char **text, struct bom *b, struct fm_err *err)
{
    b->tree = cJSON_CreateObject();
    fm_json_add_string(b->tree, "$schema", "http://cyclonedx.org/schema/bom-1.6.schema.json");
    fm_json_add_string(b->tree, "bomFormat", "CycloneDX");
    fm_json_add_string(b->tree, "specVersion", "1.6");
    fm_json_add_string(b->tree, "serialNumber", SERIAL);
    fm_json_add_uint(b->tree, "version", 1);
    int rc = add_component(b, err);
    add_files(b);
    if (!rc)
        rc = add_formulation(b, err);
    char *first = !rc ? fm_json_print(b->tree) : NULL;
    if (first)
        rc = number(cJSON_GetObjectItemCaseSensitive(b->tree, "serialNumber"), first, err);
    *text = first && !rc ? fm_json_print(b->tree) : NULL;
    free(first);
    if (!rc && !*text)
        rc = fm_fail(err, FM_ENOMEM, "no memory for a bill of materials");
    return rc;
}

/* ---- the bundle, the export, the parent ---- */

/* Check that the export was made from this bundle: the same configuration and ranking, and a mask
 * that the bundle has. */
static int check_export(struct bom *b, struct fm_err *err)
{
    static const char *const keys[] = {"config", "ranking"};
    static const char *const members[] = {FM_MEMBER_CARRIED "config.json", FM_MEMBER_RANKING};
    const struct fm_masks *masks = &b->from.budgets.masks;
    const char *layout = NULL;
    int64_t index = 0, removed = 0;
    for (size_t i = 0; i < 2; i++) {
        const struct fm_member *m = fm_bundle_find(&b->from.bundle, members[i]);
        const char *hex = NULL;
        struct fm_digest digest;
        if (fm_json_get_string(b->export_json, keys[i], &hex, err))
            return err->code;
        if (!m || !fm_digest_parse(&digest, hex, strlen(hex)) ||
            !fm_digest_equal(&digest, &m->digest))
            return fm_fail(err, FM_ECONFIG,
                           "'%s' does not match %s; --from must name the bundle that was exported",
                           keys[i], b->options->bundle);
    }
    if (fm_json_get_int(b->export_json, "index", 0, masks->count - 1, &index, err) ||
        fm_json_get_int(b->export_json, "removed", 0, INT64_MAX, &removed, err) ||
        fm_json_get_string(b->export_json, "layout", &layout, err))
        return err->code;
    if ((uint64_t)removed != masks->mask[index].removed)
        return fm_fail(err, FM_ECONFIG,
                       "'removed' is %lld, but mask %lld of %s removes %llu; --from must name the "
                       "bundle that was exported",
                       (long long)removed, (long long)index, b->options->bundle,
                       (unsigned long long)masks->mask[index].removed);
    b->index = (int)index;
    snprintf(b->name, sizeof b->name, "fm-%.16s-%.4f", layout, fm_masks_budget(masks, b->index));
    return FM_OK;
}

static int open_export(struct bom *b, struct fm_err *err)
{
    const char *target = b->options->target;
    char *text = NULL;
    size_t size;
    int rc = fm_file_slurp_in(target, FM_EXPORT_JSON, JSON_BYTES_MAX, &text, &size, err);
    if (rc)
        return fm_within(err, "it is not an export of fm-pack");
    rc = fm_json_tree(&b->export_json, text, size, err);
    if (!rc)
        rc = check_export(b, err);
    free(text);
    return rc ? fm_within(err, "%s/%s", target, FM_EXPORT_JSON) : rc;
}

/* Find the parent's name and revision; if `model` is given, check that the bundle was made from
 * it. */
static int find_parent(struct bom *b, const char *model, struct fm_err *err)
{
    struct fm_bom_report *r = b->report;
    const cJSON *said = cJSON_GetObjectItemCaseSensitive(b->export_json, "base_model");
    const char *name = b->options->base_model       ? b->options->base_model
                       : cJSON_GetStringValue(said) ? cJSON_GetStringValue(said)
                       : b->from.name[0]            ? b->from.name
                                                    : "unknown";
    snprintf(r->parent, sizeof r->parent, "%s", name);
    if (!model)
        return FM_OK;
    struct fm_hfdir dir;
    int rc = fm_hfdir_open(&dir, model, err);
    if (rc)
        return rc;
    rc = fm_stage_model_check(&b->from.bundle, &dir, err);
    fm_hfdir_close(&dir);
    if (!rc)
        fm_hfcache_origin(r->parent, sizeof r->parent, r->revision, sizeof r->revision, model);
    return rc;
}

static int open_all(struct bom *b, const struct fm_run_options *run, struct fm_err *err)
{
    static const char *const without[] = {FM_EXPORT_BOM, FM_OMS_NAME, NULL};
    const struct fm_bom_options *o = b->options;
    struct stat st;
    if (stat(o->target, &st) != 0)
        return fm_fail_errno(err, "cannot examine '%s'", o->target);
    bool directory = S_ISDIR(st.st_mode);
    if (directory != (o->bundle != NULL))
        return fm_fail(err, FM_EUSAGE,
                       directory ? "'%s' is a directory; --from BUNDLE says which bundle it was "
                                   "exported from"
                                 : "--from is for an exported directory; '%s' is a file",
                       o->target);
    if (o->base_model && !fm_hfcache_is_name(o->base_model))
        return fm_fail(err, FM_EUSAGE, "--base-model '%.200s' is not of the form ORG/NAME",
                       o->base_model);
    snprintf(b->name, sizeof b->name, "fm-family");
    if (fm_opened_open(&b->from, directory ? o->bundle : o->target, FM_OPENED_CHECKSUMS, err) ||
        (directory && open_export(b, err)) || find_parent(b, run->inputs.model, err))
        return err->code;
    return fm_files_list(&b->files, o->target,
                         &(struct fm_files_rule){.without = without, .parts = true}, err);
}

int fm_bom_write(const struct fm_run_options *run, const struct fm_bom_options *options,
                 struct fm_bom_report *r, struct fm_err *err)
{
    double start = fm_clock_now();
    struct bom b = {.options = options, .report = r};
    char *text = NULL;
    *r = (struct fm_bom_report){0};
    int rc = open_all(&b, run, err);
    if (!rc && asprintf(&r->path, b.files.directory ? "%s/" FM_EXPORT_BOM : "%s." FM_EXPORT_BOM,
                        options->target) < 0)
        rc = fm_fail(err, FM_ENOMEM, "no memory for the name of a file");
    if (rc || fm_output_check(r->path, run->outputs.force, err) ||
        fm_files_hash(&b.files, run, err) || print(&text, &b, err) ||
        fm_output_text(r->path, text, run->outputs.force, err))
        rc = err->code;
    if (!rc && b.files.directory && fm_file_is_in(options->target, FM_OMS_NAME))
        fm_run_note(run, "the signature no longer matches; sign again: %s/" FM_OMS_NAME,
                    options->target);
    r->files = b.files.entries;
    r->bytes = fm_files_bytes(&b.files);
    r->seconds = fm_clock_now() - start;
    fm_files_release(&b.files);
    fm_opened_release(&b.from);
    cJSON_Delete(b.export_json);
    cJSON_Delete(b.tree);
    free(text);
    return rc;
}
