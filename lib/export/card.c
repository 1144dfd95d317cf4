/*
 * README.md of an export: a model card for the hub, with front matter (the licence and the
 * original), measured figures, how to run it in each program, and the command that makes it.  It
 * contains only facts about the bundle and nothing about this machine, so its bytes are the same
 * everywhere.
 */
#include "lib/export/card.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/file/digest.h"
#include "formats/json/json.h"
#include "formats/quant/quant.h"
#include "lib/export/trust.h"
#include "lib/stage/stage.h"

/* ---- the part between the marks ---- */

#define MARK_BEGIN                                                                                 \
    "<!-- fm-pack: begin; fm-verify compares this section, so write above or below it -->\n"
#define MARK_END "<!-- fm-pack: end -->\n"

/* The first line from `from` on that begins with `begin`, or NULL. */
static const char *find_line(const char *from, const char *begin)
{
    size_t n = strlen(begin);
    for (const char *line = from; *line;) {
        if (strncmp(line, begin, n) == 0)
            return line;
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    return NULL;
}

int fm_card_digest(struct fm_digest *digest, const char *card, size_t size, struct fm_err *err)
{
    const char *begin = find_line(card, MARK_BEGIN), *end = find_line(card, MARK_END);
    if (strlen(card) != size)
        return fm_fail(err, FM_EFORMAT, "is not text: it has a zero byte");
    const char *part = begin ? begin + strlen(MARK_BEGIN) : NULL;
    if (!part || !end || end < part || find_line(part, MARK_BEGIN) ||
        find_line(end + strlen(MARK_END), MARK_END))
        return fm_fail(err, FM_EFORMAT,
                       "must have the lines '%.20s ... -->' and '%.21s' once each, with fm-pack's "
                       "text between them",
                       MARK_BEGIN, MARK_END);
    *digest = fm_digest_of(part, (size_t)(end - part));
    return FM_OK;
}

/* ---- contents ---- */

/* Append a text of any length. */
static void say(struct fm_text *t, const char *text)
{
    fm_text_add(t, text, strlen(text));
}

static void say_front_matter(struct fm_text *t, const struct fm_exportplan *p)
{
    fm_text_printf(t, "---\n");
    say(t, p->from->license);
    const char *base = p->options.base_model ? p->options.base_model : p->from->name;
    if (base[0])
        fm_text_printf(t, "base_model: %s\n", base);
    fm_text_printf(t, "library_name: %s\npipeline_tag: text-generation\n",
                   p->options.layout->tools_only ? "fm" : "transformers");
    fm_text_printf(t, "tags:\n- moe\n- pruned\n- expert-pruning\n- safetensors\n---\n");
}

/* ---- properties ---- */

const char *fm_card_rounding(const struct fm_exportplan *p)
{
    bool decoded = !p->codes, exact = true;
    if (p->from->packed.storage)
        exact = fm_storage_exact(&p->from->config.scheme, p->from->config.schemes);
    for (size_t i = 0; i < p->tensors && !decoded; i++)
        decoded = p->tensor[i].decoded;
    return decoded && !exact ? ", before decoded values were rounded to BF16" : "";
}

void fm_card_held_out(struct fm_text *t, const struct fm_bundle *b)
{
    const cJSON *recover = fm_stage_history_of(b, "fm-recover");
    const cJSON *entry = recover ? recover : fm_stage_history_of(b, "fm-train");
    const cJSON *held = cJSON_GetObjectItemCaseSensitive(entry, "held_out");
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(entry, "options");
    const char *precision = fm_json_string_value(options, "precision");
    int64_t positions = 0;
    struct fm_err unread = {0};
    /* Strings of a bundle are untrusted. */
    bool bf16 = precision && strcmp(precision, "bf16") == 0;
    if (fm_json_get_int(held, "positions", 1, INT64_MAX, &positions, &unread))
        return;
    fm_text_printf(t, "| figures below measured by | %s, on %" PRId64 " held-out tokens, in %s |\n",
                   recover ? "fm-recover" : "fm-train", positions, bf16 ? "bf16" : "f32");
}

/* The figures of the mask, if the export computes what the mask does. */
static void say_quality(struct fm_text *t, const struct fm_exportplan *p)
{
    const struct fm_mask *mask = p->from->budgets.masks.mask;
    struct fm_quality q;
    bool known =
        fm_planned_as_measured(p) && fm_masks_quality(&q, &p->from->budgets.masks, p->index);
    double original;
    bool given = fm_stage_original_ce(&original, &p->from->bundle, mask);
    if (known || given)
        fm_card_held_out(t, &p->from->bundle);
    if (given)
        fm_text_printf(t, "| held-out cross-entropy of the original | %.4f |\n", original);
    if (!known) {
        fm_text_printf(
            t, "| held-out cross-entropy | not measured; `fm-bench quality` measures %s |\n",
            p->options.layout->unread ? p->options.layout->unread : "this directory");
        return;
    }
    char note[128];
    snprintf(note, sizeof note, "%s%s",
             q.positions ? "" : ", interpolated between measured budgets", fm_card_rounding(p));
    fm_text_printf(t, "| held-out cross-entropy%s | %.4f |\n", note, q.ce);
    fm_text_printf(t, "| divergence from the full model%s | %.4f |\n", note, q.kl);
    fm_text_printf(t, "| same most probable token%s | %.4f |\n", note, q.agree);
}

static void say_widths(struct fm_text *t, const struct fm_exportplan *p)
{
    uint32_t low = p->widths.kept[0], high = p->widths.kept[0];
    double sum = 0;
    int n = p->from->config.M * p->from->config.E;
    for (int i = 0; i < n; i++) {
        low = p->widths.kept[i] < low ? p->widths.kept[i] : low;
        high = p->widths.kept[i] > high ? p->widths.kept[i] : high;
        sum += p->widths.kept[i];
    }
    uint64_t all = (uint64_t)n * (uint64_t)p->from->config.I, has = (uint64_t)sum;
    fm_text_printf(t, "| expert channels kept | %" PRIu64 " of %" PRIu64 ", %.4f removed |\n", has,
                   all, 1 - sum / (double)all);
    fm_text_printf(t, "| bytes of these channels | %" PRIu64 " of %" PRIu64 " |\n",
                   fm_planned_channel_bytes(p, has), fm_planned_channel_bytes(p, all));
    fm_text_printf(
        t, "| expert width, minimum / mean / maximum | %" PRIu32 " / %.1f / %" PRIu32 " of %d |\n",
        low, sum / n, high, p->from->config.I);
    uint64_t more = p->widths.by_layout + p->widths.by_pad;
    if (more)
        fm_text_printf(t,
                       "| channels in addition to the mask's | %" PRIu64 ", %" PRIu64 " bytes |\n",
                       more, fm_planned_channel_bytes(p, more));
    fm_text_printf(t, "| parameters, total / active per token | %" PRIu64 " / %" PRIu64 " |\n",
                   fm_config_params(&p->from->config, p->widths.kept),
                   fm_config_params_active(&p->from->config, p->widths.kept));
}

static void say_extra(struct fm_text *t, const struct fm_exportplan *p)
{
    const struct fm_extra *x = &p->from->extra;
    char layers[FM_EXTRA_TEXT];
    bool decoded = false;
    fm_extra_print(layers, x);
    for (size_t i = 0; i < p->tensors; i++)
        decoded =
            decoded || (p->tensor[i].from && p->tensor[i].from->extra && p->tensor[i].decoded);
    if (x->tensors)
        fm_text_printf(t, "| %s%s%s%s%s, %s | %" PRIu64 " tensors, %" PRIu64 " bytes |\n",
                       fm_extra_named(x) ? "other parts" : "layers for multi-token prediction",
                       *layers ? " (" : "", layers, *layers ? ")" : "",
                       fm_extra_parts(x) && !fm_extra_named(x) ? " and other parts" : "",
                       p->narrowed             ? "experts with the width of the others"
                       : decoded               ? "at full width, dequantised"
                       : p->options.keep_extra ? "copied unchanged"
                                               : "left out",
                       x->tensors, x->bytes);
}

/* Compare the size of the checkpoint's weight files with the size of this export's. */
static void say_original(struct fm_text *t, const struct fm_exportplan *p)
{
    uint64_t source = 0;
    struct fm_err unread = {0}; /* fm_stage_model_read has already checked it */
    if (fm_stage_shard_bytes(&source, &p->from->bundle, &unread))
        return;
    double from = fm_planned_break_even(p, source);
    fm_text_printf(t, "| bytes of the original's weight files | %" PRIu64, source);
    if (!fm_planned_larger(p, source))
        fm_text_printf(t, " |\n");
    else if (from <= 1)
        fm_text_printf(t, "; this layout is smaller only from budget %.2f on |\n", from);
    else
        fm_text_printf(t, "; this layout is larger at every budget |\n");
}

/* State whether the codes of the original were kept, decoded or rounded again. */
static void say_stored(struct fm_text *t, const struct fm_exportplan *p)
{
    const char *stored = p->from->stored;
    if (p->options.quantise)
        fm_text_printf(t, "| routed experts, rounded to nearest without data%s | %s |\n",
                       stored[0] ? " (a second rounding: the original is quantised)" : "",
                       p->options.quantise->about);
    else if (stored[0])
        fm_text_printf(t, "| %s, stored as %s in the original | %s |\n",
                       p->coded == FM_CODED_EXPERTS ? "routed experts" : "weights", stored,
                       !p->codes                  ? "dequantised to BF16"
                       : p->coded == FM_CODED_ALL ? "codes and scales copied unchanged"
                                                  : "codes and scales copied unchanged; other "
                                                    "quantised tensors dequantised to BF16");
}

void fm_card_weights(struct fm_text *t, const struct fm_exportplan *p)
{
    say_stored(t, p);
    say_extra(t, p);
}

static void say_member(struct fm_text *t, const struct fm_exportplan *p)
{
    double budget = p->from->budgets.budget[p->index].budget;
    fm_text_printf(t, "\n# A pruned mixture-of-experts model, budget %.4f\n\n", budget);
    fm_card_intro(t, p->options.layout->about);
    fm_text_printf(t, "| | |\n|---|---|\n");
    fm_text_printf(t, "| member of the family | mask %d, budget %.4f |\n", p->index, budget);
    say_widths(t, p);
    fm_text_printf(t, "| bytes of the weight files | %" PRIu64 " |\n", fm_planned_weight_bytes(p));
    say_original(t, p);
    fm_card_weights(t, p);
    say_quality(t, p);
}

/* ---- use ---- */

static void say_servers(struct fm_text *t, const struct fm_exportplan *p)
{
    const struct fm_layout *layout = p->options.layout;
    const char *code = p->options.layout->modeling ? " --trust-remote-code" : "";
    fm_text_printf(t, "vLLM:\n\n    vllm serve .%s%s\n\nSGLang%s:\n\n", code,
                   layout->vllm_options ? layout->vllm_options : "",
                   layout->sglang_package ? ", with the suite's package" : "");
    if (layout->sglang_package)
        fm_text_printf(t, "    PYTHONPATH=PREFIX/share/fm SGLANG_EXTERNAL_MODEL_PACKAGE=fm_sglang "
                          "\\\n    ");
    fm_text_printf(t,
                   "    python -m sglang.launch_server --model-path .%s%s\n\n"
                   "fm-clients(7) lists the models that a server does not run or runs wrongly, and "
                   "those for which\nSGLang needs the suite's package.\n\n",
                   code, layout->sglang_options ? layout->sglang_options : "");
}

/* The section for transformers, whose AutoTokenizer reads config.json too: without
 * trust_remote_code it asks, or warns of an unknown type, if that names custom classes. */
static void say_transformers(struct fm_text *t, const struct fm_exportplan *p)
{
    bool code = p->options.layout->modeling;
    const char *list, *config = p->coded == FM_CODED_ROUNDED ? fm_planned_format(p, &list) : "";
    bool package = strstr(config, "compressed-tensors") != NULL;
    const char *model = "AutoModelForCausalLM.from_pretrained(\".\", dtype=\"auto\"";
    const char *trust = code ? ", trust_remote_code=True" : "";
    fm_text_printf(t, "transformers%s:\n\n",
                   code      ? ", 5 or newer"
                   : package ? ", with the package compressed-tensors"
                             : "");
    if (fm_bundle_find(&p->from->bundle, FM_MEMBER_CARRIED "tokenizer.json") ||
        fm_bundle_find(&p->from->bundle, FM_MEMBER_CARRIED "tokenizer.model")) {
        fm_text_printf(t,
                       "    from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
                       "    tokenizer = AutoTokenizer.from_pretrained(\".\"%s)\n"
                       "    model = %s%s)\n"
                       "    prompt = tokenizer(\"Once upon a time\", return_tensors=\"pt\")\n"
                       "    print(tokenizer.decode(model.generate(**prompt, max_new_tokens=20)[0]))"
                       "\n\n",
                       trust, model, trust);
    } else {
        fm_text_printf(t,
                       "    import torch\n    from transformers import AutoModelForCausalLM\n\n"
                       "    model = %s%s)\n"
                       "    print(model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=20))"
                       "\n\n",
                       model, trust);
    }
    if (code)
        fm_text_printf(t, "`trust_remote_code` runs `modeling_fm.py` from this directory, which "
                          "supports experts of different\nwidths; fm-verify(1) tells whether it is "
                          "the fm suite's file.  It is faster with `libfm_clip.so.1`,\nwhich "
                          "`make install` or the wheel of the fm suite installs (fm-clip(3)).\n\n");
    if (p->coded == FM_CODED_EXPERTS)
        fm_text_printf(t,
                       "Quantised experts are decoded as they are loaded, so they take as much "
                       "memory as plain weights,\n%" PRIu64 " bytes in %s.  transformers reads "
                       "tensors ahead and keeps codes in float32 until\nthey are decoded; set "
                       "`HF_DEACTIVATE_ASYNC_LOAD=1` in the environment to read one tensor at "
                       "a\ntime.\n\n",
                       fm_planned_channels_all(p) * fm_opened_channel_weights(p->from),
                       fm_dtype_torch(p->from->dtype));
}

static void say_runtimes(struct fm_text *t, const struct fm_exportplan *p)
{
    const struct fm_layout *layout = p->options.layout;
    const char *unread = p->coded == FM_CODED_ROUNDED ? p->options.quantise->unread : NULL;
    fm_text_printf(t, "## Running it\n\n");
    if (!layout->tools_only) {
        fm_text_printf(t, "Run the commands below in this directory, or replace `.` by its path "
                          "or its name on a hub.\n\n");
        if (unread)
            fm_text_printf(t, "Not in transformers 5.23, which %s.\n\n", unread);
        else
            say_transformers(t, p);
        say_servers(t, p);
    }
    if (layout->running)
        say(t, layout->running);
    if (!layout->tools_only && !unread)
        fm_text_printf(t,
                       "Measuring it:\n\n    lm_eval --model hf --model_args "
                       "pretrained=.,dtype=auto%s \\\n        --tasks "
                       "arc_challenge,hellaswag,winogrande --batch_size auto\n\n",
                       p->options.layout->modeling ? ",trust_remote_code=True" : "");
}

/* ---- provenance ---- */

/* Describe a source of calibration data, as recorded by the tool that read it. */
static void say_source(struct fm_text *t, const char *tool, const cJSON *source)
{
    const char *format = fm_json_string_value(source, "format");
    const char *digest = fm_json_string_value(source, "digest");
    int64_t used = 0;
    struct fm_digest ids;
    struct fm_err unread = {0};
    /* Strings of a bundle are untrusted: only those with the required form are repeated. */
    if (!format || !digest || format[strspn(format, "abcdefghijklmnopqrstuvwxyz0123456789.-")] ||
        !fm_digest_parse(&ids, digest, strlen(digest)) ||
        fm_json_get_int(source, "used", 0, INT64_MAX, &used, &unread))
        return;
    fm_text_printf(t, "| %s | %s | %" PRId64 " | `%s` |\n", tool, format, used, digest);
}

static void say_data(struct fm_text *t, const struct fm_exportplan *p)
{
    static const char *const tool[] = {"fm-rank", "fm-train", "fm-recover"};
    fm_text_printf(t, "## Calibration data\n\n"
                      "| tool | format | tokens used | XXH3 of the token ids |\n"
                      "|---|---|---|---|\n");
    for (int i = 0; i < 3; i++) {
        const cJSON *entry = fm_stage_history_of(&p->from->bundle, tool[i]), *source;
        const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(entry, "tokens");
        cJSON_ArrayForEach(source, cJSON_GetObjectItemCaseSensitive(tokens, "sources"))
            say_source(t, tool[i], source);
    }
    fm_text_printf(t, "\n");
}

/* The command that makes the export, with only the options that affect the result. */
static void say_command(struct fm_text *t, const struct fm_exportplan *p)
{
    const struct fm_export_options *o = &p->options;
    fm_text_printf(t, "## Making it\n\n    fm-pack --export DIR --layout %s", o->layout->name);
    if (o->layout->runtime)
        fm_text_printf(t, " --for %s", o->layout->runtime);
    if (o->quantise)
        fm_text_printf(t, " --weights %s%s%s", o->quantise->name, o->server ? " --for " : "",
                       o->server ? fm_server_name(o->server) : "");
    else if (p->from->packed.storage && !o->layout->cannot[FM_WITH_CODES] && !p->codes)
        fm_text_printf(t, " --weights bf16");
    fm_text_printf(t, " --budget %.4f", p->from->budgets.budget[p->index].budget);
    if (o->load_cap) {
        char low[FM_JSON_DOUBLE], high[FM_JSON_DOUBLE];
        fm_json_double(low, o->load_low);
        fm_json_double(high, o->load_high);
        fm_text_printf(t, " --load-cap %s:%s", low, high);
    }
    if (o->pad_multiple > 1)
        fm_text_printf(t, " --pad-multiple %" PRIu32, o->pad_multiple);
    if (o->shard_bytes && o->shard_bytes != FM_EXPORT_SHARD_BYTES)
        fm_text_printf(t, " --shard-size %" PRIu64, o->shard_bytes);
    if (o->allow_code)
        fm_text_printf(t, " --allow-code");
    for (const char *const *key = o->keep_config; *key; key++)
        fm_text_printf(t, " --keep-config %s", *key);
    if (o->keep_extra)
        fm_text_printf(t, " --keep-extra");
    if (o->base_model)
        fm_text_printf(t, " --base-model %s", o->base_model);
    fm_text_printf(t, " family.fm\n    fm-verify DIR --against family.fm\n\n"
                      "`family.fm` is the bundle of the whole family (fm-pack(1) of the fm "
                      "suite).\n");
}

/* List the author's code that was kept. */
static void say_code(struct fm_text *t, const struct fm_exportplan *p)
{
    char names[FM_CODE_NAMES_BYTES];
    size_t next = 0;
    if (!fm_trust_names(p, FM_CODE_KEPT, &next, names))
        return;
    fm_text_printf(t,
                   "\n## Code\n\n%sThese files and keys are code of the original's author, or "
                   "make programs load code or\nanother model:\n",
                   p->options.layout->modeling ? "`" FM_EXPORT_MODELING "` is the fm suite's.  "
                                               : "");
    do
        fm_text_printf(t, "%s\n", names);
    while (fm_trust_names(p, FM_CODE_KEPT, &next, names));
}

void fm_card_intro(struct fm_text *t, const char *about)
{
    fm_text_printf(t,
                   "The channels of every expert are ranked, and the least important ones are\n"
                   "removed.  The budget is the share of channels removed; a mask gives the number "
                   "that each\nexpert keeps.\n\n%s\n\n",
                   about);
}

int fm_card_plan(struct fm_exportplan *p, struct fm_err *err)
{
    const struct fm_layout *layout = p->options.layout;
    struct fm_text t = {0};
    say_front_matter(&t, p);
    fm_text_printf(&t, "\n" MARK_BEGIN);
    (layout->card ? layout->card : say_member)(&t, p);
    fm_text_printf(&t, "\n");
    say_runtimes(&t, p);
    say_data(&t, p);
    say_command(&t, p);
    say_code(&t, p);
    fm_text_printf(&t, "\n" MARK_END);
    return fm_planned_add_text(p, FM_EXPORT_CARD, &t, err);
}
