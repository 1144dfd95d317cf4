/*
 * fm-pack --export: the result, as lines for people and as JSON.  The descriptor of a layout
 * determines the lines.
 */
#include "cmd/exporting.h"

#include <string.h>

#include "cmd/show.h"
#include "lib/base/units.h"
#include "lib/run/report.h"

static cJSON *export_json(const struct fm_cli *cli, const struct fm_export_options *options,
                          const struct fm_export_report *r)
{
    cJSON *o = fm_report_begin("fm-pack");
    fm_json_add_bool(o, "dry_run", cli->dry_run);
    fm_json_add_string(o, "layout", r->layout->name);
    if (r->layout->runtime)
        fm_json_add_string(o, "for", r->layout->runtime);
    fm_json_add_uint(o, "index", (uint64_t)r->index);
    if (options->by == FM_BY_BUDGET)
        fm_json_add_double(o, "budget_asked", options->budget);
    fm_json_add_double(o, "budget", r->budget);
    fm_json_add_uint(o, "width_uniform", r->width_uniform);
    fm_json_add_double(o, "width_mean", r->width_mean);
    fm_json_add_uint(o, "channels_layout", r->channels_layout);
    fm_json_add_uint(o, "bytes_layout", r->bytes_layout);
    fm_json_add_uint(o, "channels_pad", r->channels_pad);
    fm_json_add_uint(o, "bytes_pad", r->bytes_pad);
    if (r->layout->all_members) {
        fm_json_add_uint(o, "members", (uint64_t)r->members);
        fm_json_add_uint(o, "channels_freed", r->channels_freed);
        fm_json_add_uint(o, "bytes_freed", r->bytes_freed);
    }
    fm_json_add_bool(o, "removes_nothing", r->removes_nothing);
    fm_json_add_uint(o, "bytes_source", r->bytes_source);
    fm_json_add_double(o, "break_even", r->break_even);
    fm_json_add_uint(o, "bytes_weights", r->bytes_weights);
    fm_json_add_uint(o, "bytes_out", r->bytes_out);
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
    return o;
}

static void rounding_line(FILE *out, const char *would, const char *name, uint64_t channels,
                          uint64_t bytes, const char *why)
{
    char text[32];
    fm_units_bytes(text, bytes);
    if (channels)
        fprintf(out, "%-9s%12s  %sfor %llu channels in addition to the mask's: %s\n", name, text,
                would, (unsigned long long)channels, why);
}

/* Warn if the export removes nothing, or is not smaller than the original. */
static void source_lines(FILE *out, const char *would, const char *padding,
                         const struct fm_export_report *r)
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
                *would ? "would remove nothing: " : "",
                r->layout->one_width ? "" : " of each layer");
    if (!r->larger)
        return;
    fprintf(out, "larger  %13s  %s the checkpoint's weight files; ", source,
            *would ? "it would be larger than" : "is the size of");
    if (r->break_even <= 1)
        fprintf(out, "the export is smaller from budget %.2f on\n", r->break_even);
    else
        fputs("this layout is larger at every budget\n", out);
}

static void export_text(FILE *out, bool dry_run, const struct fm_export_options *options,
                        const struct fm_export_report *r)
{
    char all[32], freed[32];
    const char *would = dry_run ? "would be " : "";
    const char *padding = options->devices > 1        ? "--tp"
                          : options->pad_multiple > 1 ? "--pad-multiple"
                                                      : "--weights";
    fm_units_bytes(all, r->bytes_out);
    fm_units_bytes(freed, r->bytes_freed);
    fprintf(out, "export   %s%s, budget %.4f (mask %d)\n", would, r->layout->name, r->budget,
            r->index);
    if (r->layout->one_width)
        fprintf(out, "width    %s%u channels in every expert; the mask leaves %.1f on average\n",
                would, r->width_uniform, r->width_mean);
    rounding_line(out, would, "layout", r->channels_layout, r->bytes_layout, r->layout->leveled);
    if (options->load_cap)
        fprintf(
            out,
            "%-9s%12s  %sof %llu channels that none of the exported budgets uses (budgets: %d)\n",
            "freed", freed, dry_run ? "would be freed, " : "",
            (unsigned long long)r->channels_freed, r->members);
    rounding_line(out, would, "padding", r->channels_pad, r->bytes_pad, padding);
    if (options->quantise)
        fprintf(out, "%-9s%12s  %s%s\n", "experts", options->quantise->name, would,
                options->quantise->about);
    else if (r->storage[0])
        fprintf(out, "%-9s%12s  %s%s\n", "codes", r->codes ? "kept" : "not kept", would,
                r->storage);
    fm_show_bytes(out, "weights", r->bytes_weights,
                  dry_run ? "would be in weight files" : "of weight files");
    fm_show_extra(out, &r->extra,
                  dry_run ? options->keep_extra ? "would be kept" : "would be left out"
                  : options->keep_extra ? "kept"
                                        : "left out");
    fprintf(out, "%-9s%12s  %s all %d files\n", "all", all, dry_run ? "would be in" : "of",
            r->files);
    source_lines(out, would, padding, r);
}

struct shown {
    const struct fm_cli *cli;
    const struct fm_export_options *options;
    const struct fm_export_report *report;
};

static int show_report(void *self, struct fm_err *err)
{
    const struct shown *s = self;
    struct fm_cli_text text;
    if (fm_cli_text_open(&text, err))
        return err->code;
    export_text(text.out, s->cli->dry_run, s->options, s->report);
    return fm_cli_result(s->cli, &text, export_json(s->cli, s->options, s->report), err);
}

int fm_exporting(const struct fm_cli *cli, const struct fm_export_options *options,
                 struct fm_err *err)
{
    struct fm_export_report r = {0};
    struct shown shown = {cli, options, &r};
    struct fm_run_options run = cli->run;
    if (cli->dry_run)
        return fm_export_plan(&run, options, &r, err) ? err->code : show_report(&shown, err);
    run.announce = (struct fm_announce){show_report, &shown};
    return fm_export(&run, options, &r, err);
}
