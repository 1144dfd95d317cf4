/*
 * An export from beginning to end: the family is opened, options choose one of its members, the
 * plan of that member says what there will be, and the writer follows it.
 */
#include "lib/export/export.h"

#include <string.h>

#include "formats/file/file.h"
#include "lib/base/clock.h"
#include "lib/base/units.h"
#include "lib/export/exportwriter.h"
#include "lib/export/planner.h"
#include "lib/export/trust.h"
#include "lib/masks/choose.h"
#include "lib/stage/stage.h"

/* ---- which member ---- */

static int choose_budget(const struct fm_exportplan *p, const struct fm_run_options *run,
                         int *index, struct fm_err *err)
{
    const struct fm_masks *masks = &p->from->budgets.masks;
    const struct fm_masks_wish wish = {.budget = p->options.budget,
                                       .step = fm_stage_budget_step(&p->from->bundle),
                                       .exact = p->options.exact};
    if (!fm_planner_keeps(&p->options, wish.budget))
        return fm_fail(err, FM_EUSAGE, "--budget %g is outside of --load-cap %g:%g", wish.budget,
                       p->options.load_low, p->options.load_high);
    int rc = fm_masks_choose(index, masks, p->first, p->last, &wish, err);
    if (!rc && !fm_masks_is_near(masks, *index, wish.budget))
        fm_run_note(run, "--budget %g: the nearest member is mask %d, budget %.4f", wish.budget,
                    *index, fm_masks_budget(masks, *index));
    return rc;
}

/* All that the export would write. */
static uint64_t bytes_out(const struct fm_exportplan *p, const struct fm_run_options *run)
{
    return strcmp(run->output, "-") == 0 ? fm_exportplan_stream_bytes(p) : fm_exportplan_bytes(p);
}

/* Budgets come with rising number of removed channels, so the first that fits is the largest. */
static int choose_fit(struct fm_exportplan *p, const struct fm_run_options *run, int *index,
                      struct fm_err *err)
{
    uint64_t least = UINT64_MAX;
    for (*index = 0; *index < p->from->budgets.masks.count; ++*index) {
        int rc = fm_planner_member(p, *index, err);
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

static int choose_mask(const struct fm_exportplan *p, int *index, struct fm_err *err)
{
    int n = p->from->budgets.masks.count;
    *index = p->options.mask;
    if (*index < 0 || *index >= n)
        return fm_fail(err, FM_EUSAGE, "no mask %d: the family has masks 0 to %d", *index, n - 1);
    if (*index < p->first || *index > p->last)
        return fm_fail(err, FM_EUSAGE, "mask %d is outside of --load-cap, which keeps %d to %d",
                       *index, p->first, p->last);
    return FM_OK;
}

/* The member that the options choose. */
static int choose(struct fm_exportplan *p, const struct fm_run_options *run, int *index,
                  struct fm_err *err)
{
    switch (p->options.by) {
    case FM_BY_FIT:
        return choose_fit(p, run, index, err);
    case FM_BY_MASK:
        return choose_mask(p, index, err);
    case FM_BY_DEFAULT:
        *index = p->first;
        return FM_OK;
    case FM_BY_BUDGET:
        break;
    }
    return choose_budget(p, run, index, err);
}

/* ---- what it will be ---- */

/* What rounding up costs, nothing where every expert is stored at full width; what a cap frees. */
static void report_channels(struct fm_export_report *r, const struct fm_exportplan *p)
{
    uint64_t channel = fm_opened_channel_weights(p->from);
    r->channels_layout = p->widths.by_layout;
    r->bytes_layout = p->widths.by_layout * channel;
    r->channels_pad = p->widths.by_pad;
    r->bytes_pad = fm_exportplan_full(p) ? 0 : p->widths.by_pad * channel;
    if (!r->layout->all_members)
        return;
    r->members = p->last - p->first + 1;
    r->channels_freed = fm_exportplan_freed(p);
    r->bytes_freed = r->channels_freed * channel;
}

static int check_space(struct fm_export_report *r, const char *output, struct fm_err *err)
{
    if (strcmp(output, "-") == 0)
        return FM_OK;
    return fm_run_space(output, "export", r->bytes_out, &r->bytes_free, err);
}

static int plan(struct fm_exportplan *p, const struct fm_run_options *run,
                struct fm_export_report *r, struct fm_err *err)
{
    const struct fm_layout *layout = p->options.layout;
    int index = 0, rc = choose(p, run, &index, err);
    if (!rc)
        rc = fm_planner_member(p, index, err);
    if (rc)
        return rc;
    *r = (struct fm_export_report){.layout = layout,
                                   .index = index,
                                   .budget = p->from->budgets.budget[index].budget,
                                   .bytes_weights = fm_exportplan_weight_bytes(p),
                                   .bytes_out = bytes_out(p, run),
                                   .bytes_memory = fm_exportwriter_memory(p),
                                   .files = (int)p->files};
    r->width_uniform = layout->one_width ? p->widths.stored[0] : 0;
    r->extra = p->from->extra;
    report_channels(r, p);
    return check_space(r, run->output, err);
}

static int export(const struct fm_run_options *run, const struct fm_export_options *options,
                  bool write, struct fm_export_report *report, struct fm_err *err)
{
    struct fm_opened opened = {0};
    struct fm_exportplan p = {0};
    int rc = fm_planner_check(options, err);
    if (!rc)
        rc = fm_opened_open(&opened, run->input ? run->input : "-",
                            FM_OPENED_WEIGHTS | (options->no_check ? 0 : FM_OPENED_CHECKSUMS), err);
    if (!rc)
        rc = fm_planner_begin(&p, &opened, options, err);
    if (!rc)
        rc = plan(&p, run, report, err);
    if (!rc)
        fm_trust_tell(&p, run);
    if (!rc && write)
        rc = fm_exportwriter_write(&p, run, err);
    fm_exportplan_release(&p);
    fm_opened_release(&opened);
    return rc;
}

int fm_export(const struct fm_run_options *run, const struct fm_export_options *options,
              struct fm_export_report *report, struct fm_err *err)
{
    double start = fm_clock_now();
    *report = (struct fm_export_report){0};
    int rc = export(run, options, true, report, err);
    report->seconds = fm_clock_now() - start;
    return rc;
}

int fm_export_plan(const struct fm_run_options *run, const struct fm_export_options *options,
                   struct fm_export_report *report, struct fm_err *err)
{
    *report = (struct fm_export_report){0};
    return export(run, options, false, report, err);
}
