/*
 * fm-pack --export: the result, as lines for people and as JSON.
 */
#include "cmd/exporting.h"

#include <string.h>

#include "cmd/show.h"
#include "lib/base/units.h"

/* Channels in addition to the mask's, in the JSON as channels_KEY and bytes_KEY. */
static void describe_rounding(const struct fm_result *out, const char *would, const char *label,
                              const char *const keys[2], uint64_t channels, uint64_t bytes,
                              const char *why)
{
    fm_json_add_uint(out->json, keys[0], channels);
    fm_json_add_uint(out->json, keys[1], bytes);
    if (channels)
        fm_row_bytes(out, label, NULL, bytes, "%sfor %llu channels in addition to the mask's: %s",
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
                *would ? "would remove nothing: " : "", r->one_width ? "" : " of each layer");
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
    cJSON *o = out->json;
    fprintf(out->text, "export   %s%s, budget %.4f (mask %d)\n", would, r->layout, r->budget,
            r->index);
    fm_json_add_string(o, "layout", r->layout);
    if (r->runtime)
        fm_json_add_string(o, "for", r->runtime);
    fm_json_add_uint(o, "index", (uint64_t)r->index);
    if (options->by == FM_BY_BUDGET)
        fm_json_add_double(o, "budget_asked", options->budget);
    fm_json_add_double(o, "budget", r->budget);
    if (r->one_width)
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

static void describe(const struct fm_result *out, const void *self)
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
    cJSON *o = out->json;
    fm_json_add_bool(o, "dry_run", dry_run);
    describe_member(out, would, options, r);
    describe_rounding(out, would, "layout", layout, r->channels_layout, r->bytes_layout,
                      r->leveled);
    if (options->load_cap)
        fm_row_bytes(out, "freed", NULL, r->bytes_freed,
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
        fm_row_word(out, "experts", NULL, options->quantise->name, "%s%s", would,
                    options->quantise->about);
    else if (r->storage[0])
        fm_row_word(out, "codes", NULL, r->codes ? "kept" : "not kept", "%s%s", would, r->storage);
    fm_row_bytes(out, "weights", "bytes_weights", r->bytes_weights, "%s",
                 dry_run ? "would be in weight files" : "of weight files");
    fm_show_extra(out, &r->extra,
                  dry_run ? options->keep_extra ? "would be kept" : "would be left out"
                  : options->keep_extra ? "kept"
                                        : "left out");
    fm_row_bytes(out, "all", "bytes_out", r->bytes_out, "%s all %d files",
                 dry_run ? "would be in" : "of", r->files);
    source_lines(out->text, would, padding, r);
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

int fm_exporting(const struct fm_cli *cli, const struct fm_export_options *options,
                 struct fm_err *err)
{
    struct fm_export_report r = {0};
    struct exporting x = {cli->dry_run, options, &r};
    struct fm_shown shown = {cli, "fm-pack", describe, &x, NULL};
    struct fm_run_options run = cli->run;
    if (cli->dry_run)
        return fm_export_plan(&run, options, &r, err) ? err->code : fm_show(&shown, err);
    run.announce = (struct fm_announce){fm_show, &shown};
    return fm_export(&run, options, &r, err);
}
