/* README.md of an export: a model card as the hub reads it. */
#include "lib/export/texts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/export/runtimes.h"

#define WORD_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/"

/* ---- where the model comes from ---- */

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
            size_t n = strspn(line, WORD_LETTERS ":");
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
    size_t n = strspn(name, WORD_LETTERS);
    return slash && slash > name && slash[1] && !strchr(slash + 1, '/') && name[n] == '\0' &&
           name[0] != '.';
}

/* The license of the checkpoint's card, as lines of front matter. */
static int read_license(struct fm_exporter *x, struct fm_err *err)
{
    static const char *const keys[] = {"license", "license_name", "license_link"};
    const struct fm_member *m = fm_bundle_find(&x->bundle, FM_MEMBER_CARRIED FM_EXPORT_CARD);
    void *card = NULL;
    size_t size, at = 0;
    int rc = m ? fm_bundle_read(&x->bundle, m, &card, &size, err) : FM_OK;
    for (int i = 0; card && i < 3; i++) {
        char value[sizeof x->license / 4];
        if (front_matter(card, keys[i], value, sizeof value))
            at += (size_t)snprintf(x->license + at, sizeof x->license - at, "%s: %s\n", keys[i],
                                   value);
    }
    free(card);
    return rc;
}

int fm_exporter_origin(struct fm_exporter *x, struct fm_err *err)
{
    const char *given = x->options->base_model;
    cJSON *config = NULL;
    int rc = read_license(x, err);
    if (rc == FM_OK)
        rc = fm_json_tree(&config, x->config_text, x->config_bytes, err);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(config, "_name_or_path");
    if (given && (!is_hub_name(given) || strlen(given) >= sizeof x->base_model))
        rc = fm_fail(err, FM_EUSAGE, "--base-model '%.64s' is no name of the form org/name", given);
    else if (given)
        snprintf(x->base_model, sizeof x->base_model, "%s", given);
    else if (cJSON_IsString(name) && is_hub_name(name->valuestring) &&
             strlen(name->valuestring) < sizeof x->base_model)
        snprintf(x->base_model, sizeof x->base_model, "%s", name->valuestring);
    cJSON_Delete(config);
    return rc;
}

/* A text of any length. */
static void say(struct fm_text *t, const char *text)
{
    fm_text_add(t, text, strlen(text));
}

static void say_front_matter(struct fm_text *t, const struct fm_exporter *x)
{
    fm_text_printf(t, "---\n");
    say(t, x->license);
    if (x->base_model[0])
        fm_text_printf(t, "base_model: %s\n", x->base_model);
    fm_text_printf(t, "library_name: %s\npipeline_tag: text-generation\n",
                   x->options->layout->split == FM_SPLIT_NONE ? "fm" : "transformers");
    fm_text_printf(t, "tags:\n- moe\n- pruned\n- expert-pruning\n- safetensors\n---\n");
}

/* ---- what it is ---- */

/* The figures measured are those of the mask: of this export too, if it is the mask or more. */
static void say_quality(struct fm_text *t, const struct fm_exporter *x)
{
    const struct fm_quality *q = &x->budgets.family.mask[x->index].quality;
    const struct fm_budget *b = &x->budgets.budget[x->index];
    bool more = x->channels_layout + x->channels_pad > 0;
    bool other = x->options->layout->one_width && b->width_min != b->width_max;
    if (q->positions == 0 || other) {
        fm_text_printf(t, "| quality | not measured at these widths |\n");
        return;
    }
    const char *note = more ? ", before widths were rounded up" : "";
    fm_text_printf(t, "| held-out cross-entropy%s | %.4f |\n", note, q->ce);
    fm_text_printf(t, "| divergence from the full model%s | %.4f |\n", note, q->kl);
    fm_text_printf(t, "| same most probable token%s | %.4f |\n", note, q->agree);
}

