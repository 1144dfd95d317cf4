/*
 * An export from beginning to end: open the family, choose one of its members according to the
 * options, plan the export, and write it as planned.
 */
#include "lib/export/export.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/bundle/archive.h"
#include "lib/base/clock.h"
#include "lib/base/units.h"
#include "lib/export/exportwriter.h"
#include "lib/export/exportplan.h"
#include "lib/export/trust.h"
#include "lib/stage/stage.h"

/* ---- choice of the member ---- */

static int choose_budget(const struct fm_exportplan *p, const struct fm_run_options *run,
                         int *index, struct fm_err *err)
{
    const struct fm_masks *masks = &p->from->budgets.masks;
    const struct fm_masks_wish wish = {.budget = p->options.budget,
                                       .step = fm_stage_budget_step(&p->from->bundle)};
    if (!fm_exportplan_keeps(&p->options, wish.budget))
        return fm_fail(err, FM_EUSAGE, "--budget %g is outside of --load-cap %g:%g", wish.budget,
                       p->options.load_low, p->options.load_high);
    int rc = fm_masks_choose(index, masks, p->first, p->last, &wish, err);
    if (!rc && !fm_masks_is_near(masks, *index, wish.budget))
        fm_run_note(run, "--budget %g: the nearest member is mask %d, budget %.4f", wish.budget,
                    *index, fm_masks_budget(masks, *index));
    return rc;
}

/* Whether the export is a stream.  Without a path, it is a directory that is only measured. */
static bool is_stream(const struct fm_run_options *run)
{
    return run->outputs.path && strcmp(run->outputs.path, "-") == 0;
}

/* Bytes of a tar stream of all files. */
static uint64_t stream_bytes(const struct fm_exportplan *p)
{
    uint64_t bytes = FM_ARCHIVE_END_BYTES;
    for (size_t i = 0; i < p->files; i++)
        bytes += fm_archive_header_bytes(p->file[i].bytes) + fm_archive_padded(p->file[i].bytes);
    return bytes;
}

/* Bytes of everything that the export would write. */
static uint64_t bytes_out(const struct fm_exportplan *p, const struct fm_run_options *run)
{
    return is_stream(run) ? stream_bytes(p) : fm_planned_bytes(p);
}

/* Members are in order of removed channels, so the first that fits is the largest. */
static int choose_fit(struct fm_exportplan *p, const struct fm_run_options *run, int *index,
                      struct fm_err *err)
{
    uint64_t least = UINT64_MAX;
    for (*index = 0; *index < p->from->budgets.masks.count; ++*index) {
        int rc = fm_exportplan_member(p, *index, err);
        if (rc)
            return rc;
        uint64_t bytes = bytes_out(p, run);
        if (bytes <= p->options.fit)
            return FM_OK;
        least = bytes < least ? bytes : least;
    }
    char given[32], needed[32];
    fm_units_bytes(given, p->options.fit);
    fm_units_bytes(needed, least);
    return fm_fail(err, FM_EUSAGE,
                   "no member fits in %s: the smallest takes %s (%llu bytes) in layout %s, all "
                   "files counted",
                   given, needed, (unsigned long long)least, p->options.layout->name);
}

/* Choose the member according to the options. */
static int choose(struct fm_exportplan *p, const struct fm_run_options *run, int *index,
                  struct fm_err *err)
{
    switch (p->options.by) {
    case FM_BY_FIT:
        return choose_fit(p, run, index, err);
    case FM_BY_DEFAULT:
        *index = p->first;
        return FM_OK;
    case FM_BY_BUDGET:
        break;
    }
    return choose_budget(p, run, index, err);
}

/* ---- the plan ---- */

/* Set what rounding up costs (no bytes if every expert is stored at full width anyway) and what a
 * load cap saves. */
static void report_channels(struct fm_export_report *r, const struct fm_exportplan *p)
{
    r->channels_layout = p->widths.by_layout;
    r->bytes_layout = fm_planned_channel_bytes(p, p->widths.by_layout);
    r->channels_pad = p->widths.by_pad;
    r->bytes_pad = p->widths.full ? 0 : fm_planned_channel_bytes(p, p->widths.by_pad);
    if (!p->options.layout->all_members)
        return;
    r->members = p->last - p->first + 1;
    r->channels_freed = fm_planned_freed(p);
    r->bytes_freed = fm_planned_channel_bytes(p, r->channels_freed);
}

/* True if the export holds every channel although the mask removes some, which is possible in
 * layouts with one width for many experts. */
static bool removes_nothing(const struct fm_exportplan *p)
{
    return !p->widths.full && p->from->budgets.masks.mask[p->index].removed > 0 &&
           fm_planned_channels_all(p) == fm_masks_channels(&p->from->budgets.masks);
}

