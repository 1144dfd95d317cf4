/* README.md of an export: a model card as the hub reads it. */
#include "lib/export/exporter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/export/runtimes.h"
#include "lib/export/gguf.h"

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
                   x->options->layout == FM_LAYOUT_NATIVE ? "fm" : "transformers");
    fm_text_printf(t, "tags:\n- moe\n- pruned\n- expert-pruning\n- safetensors\n---\n");
}

/* ---- what it is ---- */

static const char *describe(const struct fm_export_options *o)
{
    switch (o->layout) {
    case FM_LAYOUT_NATIVE:
        return "Layout `native`: prefix ranges of the ranked weights, for the fm tools alone.";
    case FM_LAYOUT_RAGGED:
        return "Layout `ragged`: every expert has a width of its own (`fm_widths` in config.json).";
    case FM_LAYOUT_ELASTIC:
        return o->load_cap
                   ? "Layout `elastic`, capped: some budgets of the family in one directory.  The "
                     "weights are\nranked, every expert as wide as these need it; a budget is a "
                     "prefix of every expert, and\nis chosen at load or while serving."
                   : "Layout `elastic`: the whole family in one directory.  The weights are "
                     "ranked and at\nfull width; a budget is a prefix of every expert, and is "
                     "chosen at load or while serving.";
    case FM_LAYOUT_LAYER:
        return o->vllm ? "Layout `layer` for vLLM: one width per layer, experts in the form that\n"
                         "vLLM's fused kernels read."
                       : "Layout `layer`: all experts of a layer are equally wide (`fm_widths` in "
                         "config.json).";
    case FM_LAYOUT_UNIFORM:
        return "Layout `uniform`: stock names, every expert equally wide; any program that runs "
               "the\noriginal architecture loads it.";
    case FM_LAYOUT_PADDED:
        return "Layout `padded`: stock names and shapes; channels that were removed are zeros, so "
               "the\nfunction is that of the smaller model and the size that of the full one.";
    }
    return "";
}

/* The figures measured are those of the mask: of this export too, if it is the mask or more. */
static void say_quality(struct fm_text *t, const struct fm_exporter *x)
{
    const struct fm_quality *q = &x->budgets.family.mask[x->index].quality;
    const struct fm_budget *b = &x->budgets.budget[x->index];
    bool more = x->channels_layout + x->channels_pad > 0;
    bool other = x->options->layout == FM_LAYOUT_UNIFORM && b->width_min != b->width_max;
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
    if (more && x->options->layout != FM_LAYOUT_ELASTIC)
        fm_text_printf(t,
                       "| channels more than the mask keeps | %" PRIu64 ", %" PRIu64 " bytes |\n",
                       more, more * fm_exporter_channel_bytes(x));
    fm_text_printf(t, "| parameters, active per token | %" PRIu64 ", %" PRIu64 " |\n",
                   fm_config_params(&x->config, x->widths),
                   fm_config_params_active(&x->config, x->widths));
}

static void say_degrees(struct fm_text *t, const struct fm_exporter *x)
{
    char text[FM_DEGREES_TEXT];
    fm_degrees_print(
        text, fm_degrees_of(&x->config, x->options->layout, x->options->vllm, x->widths), ", ");
    if (x->options->layout != FM_LAYOUT_NATIVE)
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

/* elastic: one line for every budget. */
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
    bool ours = fm_exporter_models(x), elastic = x->options->layout == FM_LAYOUT_ELASTIC;
    const char *trust = ours ? " --trust-remote-code" : "", *why = "";
    char options[64];
    snprintf(options, sizeof options, "%s%s", trust, elastic ? " --disable-radix-cache" : "");
    if (ours && (x->options->vllm || x->config.head_bias))
        why = ", with the suite's package for it (fm-clients(7); its own code has one width\n"
              "for all layers, and no bias of the head)";
    else if (x->config.head_bias)
        why = ", with the suite's package for it (fm-clients(7)), which adds that bias";
    if (!ours && x->config.head_bias)
        say_headless(t);
    else
        fm_text_printf(t, "vLLM:\n\n    vllm serve DIR%s%s\n\n", trust,
                       elastic ? " --no-enable-prefix-caching" : "");
    say_sglang(t, options, why);
}