static void say_widths(struct fm_text *t, const struct fm_exporter *x)
{
    uint32_t low = x->widths[0], high = x->widths[0];
    double sum = 0;
    int n = x->config.M * x->config.E;
    for (int i = 0; i < n; i++) {
        low = x->widths[i] < low ? x->widths[i] : low;
        high = x->widths[i] > high ? x->widths[i] : high;
        sum += x->widths[i];
    }
    fm_text_printf(
        t, "| width of an expert, least / mean / most | %" PRIu32 " / %.1f / %" PRIu32 " of %d |\n",
        low, sum / n, high, x->config.I);
    uint64_t more = x->channels_layout + x->channels_pad;
    if (more)
        fm_text_printf(t,
                       "| channels more than the mask keeps | %" PRIu64 ", %" PRIu64 " bytes |\n",
                       more, more * fm_exporter_channel_bytes(x));
    fm_text_printf(t, "| parameters, active per token | %" PRIu64 ", %" PRIu64 " |\n",
                   fm_config_params(&x->config, x->widths),
                   fm_config_params_active(&x->config, x->widths));
}

static void say_degrees(struct fm_text *t, const struct fm_exporter *x)
{
    const struct fm_layout *layout = x->options->layout;
    char text[FM_DEGREES_TEXT];
    fm_runtimes_print(text, fm_runtimes_degrees(&x->config, layout, x->stored), ", ");
    if (layout->split != FM_SPLIT_NONE)
        fm_text_printf(t, "| tensor-parallel degrees | %s |\n", text);
}

static void say_numbers(struct fm_text *t, const struct fm_exporter *x)
{
    fm_text_printf(t, "| | |\n|---|---|\n");
    fm_text_printf(t, "| expert channels removed | %.4f of all |\n",
                   x->budgets.budget[x->index].budget);
    say_widths(t, x);
    fm_text_printf(t, "| bytes of the weight files | %" PRIu64 " |\n", fm_exporter_weight_bytes(x));
    say_degrees(t, x);
    say_quality(t, x);
}

/* A line for every budget. */
static void say_family(struct fm_text *t, const struct fm_exporter *x)
{
    fm_text_printf(t, "| bytes of the weight files | %" PRIu64 " |\n|---|---|\n",
                   fm_exporter_weight_bytes(x));
    fm_text_printf(t, "| starts at budget | %.4f |\n", x->budgets.budget[x->index].budget);
    if (x->options->load_cap)
        fm_text_printf(t,
                       "| bytes of channels that no budget here uses, left out | %" PRIu64 " |\n",
                       fm_exporter_freed(x) * fm_exporter_channel_bytes(x));
    say_degrees(t, x);
    fm_text_printf(t, "\n| budget | mean width | active parameters | held-out cross-entropy | "
                      "divergence | same token |\n|---|---|---|---|---|---|\n");
    for (int b = x->first; b <= x->last; b++) {
        const struct fm_quality *q = &x->budgets.family.mask[b].quality;
        const struct fm_budget *s = &x->budgets.budget[b];
        fm_text_printf(t, "| %.4f | %.1f | %" PRIu64 " |", s->budget, s->width_mean,
                       s->params_active);
        if (q->positions)
            fm_text_printf(t, " %.4f | %.4f | %.4f |\n", q->ce, q->kl, q->agree);
        else
            fm_text_printf(t, " | | |\n");
    }
}

/* ---- how to use it ---- */

/* What keeps servers from running this directory by their own code is said before their commands.
 */
static void say_headless(struct fm_text *t)
{
    fm_text_printf(
        t, "vLLM and SGLang: their own code for this architecture (vLLM 0.32, SGLang "
           "0.5.23) loads the\nbias of the head and never adds it, without a word: do not "
           "serve this directory by it.\nExport `--layout ragged`, or `--layout layer --for "
           "vllm` for fused kernels, for vLLM.\n\n");
}

static void say_sglang(struct fm_text *t, const char *options, const char *why)
{
    fm_text_printf(t, "SGLang%s:\n\n", why);
    if (why[0])
        fm_text_printf(t, "    PYTHONPATH=PREFIX/share/fm SGLANG_EXTERNAL_MODEL_PACKAGE=fm_sglang "
                          "\\\n    ");
    fm_text_printf(t, "    python -m sglang.launch_server --model-path DIR%s\n\n", options);
}

