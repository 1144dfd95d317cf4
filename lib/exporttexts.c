/* What an export says of itself: config.json, fm-export.json, the model card; and what it carries
 * along. */
#include "lib/exporter.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hfwriter.h"
#include "formats/json.h"
#include "formats/jsonedit.h"
#include "formats/modeling.h"
#include "lib/base/mem.h"
#include "lib/family.h"

bool fm_exporter_owns(const char *name)
{
    static const char *const own[] = {"config.json", FM_EXPORT_JSON, FM_EXPORT_CARD,
                                      FM_EXPORT_MODELING, FM_HFWRITER_INDEX};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    return false;
}

/* A text that grows; a failure sticks. */
struct text {
    char *at;
    size_t size;
    bool failed;
};

static void say(struct text *t, const char *fmt, ...) FM_PRINTF(2, 3);
static void say(struct text *t, const char *fmt, ...)
{
    char *piece = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&piece, fmt, ap);
    va_end(ap);
    char *grown = n < 0 || t->failed ? NULL : realloc(t->at, t->size + (size_t)n + 1);
    t->failed = !grown;
    if (grown) {
        memcpy(grown + t->size, piece, (size_t)n + 1);
        t->at = grown;
        t->size += (size_t)n;
    }
    if (n >= 0)
        free(piece);
}

static int add_text(struct fm_exporter *x, const char *name, struct text *t, struct fm_err *err)
{
    if (!t->failed)
        return fm_exporter_add_file(x, name, t->at, t->size, t->size, false, err);
    free(t->at);
    return fm_fail(err, FM_ENOMEM, "no memory for %s", name);
}

/* [[26, 103], [37, 26]], a layer per line. */
static void say_widths(struct text *t, const struct fm_exporter *x, const char *indent)
{
    const uint32_t *k = x->widths;
    say(t, "[");
    for (int l = 0; l < x->config.L; l++) {
        say(t, "%s\n%s  [", l ? "," : "", indent);
        for (int e = 0; e < x->config.E; e++)
            say(t, "%s%" PRIu32, e ? ", " : "", *k++);
        say(t, "]");
    }
    say(t, "\n%s]", indent);
}

/* ---- config.json ---- */

/* Architecture and classes of our modelling file, for a family whose class prefix is Stock. */
static int edit_classes(const struct fm_exporter *x, char **text, size_t *size, struct fm_err *err)
{
    const char *stock = x->config.family->class_name;
    struct text type = {0}, architectures = {0}, map = {0};
    say(&type, "\"fm_%s\"", x->config.family->name);
    say(&architectures, "[\n    \"Fm%sForCausalLM\"\n  ]", stock);
    say(&map,
        "{\n    \"AutoConfig\": \"modeling_fm.Fm%sConfig\",\n"
        "    \"AutoModel\": \"modeling_fm.Fm%sModel\",\n"
        "    \"AutoModelForCausalLM\": \"modeling_fm.Fm%sForCausalLM\"\n  }",
        stock, stock, stock);
    int rc = type.failed || architectures.failed || map.failed
                 ? fm_fail(err, FM_ENOMEM, "no memory for config.json")
                 : fm_jsonedit_set(text, size, "architectures", architectures.at, err);
    if (rc == FM_OK)
        rc = fm_jsonedit_set(text, size, "model_type", type.at, err);
    if (rc == FM_OK)
        rc = fm_jsonedit_set(text, size, "auto_map", map.at, err);
    free(type.at);
    free(architectures.at);
    free(map.at);
    return rc;
}

static int edit_ragged(struct fm_exporter *x, char **text, size_t *size, struct fm_err *err)
{
    struct text widths = {0};
    say_widths(&widths, x, "  ");
    int rc = widths.failed ? fm_fail(err, FM_ENOMEM, "no memory for config.json")
                           : edit_classes(x, text, size, err);
    if (rc == FM_OK)
        rc = fm_jsonedit_set(text, size, "fm_widths", widths.at, err);
    free(widths.at);
    return rc;
}

