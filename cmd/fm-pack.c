/* fm-pack: make the bundle, list its members, or export one member of the family. */
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/listing.h"
#include "cmd/show.h"
#include "cmd/tools.h"
#include "lib/base/names.h"
#include "lib/base/units.h"
#include "lib/export/export.h"
#include "lib/export/exportplan.h"
#include "lib/stage/pack.h"

/* ---- the bundle ---- */

struct packed {
    bool dry_run;
    struct fm_pack_report report;
};

static void describe_bundle(const struct fm_result *out, const void *self)
{
    const struct packed *packed = self;
    const struct fm_pack_report *r = &packed->report;
    uint64_t export_most = r->bytes_values > r->bytes_in ? r->bytes_values : r->bytes_in;
    bool dry = packed->dry_run;
    char largest[32];
    cJSON *o = out->json;
    fm_units_bytes(largest, r->bytes_largest);
    fm_json_add_bool(o, "dry_run", dry);
    fm_result_bytes(out, "weights", "bytes_in", r->bytes_in, dry ? "would be read" : "read");
    fm_show_stored(out, r->storage, r->bytes_in, r->bytes_values);
    if (r->storage[0]) {
        fm_result_word(
            out, "codes", NULL, r->kept ? "kept" : "not kept", "%s%s", dry ? "planned: " : "",
            r->kept ? "with their scales, byte for byte as in the checkpoint" : r->why_not);
        fm_json_add_bool(o, "codes_kept", r->kept);
    }
    if (r->why_not[0])
        fm_json_add_string(o, "codes_why_not", r->why_not);
    fm_result_bytes(out, "bundle", "bytes_out", r->bytes_out, "%s",
                    dry          ? r->adapter ? "would be written, with the adapter merged"
                                              : "would be written, without an adapter"
                    : r->adapter ? "adapter merged"
                                 : "no adapter");
    fm_json_add_uint(o, "bytes_export", export_most);
    if (dry)
        fm_result_bytes(out, "export", NULL, export_most,
                        "would be the size of one export, at most");
    fm_json_add_uint(o, "parts", (uint64_t)r->parts);
    fm_json_add_uint(o, "bytes_largest", r->bytes_largest);
    if (r->parts > 1) {
        fm_result_count(out, "parts", NULL, (uint64_t)r->parts,
                        "%s%s to %s, of at most %s each; give the first to other tools",
                        dry ? "would be written: " : "", r->part_first, r->part_last, largest);
        fm_json_add_string(o, "part_first", r->part_first);
    }
    fm_show_extra(out, &r->extra,
                  dry ? "would be copied unchanged, without ranking"
                      : "copied unchanged, without ranking");
    fm_result_bytes(out, "memory", "bytes_memory", r->bytes_memory,
                    dry ? "would be used at most" : "at most");
    fm_json_add_uint(o, "bytes_free", r->bytes_free);
    fm_json_add_uint(o, "passes", (uint64_t)r->passes);
    fm_json_add_uint(o, "layers", (uint64_t)r->layers);
    fm_json_add_uint(o, "experts", (uint64_t)r->experts);
    fm_result_count(out, "budgets", "budgets", (uint64_t)r->budgets, "%sof %d layers of %d experts",
                    dry ? "would be in the bundle, " : "", r->layers, r->experts);
    fm_json_add_uint(o, "segments", (uint64_t)r->segments);
    fm_extra_json(o, &r->extra);
    fm_json_add_bool(o, "adapter", r->adapter);
    fm_json_add_uint(o, "merged", r->merged);
    fm_json_add_double(o, "seconds", r->seconds);
}