static void say_servers(struct fm_text *t, const struct fm_exporter *x)
{
    const struct fm_layout *layout = x->options->layout;
    const char *why = "";
    if (layout->code && (layout->sglang_package || x->config.head_bias))
        why = ", with the suite's package for it (fm-clients(7); its own code has one width\n"
              "for all layers, and no bias of the head)";
    else if (x->config.head_bias)
        why = ", with the suite's package for it (fm-clients(7)), which adds that bias";
    if (!layout->code && x->config.head_bias)
        say_headless(t);
    else
        fm_text_printf(t, "vLLM:\n\n    vllm serve DIR%s\n\n", layout->vllm_options);
    say_sglang(t, layout->sglang_options, why);
}

static void say_transformers(struct fm_text *t, bool code)
{
    fm_text_printf(t,
                   "transformers%s:\n\n    model = AutoModelForCausalLM.from_pretrained(\"DIR\", "
                   "dtype=\"auto\"%s)\n\n",
                   code ? ", 5 or newer (modeling_fm.py is code of this directory)" : "",
                   code ? ", trust_remote_code=True" : "");
}

static void say_runtimes(struct fm_text *t, const struct fm_exporter *x)
{
    const struct fm_layout *layout = x->options->layout;
    bool served = layout->split != FM_SPLIT_NONE;
    fm_text_printf(t, "## Running it\n\n");
    if (served) {
        say_transformers(t, layout->code);
        say_servers(t, x);
    }
    if (layout->running)
        layout->running(t, x);
    if (served)
        fm_text_printf(t,
                       "Measuring it:\n\n    lm_eval --model hf --model_args "
                       "pretrained=DIR,dtype=auto%s \\\n        --tasks "
                       "arc_challenge,hellaswag,winogrande --batch_size auto\n\n",
                       layout->code ? ",trust_remote_code=True" : "");
}

/* The command, options that shape the result alone: the same everywhere. */
static void say_command(struct fm_text *t, const struct fm_exporter *x)
{
    const struct fm_export_options *o = x->options;
    fm_text_printf(t, "## Making it\n\n    fm-pack --export DIR --layout %s", o->layout->name);
    if (o->layout->runtime)
        fm_text_printf(t, " --for %s", o->layout->runtime);
    fm_text_printf(t, " --mask %d", x->index);
    if (o->load_cap) {
        fm_text_printf(t, " --load-cap ");
        fm_texts_number(t, o->load_low);
        fm_text_printf(t, ":");
        fm_texts_number(t, o->load_high);
    }
    if (o->pad_multiple > 1)
        fm_text_printf(t, " --pad-multiple %" PRIu32, o->pad_multiple);
    if (o->shard_bytes)
        fm_text_printf(t, " --shard-size %" PRIu64, o->shard_bytes);
    if (o->base_model)
        fm_text_printf(t, " --base-model %s", o->base_model);
    fm_text_printf(t, " family.fm\n    fm-verify DIR --against family.fm\n\n"
                      "`family.fm` is the bundle that holds the family (suite fm, fm-pack(1)).\n");
}

int fm_card_plan(struct fm_exporter *x, struct fm_err *err)
{
    const struct fm_layout *layout = x->options->layout;
    const struct fm_budget *b = x->budgets.budget;
    struct fm_text t = {0};
    say_front_matter(&t, x);
    if (layout->family)
        fm_text_printf(&t, "\n# A family of mixture-of-experts models, budgets %.4g to %.4f\n\n",
                       b[x->first].budget, b[x->last].budget);
    else
        fm_text_printf(&t, "\n# A smaller member of a mixture-of-experts family, budget %.4f\n\n",
                       b[x->index].budget);
    fm_text_printf(&t,
                   "The channels of every expert are ranked, and the least important ones\n"
                   "removed; a mask says how many each expert keeps.\n\n%s\n\n",
                   x->options->load_cap ? layout->about_capped : layout->about);
    if (layout->family)
        say_family(&t, x);
    else
        say_numbers(&t, x);
    fm_text_printf(&t, "\n");
    say_runtimes(&t, x);
    say_command(&t, x);
    return fm_texts_add(x, FM_EXPORT_CARD, &t, err);
}