static int add_config(struct fm_exporter *x, struct fm_err *err)
{
    size_t size = x->config_bytes;
    char *text = fm_alloc(size + 1, 1, "config.json", err);
    int rc = text ? FM_OK : err->code;
    if (rc != FM_OK)
        return rc;
    memcpy(text, x->config_text, size);
    if (x->options->layout == FM_LAYOUT_RAGGED)
        rc = edit_ragged(x, &text, &size, err);
    if (x->options->layout == FM_LAYOUT_UNIFORM) {
        char width[16];
        snprintf(width, sizeof width, "%d", x->rows);
        rc = fm_jsonedit_set(&text, &size, x->config.family->width_key, width, err);
    }
    if (rc == FM_OK)
        return fm_exporter_add_file(x, "config.json", text, size, size, false, err);
    free(text);
    return fm_within(err, "config.json");
}

/* ---- fm-export.json ---- */

static void say_digest(struct text *t, const struct fm_exporter *x, const char *key,
                       const char *member, const char *end)
{
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &fm_bundle_find(&x->bundle, member)->digest);
    say(t, "  \"%s\": \"%s\"%s\n", key, hex, end);
}

static int add_export_json(struct fm_exporter *x, struct fm_err *err)
{
    const struct fm_mask *mask = &x->budgets.family.mask[x->index];
    struct text t = {0};
    say(&t, "{\n  \"schema\": 1,\n  \"suite\": \"fm\",\n  \"layout\": \"%s\",\n  \"index\": %d,\n",
        fm_layout_name(x->options->layout), x->index);
    say(&t, "  \"removed\": %" PRIu64 ",\n  \"budget\": %.17g,\n  \"widths\": ", mask->removed,
        x->budgets.budget[x->index].budget);
    say_widths(&t, x, "  ");
    say(&t, ",\n");
    say_digest(&t, x, "config", FM_MEMBER_CARRIED "config.json", ",");
    say_digest(&t, x, "ranking", FM_MEMBER_RANKING, "");
    say(&t, "}\n");
    return add_text(x, FM_EXPORT_JSON, &t, err);
}

/* ---- README.md ---- */

/* The value of a key in the front matter of the checkpoint's own model card; false: none, or
 * nothing that we would repeat. */
static bool front_matter(const char *card, const char *key, char *value, size_t capacity)
{
    size_t len = strlen(key);
    if (strncmp(card, "---\n", 4) != 0)
        return false;
    for (const char *line = card + 4; *line && strncmp(line, "---", 3) != 0;) {
        const char *end = line + strcspn(line, "\n");
        if (strncmp(line, key, len) == 0 && line[len] == ':') {
            line += len + 1 + strspn(line + len + 1, " ");
            size_t n = strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                    "._-/:");
            if (n == 0 || n >= capacity || line + n != end)
                return false;
            memcpy(value, line, n);
            value[n] = '\0';
            return true;
        }
        line = *end ? end + 1 : end;
    }
    return false;
}

/* org/name as the hub spells it, not a path. */
static bool is_hub_name(const char *name)
{
    const char *slash = strchr(name, '/');
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/");
    return slash && slash > name && slash[1] && !strchr(slash + 1, '/') && name[n] == '\0' &&
           name[0] != '.';
}

static int say_front_matter(struct text *t, const struct fm_exporter *x, struct fm_err *err)
{
    const struct fm_member *m = fm_bundle_find(&x->bundle, FM_MEMBER_CARRIED FM_EXPORT_CARD);
    char license[128];
    void *card = NULL;
    size_t size;
    cJSON *config = NULL;
    int rc = fm_json_tree(&config, x->config_text, x->config_bytes, err);
    if (rc == FM_OK && m)
        rc = fm_bundle_read(&x->bundle, m, &card, &size, err);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(config, "_name_or_path");
    say(t, "---\n");
    if (card && front_matter(card, "license", license, sizeof license))
        say(t, "license: %s\n", license);
    if (cJSON_IsString(name) && is_hub_name(name->valuestring))
        say(t, "base_model: %s\n", name->valuestring);
    say(t, "library_name: %s\npipeline_tag: text-generation\n",
        x->options->layout == FM_LAYOUT_NATIVE ? "fm" : "transformers");
    say(t, "tags:\n- moe\n- pruned\n- expert-pruning\n- safetensors\n---\n");
    cJSON_Delete(config);
    free(card);
    return rc;
}