static int pack(const struct fm_cli *cli, const struct fm_pack_options *options, struct fm_err *err)
{
    struct packed packed = {.dry_run = cli->dry_run};
    struct fm_shown shown = {cli, "fm-pack", describe_bundle, &packed, NULL};
    struct fm_run_options run = cli->run;
    if (!run.inputs.model)
        return fm_fail(err, FM_EUSAGE, "--model DIR is missing; see fm-pack --help");
    if (options->part_bytes && strcmp(run.outputs.path, "-") == 0)
        return fm_fail(err, FM_EUSAGE,
                       "--part-size needs --output FILE: standard output is one stream");
    if (cli->dry_run)
        return fm_pack_plan(&run, options, &packed.report, err) ? err->code : fm_show(&shown, err);
    run.announce = (struct fm_announce){fm_show, &shown};
    return fm_pack(&run, options, &packed.report, err);
}

/* ---- an export ---- */

/* Channels in addition to the mask's, in the JSON as channels_KEY and bytes_KEY. */
static void describe_rounding(const struct fm_result *out, const char *would, const char *label,
                              const char *const keys[2], uint64_t channels, uint64_t bytes,
                              const char *why)
{
    fm_json_add_uint(out->json, keys[0], channels);
    fm_json_add_uint(out->json, keys[1], bytes);
    if (channels)
        fm_result_bytes(out, label, NULL, bytes,
                        "%sfor %llu channels in addition to the mask's: %s", would,
                        (unsigned long long)channels, why);
}

/* Warn if the export removes nothing, or is not smaller than the original. */
static void source_lines(FILE *out, const char *would, const char *padding,
                         const struct fm_layout *layout, const struct fm_export_report *r)
{
    char source[32];
    fm_units_bytes(source, r->bytes_source);
    if (r->removes_nothing && r->channels_pad)
        fprintf(out,
                "removes       nothing  %s%s rounds the width up to all channels; use a larger "
                "budget, or a smaller multiple\n",
                *would ? "would remove nothing: " : "", padding);
    else if (r->removes_nothing)
        fprintf(out,
                "removes       nothing  %ssome expert%s keeps all its channels, and the others get "
                "its width; use a larger budget, or layout ragged\n",
                *would ? "would remove nothing: " : "", layout->one_width ? "" : " of each layer");
    if (!r->larger)
        return;
    fprintf(out, "larger  %13s  %s the checkpoint's weight files; ", source,
            *would ? "it would be larger than" : "is the size of");
    if (r->break_even <= 1)
        fprintf(out, "the export is smaller from budget %.2f on\n", r->break_even);
    else
        fputs("this layout is larger at every budget\n", out);
}

static void describe_member(const struct fm_result *out, const char *would,
                            const struct fm_export_options *options,
                            const struct fm_export_report *r)
{
    const struct fm_layout *layout = options->layout;
    cJSON *o = out->json;
    fprintf(out->text, "export   %s%s, budget %.4f (mask %d)\n", would, layout->name, r->budget,
            r->index);
    fm_json_add_string(o, "layout", layout->name);
    if (layout->runtime)
        fm_json_add_string(o, "for", layout->runtime);
    fm_json_add_uint(o, "index", (uint64_t)r->index);
    if (options->by == FM_BY_BUDGET)
        fm_json_add_double(o, "budget_asked", options->budget);
    fm_json_add_double(o, "budget", r->budget);
    if (layout->one_width)
        fprintf(out->text,
                "width    %s%u channels in every expert; the mask leaves %.1f on average\n", would,
                r->width_uniform, r->width_mean);
    fm_json_add_uint(o, "width_uniform", r->width_uniform);
    fm_json_add_double(o, "width_mean", r->width_mean);
}

struct exporting {
    bool dry_run;
    const struct fm_export_options *options;
    const struct fm_export_report *report;
};