static int plan(struct fm_exportplan *p, const struct fm_run_options *run,
                struct fm_export_report *r, struct fm_err *err)
{
    int index = 0, rc = choose(p, run, &index, err);
    if (!rc)
        rc = fm_exportplan_member(p, index, err);
    if (rc)
        return rc;
    *r = (struct fm_export_report){.index = index,
                                   .budget = p->from->budgets.budget[index].budget,
                                   .bytes_weights = fm_planned_weight_bytes(p),
                                   .bytes_out = bytes_out(p, run),
                                   .bytes_memory = fm_exportwriter_memory(p, is_stream(run)),
                                   .files = (int)p->files};
    r->width_uniform = p->options.layout->one_width ? p->widths.widest : 0;
    r->width_mean = (1 - r->budget) * p->from->config.I;
    snprintf(r->storage, sizeof r->storage, "%s", p->from->stored);
    r->codes = p->codes;
    r->extra = p->from->extra;
    report_channels(r, p);
    r->removes_nothing = removes_nothing(p);
    if (fm_stage_shard_bytes(&r->bytes_source, &p->from->bundle, err))
        return err->code;
    r->larger = fm_planned_larger(p, r->bytes_source);
    r->break_even = fm_planned_break_even(p, r->bytes_source);
    return !run->outputs.path || is_stream(run)
               ? FM_OK
               : fm_run_space(run->outputs.path, "export", r->bytes_out, &r->bytes_free, err);
}

/* ---- the whole export ---- */

/* Read the bundle's model as the planned export of it is read: values are rounded as in a
 * checkpoint, but experts' codes that our modelling file reads are exact. */
static void read_as(struct fm_model *model, const struct fm_exportplan *p)
{
    fm_model_narrow(model, p->widths.kept,
                    p->coded == FM_CODED_EXPERTS ? FM_MODEL_ROUND_REST : FM_MODEL_ROUND_ALL,
                    p->options.quantise, fm_packed_at(&p->packed, 0));
}

/* FM_EUSAGE if the layout cannot keep what there is, FM_ECONFIG if it requires keep_extra. */
static int check_parts(const struct fm_export_options *o, const struct fm_opened *from,
                       struct fm_err *err)
{
    bool whole = from->config.family->wrapper_form && !from->config.fused &&
                 o->layout->names == FM_NAMING_STOCK;
    const char *text = o->layout->cannot[FM_WITH_PARTS];
    if (o->keep_extra && text && fm_extra_others(&from->extra))
        return fm_fail(err, FM_EUSAGE, "--keep-extra: layout %s %s; use another layout",
                       o->layout->name, text);
    if (!o->keep_extra && whole)
        return fm_fail(
            err, FM_ECONFIG,
            "layout %s: transformers loads the text part of %s under other tensor names "
            "than the whole model; use --keep-extra, or a layout with our modelling file",
            o->layout->name, from->config.family->name);
    return FM_OK;
}

/* True if the path is a directory, so that it cannot be a bundle. */
static bool is_checkpoint(const char *path)
{
    struct stat st;
    return path && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Plan the export; then write it, or if `model` is not NULL, call read_as. */
static int export(const struct fm_run_options *run, const struct fm_export_options *options,
                  bool write, struct fm_model *model, struct fm_export_report *report,
                  struct fm_err *err)
{
    struct fm_opened opened = {0};
    struct fm_checkpoint cp = {0};
    struct fm_exportplan p = {0};
    const char *path = run->inputs.stream ? run->inputs.stream : "-";
    *report = (struct fm_export_report){0};
    int rc = FM_OK, needs = FM_OPENED_WEIGHTS | (options->no_check ? 0 : FM_OPENED_CHECKSUMS);
    bool foreseen = !write && is_checkpoint(path);
    if (fm_exportplan_check(options, err) ||
        (foreseen ? fm_opened_foresee(&opened, &cp, path, options->weights, err)
                  : fm_opened_open(&opened, path, (unsigned)needs, err)) ||
        check_parts(options, &opened, err) || fm_exportplan_begin(&p, &opened, options, err) ||
        plan(&p, run, report, err))
        rc = err->code;
    if (!rc && model)
        read_as(model, &p);
    else if (!rc)
        fm_trust_tell(&p, run);
    if (!rc && write)
        rc = fm_exportwriter_write(&p, run, err);
    fm_planned_release(&p);
    fm_opened_release(&opened);
    fm_checkpoint_close(&cp);
    return rc;
}

struct timed {
    const struct fm_run_options *run;
    struct fm_export_report *report;
    double began;
};

static int announce(void *self, struct fm_err *err)
{
    const struct timed *t = self;
    t->report->seconds = fm_clock_now() - t->began;
    return fm_run_announce(t->run, err);
}

int fm_export(const struct fm_run_options *run, const struct fm_export_options *options,
              struct fm_export_report *report, struct fm_err *err)
{
    struct timed timed = {run, report, fm_clock_now()};
    struct fm_run_options own = *run;
    own.announce = (struct fm_announce){announce, &timed};
    return export(&own, options, true, NULL, report, err);
}

int fm_export_plan(const struct fm_run_options *run, const struct fm_export_options *options,
                   struct fm_export_report *report, struct fm_err *err)
{
    return export(run, options, false, NULL, report, err);
}

int fm_export_read(struct fm_model *model, const struct fm_run_options *run,
                   const struct fm_export_options *options, struct fm_export_report *report,
                   struct fm_err *err)
{
    struct fm_run_options own = *run;
    own.outputs.path = NULL;
    return export(&own, options, false, model, report, err);
}