static const char *describe(enum fm_layout layout)
{
    switch (layout) {
    case FM_LAYOUT_NATIVE:
        return "Layout native: prefix ranges of the ranked weights, for the fm tools.";
    case FM_LAYOUT_RAGGED:
        return "Layout ragged: every expert has a width of its own (`fm_widths` in config.json).\n"
               "Needs transformers 5 or newer; load with `trust_remote_code=True` "
               "(modeling_fm.py).";
    case FM_LAYOUT_PADDED:
        return "Layout padded: stock names and shapes; channels that were removed are zeros, so "
               "the\n"
               "function is that of the smaller model and the size that of the full one.";
    case FM_LAYOUT_UNIFORM:
        return "Layout uniform: stock names, every expert equally wide; any program that runs the\n"
               "original architecture loads it.";
    }
    return "";
}

static void say_numbers(struct text *t, const struct fm_exporter *x)
{
    const struct fm_quality *q = &x->budgets.family.mask[x->index].quality;
    uint32_t low = x->widths[0], high = x->widths[0];
    double sum = 0;
    int n = x->config.L * x->config.E;
    for (int i = 0; i < n; i++) {
        low = x->widths[i] < low ? x->widths[i] : low;
        high = x->widths[i] > high ? x->widths[i] : high;
        sum += x->widths[i];
    }
    say(t, "| | |\n|---|---|\n");
    say(t, "| expert channels removed | %.4f of all |\n", x->budgets.budget[x->index].budget);
    say(t, "| width of an expert, least / mean / most | %" PRIu32 " / %.1f / %" PRIu32 " of %d |\n",
        low, sum / n, high, x->config.I);
    say(t, "| parameters, active per token | %" PRIu64 ", %" PRIu64 " |\n",
        fm_config_params(&x->config, x->widths), fm_config_params_active(&x->config, x->widths));
    say(t, "| bytes of the weight files | %" PRIu64 " |\n", fm_exporter_weight_bytes(x));
    if (q->positions > 0 && x->options->layout != FM_LAYOUT_UNIFORM)
        say(t,
            "| held-out cross-entropy | %.4f |\n| divergence from the full model | %.4f |\n"
            "| same most probable token | %.4f |\n",
            q->ce, q->kl, q->agree);
}

static int add_card(struct fm_exporter *x, struct fm_err *err)
{
    struct text t = {0};
    double budget = x->budgets.budget[x->index].budget;
    const char *layout = fm_layout_name(x->options->layout);
    int rc = say_front_matter(&t, x, err);
    if (rc != FM_OK) {
        free(t.at);
        return rc;
    }
    say(&t, "\n# A smaller member of a mixture-of-experts family, budget %.4f\n\n", budget);
    say(&t,
        "The channels of every expert are ranked and the least important ones removed; a learned\n"
        "mask says how many each expert keeps.\n\n");
    say_numbers(&t, x);
    say(&t,
        "\n%s\n\nMade from the family's bundle by\n\n    fm-pack --export DIR --budget %.6g "
        "--layout %s family.fm\n\nand checked by `fm-verify DIR --against family.fm`.\n",
        describe(x->options->layout), budget, layout);
    return add_text(x, FM_EXPORT_CARD, &t, err);
}

/* ---- all of them ---- */

static int add_carried(struct fm_exporter *x, const struct fm_member *m, struct fm_err *err)
{
    const char *name = m->name + strlen(FM_MEMBER_CARRIED);
    void *data = NULL;
    size_t size = 0;
    if (fm_exporter_owns(name))
        return FM_OK;
    int rc = fm_bundle_read(&x->bundle, m, &data, &size, err);
    return rc == FM_OK ? fm_exporter_add_file(x, name, data, size, size, false, err) : rc;
}

static int add_modeling(struct fm_exporter *x, struct fm_err *err)
{
    struct text t = {0};
    size_t size;
    const char *text = fm_modeling_text(&size);
    say(&t, "%.*s", (int)size, text);
    return add_text(x, FM_EXPORT_MODELING, &t, err);
}

int fm_exporter_texts(struct fm_exporter *x, struct fm_err *err)
{
    int rc = add_config(x, err);
    if (rc == FM_OK)
        rc = add_export_json(x, err);
    if (rc == FM_OK)
        rc = add_card(x, err);
    if (rc == FM_OK && x->options->layout == FM_LAYOUT_RAGGED)
        rc = add_modeling(x, err);
    for (size_t i = 0; i < x->bundle.members && rc == FM_OK; i++)
        if (strncmp(x->bundle.member[i].name, FM_MEMBER_CARRIED, strlen(FM_MEMBER_CARRIED)) == 0)
            rc = add_carried(x, &x->bundle.member[i], err);
    return rc;
}