static void describe_export(const struct fm_result *out, const void *self)
{
    const struct exporting *x = self;
    const struct fm_export_options *options = x->options;
    const struct fm_export_report *r = x->report;
    bool dry_run = x->dry_run;
    static const char *const layout[] = {"channels_layout", "bytes_layout"};
    static const char *const pad[] = {"channels_pad", "bytes_pad"};
    const char *would = dry_run ? "would be " : "";
    const char *padding = options->devices > 1        ? "--tp"
                          : options->pad_multiple > 1 ? "--pad-multiple"
                                                      : "--weights";
    char extra[32];
    cJSON *o = out->json;
    fm_json_add_bool(o, "dry_run", dry_run);
    describe_member(out, would, options, r);
    describe_rounding(out, would, "layout", layout, r->channels_layout, r->bytes_layout,
                      options->layout->leveled);
    if (options->load_cap)
        fm_result_bytes(out, "freed", NULL, r->bytes_freed,
                        "%sof %llu channels that none of the exported budgets uses (budgets: %d)",
                        dry_run ? "would be freed, " : "", (unsigned long long)r->channels_freed,
                        r->members);
    describe_rounding(out, would, "padding", pad, r->channels_pad, r->bytes_pad, padding);
    if (r->members) {
        fm_json_add_uint(o, "members", (uint64_t)r->members);
        fm_json_add_uint(o, "channels_freed", r->channels_freed);
        fm_json_add_uint(o, "bytes_freed", r->bytes_freed);
    }
    fm_json_add_bool(o, "removes_nothing", r->removes_nothing);
    fm_json_add_uint(o, "bytes_source", r->bytes_source);
    fm_json_add_double(o, "break_even", r->break_even);
    if (options->quantise)
        fm_result_word(out, "experts", NULL, options->quantise->name, "%s%s", would,
                       options->quantise->about);
    else if (r->storage[0])
        fm_result_word(out, "codes", NULL, r->codes ? "kept" : "not kept", "%s%s", would,
                       r->storage);
    fm_result_bytes(out, "weights", "bytes_weights", r->bytes_weights, "%s",
                    dry_run ? "would be in weight files" : "of weight files");
    snprintf(extra, sizeof extra, "%s%s", would, options->keep_extra ? "kept" : "left out");
    fm_show_extra(out, &r->extra, extra);
    fm_result_bytes(out, "all", "bytes_out", r->bytes_out, "%s all %d files",
                    dry_run ? "would be in" : "of", r->files);
    source_lines(out->text, would, padding, options->layout, r);
    fm_json_add_uint(o, "bytes_memory", r->bytes_memory);
    fm_json_add_uint(o, "bytes_free", r->bytes_free);
    fm_json_add_uint(o, "files", (uint64_t)r->files);
    if (options->quantise)
        fm_json_add_string(o, "weights", options->quantise->name);
    if (r->storage[0]) {
        fm_json_add_string(o, "storage", r->storage);
        fm_json_add_bool(o, "codes_kept", r->codes);
    }
    fm_extra_json(o, &r->extra);
    if (r->extra.tensors)
        fm_json_add_bool(o, "keep_extra", options->keep_extra);
    fm_json_add_double(o, "seconds", r->seconds);
}

static int export_member(const struct fm_cli *cli, const struct fm_export_options *options,
                         struct fm_err *err)
{
    struct fm_export_report r = {0};
    struct exporting x = {cli->dry_run, options, &r};
    struct fm_shown shown = {cli, "fm-pack", describe_export, &x, NULL};
    struct fm_run_options run = cli->run;
    if (cli->dry_run)
        return fm_export_plan(&run, options, &r, err) ? err->code : fm_show(&shown, err);
    run.announce = (struct fm_announce){fm_show, &shown};
    return fm_export(&run, options, &r, err);
}

/* ---- the command line ---- */

/* Choose the member by --budget or --fit. */
static int choose(struct fm_export_options *o, struct fm_err *err)
{
    if (o->budget >= 0 && o->fit > 0)
        return fm_fail(err, FM_EUSAGE,
                       "--export takes only one of --budget R and --fit SIZE; omit the other");
    o->by = o->fit > 0 ? FM_BY_FIT : o->budget >= 0 ? FM_BY_BUDGET : FM_BY_DEFAULT;
    return FM_OK;
}

