/* fm-pack: make the bundle, list what it offers, export one member of the family. */
#include "cmd/cli.h"
#include "cmd/offer.h"
#include "lib/export.h"
#include "lib/pack.h"
#include "lib/report.h"

static void size_line(FILE *out, const char *name, uint64_t bytes, const char *what)
{
    char text[32];
    fm_cli_bytes(text, bytes);
    fprintf(out, "%-9s%12s%s%s\n", name, text, *what ? "  " : "", what);
}

static int pack(const struct fm_cli *cli, struct fm_err *err)
{
    struct fm_pack_report r = {0};
    struct fm_cli_text text;
    if (!cli->run.model)
        return fm_fail(err, FM_EUSAGE, "--model DIR is missing; see fm-pack --help");
    if ((cli->dry_run ? fm_pack_plan : fm_pack)(&cli->run, &r, err) != FM_OK ||
        fm_cli_text_open(&text, err) != FM_OK)
        return err->code;
    size_line(text.out, "weights", r.bytes_in, "read");
    size_line(text.out, "bundle", r.bytes_out, r.adapter ? "adapter merged" : "no adapter");
    size_line(text.out, "memory", r.bytes_memory, "at the most");
    fprintf(text.out, "%-9s%12d  of %d layers of %d experts\n", "budgets", r.budgets, r.layers,
            r.experts);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "tool", "fm-pack");
    cJSON_AddBoolToObject(o, "dry_run", cli->dry_run);
    fm_report_uint(o, "bytes_in", r.bytes_in);
    fm_report_uint(o, "bytes_out", r.bytes_out);
    fm_report_uint(o, "bytes_memory", r.bytes_memory);
    fm_report_uint(o, "bytes_free", r.bytes_free);
    fm_report_uint(o, "passes", (uint64_t)r.passes);
    fm_report_uint(o, "layers", (uint64_t)r.layers);
    fm_report_uint(o, "experts", (uint64_t)r.experts);
    fm_report_uint(o, "budgets", (uint64_t)r.budgets);
    fm_report_uint(o, "segments", (uint64_t)r.segments);
    cJSON_AddBoolToObject(o, "adapter", r.adapter);
    fm_report_uint(o, "merged", r.merged);
    fm_report_double(o, "seconds", r.seconds);
    return fm_cli_result(cli, &text, o, err);
}

static int export(const struct fm_cli *cli, const struct fm_export_options *options,
                  struct fm_err *err)
{
    struct fm_export_report r = {0};
    struct fm_cli_text text;
    if ((options->budget < 0) == (options->fit == 0))
        return fm_fail(err, FM_EUSAGE, "--export needs one of --budget R and --fit SIZE");
    if ((cli->dry_run ? fm_export_plan : fm_export)(&cli->run, options, &r, err) != FM_OK ||
        fm_cli_text_open(&text, err) != FM_OK)
        return err->code;
    fprintf(text.out, "export   %s, budget %.4f (mask %d)\n", fm_layout_name(r.layout), r.budget,
            r.index);
    if (r.layout == FM_LAYOUT_UNIFORM)
        fprintf(text.out, "width    %u channels in every expert\n", r.width_uniform);
    size_line(text.out, "weights", r.bytes_weights, "");
    size_line(text.out, "all", r.bytes_out, "");
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "tool", "fm-pack");
    cJSON_AddBoolToObject(o, "dry_run", cli->dry_run);
    cJSON_AddStringToObject(o, "layout", fm_layout_name(r.layout));
    fm_report_uint(o, "index", (uint64_t)r.index);
    fm_report_double(o, "budget", r.budget);
    fm_report_uint(o, "width_uniform", r.width_uniform);
    fm_report_uint(o, "bytes_weights", r.bytes_weights);
    fm_report_uint(o, "bytes_out", r.bytes_out);
    fm_report_uint(o, "bytes_memory", r.bytes_memory);
    fm_report_uint(o, "bytes_free", r.bytes_free);
    fm_report_uint(o, "files", (uint64_t)r.files);
    fm_report_double(o, "seconds", r.seconds);
    return fm_cli_result(cli, &text, o, err);
}

int main(int argc, char **argv)
{
    bool list = false;
    const char *directory = NULL;
    int layout = FM_LAYOUT_RAGGED;
    struct fm_export_options options = {.budget = -1};
    const struct fm_cli_option own[] = {
        {"list", 'l', FM_CLI_FLAG, &list, NULL, "list the budgets of a bundle or stage stream", 0,
         0},
        {"export", 'x', FM_CLI_TEXT, &directory, "DIR",
         "make a checkpoint of one member; - is a tar stream", 0, 0},
        {"budget", 'b', FM_CLI_REAL, &options.budget, "R",
         "the member nearest to this share of channels removed", 0, 1},
        {"fit", 0, FM_CLI_SIZE, &options.fit, "SIZE",
         "the largest member whose weights fit into SIZE", 0, 0},
        {"layout", 0, FM_CLI_CHOICE, &layout, "native|ragged|padded|uniform",
         "form of the export (default: ragged)", 0, 0},
    };
    struct fm_cli cli = {
        .tool = "fm-pack",
        .synopsis = "--model DIR [options] [STAGE] > family.fm\n"
                    "       fm-pack --list BUNDLE\n"
                    "       fm-pack --export DIR --budget R|--fit SIZE [--layout NAME] BUNDLE",
        .about = "Pack a family into one bundle, list it, export one member of it.",
        .groups = FM_CLI_MODEL | FM_CLI_OUTPUT | FM_CLI_OPTIONAL,
        .run = {.output = "-", .input = "-"},
        .operands_max = 1,
    };
    fm_cli_begin(&cli, argc, argv, own, FM_CLI_COUNT(own));
    struct fm_err err = {0};
    int code;
    if (cli.operands)
        cli.run.input = cli.operand[0];
    options.layout = (enum fm_layout)layout;
    if (list && directory) {
        code = fm_fail(&err, FM_EUSAGE, "--list and --export exclude each other");
    } else if (list) {
        cli.run.output = NULL;
        code = fm_offer(&cli, &err);
    } else if (directory) {
        cli.run.output = directory;
        code = export(&cli, &options, &err);
    } else {
        code = pack(&cli, &err);
    }
    return fm_cli_end(&cli, code, &err);
}