static void say_switch(struct fm_text *t)
{
    fm_text_printf(
        t, "The budget is `fm_budget` in config.json, or `FM_BUDGET=0.4` in the\n"
           "environment of the program; in transformers `model.set_budget(0.4)` changes it "
           "at any\ntime.  A server changes it by writing the budget's index to the tensor\n"
           "`experts.budget` of every layer (vLLM: `LLM.apply_model`, SGLang:\n"
           "`update_weights_from_tensor`).  Prefixes cached at one budget do not belong to\n"
           "another: caching is off in the commands above.  fm-clients(7) has the calls, also\n"
           "over HTTP, and how to leave caches on.\n\n");
}

static void say_gguf(struct fm_text *t)
{
    fm_text_printf(t, "llama.cpp:\n\n    python convert_hf_to_gguf.py DIR --outfile model.gguf\n"
                      "    llama-cli -m model.gguf\n\n");
}

static void say_runtimes(struct fm_text *t, const struct fm_exporter *x)
{
    enum fm_layout layout = x->options->layout;
    bool ours = fm_exporter_models(x);
    fm_text_printf(t, "## Running it\n\n");
    if (layout == FM_LAYOUT_NATIVE) {
        fm_text_printf(t, "The fm tools read it as a model: `--model DIR`.\n\n");
        return;
    }
    fm_text_printf(t,
                   "transformers%s:\n\n    model = AutoModelForCausalLM.from_pretrained(\"DIR\", "
                   "dtype=\"auto\"%s)\n\n",
                   ours ? ", 5 or newer (modeling_fm.py is code of this directory)" : "",
                   ours ? ", trust_remote_code=True" : "");
    say_servers(t, x);
    if (layout == FM_LAYOUT_ELASTIC)
        say_switch(t);
    if (layout == FM_LAYOUT_UNIFORM && fm_gguf_same(&x->config))
        say_gguf(t);
    fm_text_printf(t,
                   "Measuring it:\n\n    lm_eval --model hf --model_args "
                   "pretrained=DIR,dtype=auto%s \\\n        --tasks "
                   "arc_challenge,hellaswag,winogrande --batch_size auto\n\n",
                   ours ? ",trust_remote_code=True" : "");
}

/* The command, options that shape the result alone: the same everywhere. */
static void say_command(struct fm_text *t, const struct fm_exporter *x)
{
    const struct fm_export_options *o = x->options;
    fm_text_printf(t, "## Making it\n\n    fm-pack --export DIR --layout %s",
                   fm_layout_name(o->layout));
    if (o->layout == FM_LAYOUT_LAYER)
        fm_text_printf(t, " --for %s", o->vllm ? "vllm" : "any");
    fm_text_printf(t, " --mask %d", x->index);
    if (o->load_cap) {
        fm_text_printf(t, " --load-cap ");
        fm_exporter_say_number(t, o->load_low);
        fm_text_printf(t, ":");
        fm_exporter_say_number(t, o->load_high);
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

int fm_exporter_card(struct fm_exporter *x, struct fm_err *err)
{
    struct fm_text t = {0};
    const struct fm_budget *b = x->budgets.budget;
    say_front_matter(&t, x);
    if (x->options->layout == FM_LAYOUT_ELASTIC)
        fm_text_printf(&t, "\n# A family of mixture-of-experts models, budgets %.4g to %.4f\n\n",
                       b[x->first].budget, b[x->last].budget);
    else
        fm_text_printf(&t, "\n# A smaller member of a mixture-of-experts family, budget %.4f\n\n",
                       b[x->index].budget);
    fm_text_printf(&t,
                   "The channels of every expert are ranked, and the least important ones\n"
                   "removed; a mask says how many each expert keeps.\n\n%s\n\n",
                   describe(x->options));
    if (x->options->layout == FM_LAYOUT_ELASTIC)
        say_family(&t, x);
    else
        say_numbers(&t, x);
    fm_text_printf(&t, "\n");
    say_runtimes(&t, x);
    say_command(&t, x);
    return fm_exporter_add_text(x, FM_EXPORT_CARD, &t, err);
}