/* Read R or R:R2, the lowest and the highest budget to serve. */
static int read_cap(struct fm_export_options *o, const char *text, struct fm_err *err)
{
    char *end;
    if (!text)
        return FM_OK;
    o->load_cap = true;
    o->load_high = 1;
    o->load_low = strtod(text, &end);
    bool ok = end > text;
    if (ok && *end == ':') {
        const char *second = end + 1;
        o->load_high = strtod(second, &end);
        ok = end > second;
    }
    ok = ok && !*end && !strpbrk(text, "+ \t\n");
    return ok ? FM_OK
              : fm_fail(err, FM_EUSAGE,
                        "bad value for --load-cap: %s (use R or R:R2, shares from 0 to 1); see "
                        "fm-pack --help",
                        text);
}

enum { PACK = 1, LIST = 2, EXPORT = 4 };

static const struct fm_cli_scope scope[] = {
    {.name = "model", .modes = PACK},
    {.name = "output", .modes = PACK},
    {.name = "dry-run", .modes = PACK | EXPORT},
    {.name = "no-sandbox", .modes = LIST | EXPORT},
    {.name = "force", .modes = PACK | EXPORT},
    {0},
};

/* The options of the command line. */
static struct {
    bool list;
    const char *coverage[FM_INPUTS_MAX + 1];
    const char *directory, *cap;
    char weights[256]; /* names of weight formats, for --weights */
    int layout, server, pad, weight, devices;
    struct fm_pack_options packing;
    struct fm_export_options options;
} asked = {.layout = -1, .pad = 1, .weights = "keep|bf16", .weight = -1, .options = {.budget = -1}};

/* Refuse options that have no effect in the chosen mode, then run it. */
static int run_mode(struct fm_cli *cli, struct fm_err *err)
{
    struct fm_export_options *o = &asked.options;
    if (asked.list && asked.directory)
        return fm_fail(err, FM_EUSAGE, "give only one of --list and --export");
    if (asked.list) {
        if (fm_options_check(cli, LIST, "with --list", err))
            return err->code;
        cli->run.outputs.path = NULL;
        return fm_listing_print(cli, asked.coverage, err);
    }
    if (!asked.directory && o->quantise)
        return fm_fail(err, FM_EUSAGE,
                       "--weights %s needs --export, because only exports are rounded to a format; "
                       "use keep or bf16 for a bundle",
                       o->quantise->name);
    if (!asked.directory)
        return fm_options_check(cli, PACK, "without --export DIR", err)
                   ? err->code
                   : pack(cli, &asked.packing, err);
    if (fm_options_check(cli, EXPORT, "with --export DIR", err) || choose(o, err) ||
        fm_exportplan_serve(o, (enum fm_server)asked.server, err))
        return err->code;
    cli->run.outputs.path = asked.directory;
    return export_member(cli, o, err);
}

static const struct fm_cli_option own[] = {
    {"list", 'l', FM_CLI_FLAG, &asked.list, NULL, "list the budgets of a bundle or stage stream", 0,
     0, 0},
    {"coverage", 0, FM_CLI_READS, asked.coverage, "FILE",
     "list: how much of this ranking each member keeps; repeat for other kinds of text", 0, 0,
     LIST},
    {"weights", 0, FM_CLI_CHOICE, &asked.weight, asked.weights,
     "keep the codes of a quantised checkpoint (the default if possible), or decode them to BF16; "
     "export: round experts to a format",
     0, 0, PACK | EXPORT},
    {"part-size", 0, FM_CLI_SIZE, &asked.packing.part_bytes, "SIZE",
     "write the bundle as files of at most SIZE (default: one file)", 0, 0, PACK},
    {"export", 'x', FM_CLI_EXPORT, &asked.directory, "DIR",
     "export a member as a checkpoint; - is a tar stream", 0, 0, 0},
    {"budget", 'b', FM_CLI_REAL, &asked.options.budget, "R",
     "the member nearest to this share of channels removed", 0, 1, EXPORT},
    {"fit", 0, FM_CLI_SIZE, &asked.options.fit, "SIZE",
     "the largest member whose export takes at most SIZE", 0, 0, EXPORT},
    {"layout", 0, FM_CLI_CHOICE, &asked.layout, FM_NAMES_CHOICES(FM_LAYOUT_ROWS),
     "layout of the export (default: ragged)", 0, 0, EXPORT},
    {"for", 0, FM_CLI_CHOICE, &asked.server, FM_SERVER_CHOICES,
     "server for layout layer, or for experts rounded to a format (default: any)", 0, 0, EXPORT},
    {"load-cap", 0, FM_CLI_TEXT, &asked.cap, "R[:R2]",
     "elastic: export only budgets from R to R2 (default: 1), and the channels that they use", 0, 0,
     EXPORT},
    {"shard-size", 0, FM_CLI_SIZE, &asked.options.shard_bytes, "SIZE",
     "largest total size of the tensors in a file (default: 4GiB)", 0, 0, EXPORT},
    {"tp", 0, FM_CLI_INT, &asked.devices, "N", "round widths up so that they split over N devices",
     1, FM_EXPORT_DEVICES_MAX, EXPORT},
    {"pad-multiple", 0, FM_CLI_INT, &asked.pad, "M",
     "round widths up to a multiple of M (default: 1)", 1, 1 << 20, EXPORT},
    {"base-model", 0, FM_CLI_TEXT, &asked.options.base_model, "ORG/NAME",
     "name of the original model, for the card", 0, 0, EXPORT},
    {"allow-code", 0, FM_CLI_FLAG, &asked.options.allow_code, NULL,
     "keep code of the checkpoint's author, and keys that load code", 0, 0, EXPORT},
    {"keep-config", 0, FM_CLI_LIST, asked.options.keep_config, "KEY",
     "keep this key of config.json, which is otherwise left out", 0, 0, EXPORT},
    {"keep-extra", 0, FM_CLI_FLAG, &asked.options.keep_extra, NULL,
     "keep layers for multi-token prediction", 0, 0, EXPORT},
    {"no-check", 0, FM_CLI_FLAG, &asked.options.no_check, NULL,
     "do not check weights against the bundle's checksums", 0, 0, EXPORT},
};

static bool reads_only(const struct fm_cli *cli)
{
    (void)cli;
    return asked.list || asked.directory;
}

int fm_pack_main(int argc, char **argv)
{
    struct fm_cli cli = {
        .tool = "fm-pack",
        .synopsis = "--model DIR [options] [STAGE] > family.fm\n"
                    "       fm-pack --list [--coverage FILE] BUNDLE\n"
                    "       fm-pack --export DIR --budget R|--fit SIZE "
                    "[options] BUNDLE",
        .about = "Pack a family into one bundle, list it, export it.",
        .often = "model output list export budget fit layout base-model force dry-run "
                 "json help "
                 "version",
        .groups = FM_CLI_MODEL | FM_CLI_OUTPUT | FM_CLI_OPTIONAL | FM_CLI_CONFINED,
        .confined = reads_only,
        .run = {.outputs.path = "-", .inputs.stream = "-"},
        .operands_max = 1,
        .scope = scope,
    };
    size_t used = strlen(asked.weights);
    fm_quantisers_choices(asked.weights + used, sizeof asked.weights - used);
    fm_cli_begin(&cli, argc, argv, own, FM_CLI_COUNT(own));
    struct fm_err err = {0};
    asked.options.layout = asked.layout < 0 ? FM_LAYOUT_DEFAULT : fm_layouts[asked.layout];
    if (asked.weight >= 0)
        asked.options.weights = asked.packing.weights =
            asked.weight ? FM_WEIGHTS_BF16 : FM_WEIGHTS_KEEP;
    if (asked.weight >= 2)
        asked.options.quantise = fm_quantisers[asked.weight - 2];
    asked.options.devices = (uint32_t)asked.devices;
    asked.options.pad_multiple = (uint32_t)asked.pad;
    int rc = read_cap(&asked.options, asked.cap, &err);
    if (!rc)
        rc = run_mode(&cli, &err);
    return fm_cli_end(&cli, rc, &err);
}
