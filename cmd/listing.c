/* fm-pack --list: the members of a family, and the size of each in every form of export. */
#include "cmd/listing.h"
#include "cmd/show.h"
#include "lib/base/printable.h"
#include "lib/base/units.h"

#include <string.h>

#include "lib/export/kept.h"
#include "lib/export/list.h"
#include "lib/stage/stage.h"

#define ROWS_ALL 40  /* a table of at most this many members shows all of them */
#define ROWS_EVEN 20 /* a larger one, if fewer than three are measured, shows about this many */

static void format_count(char text[32], uint64_t n)
{
    fm_units_bytes(text, n);
    for (char *p = text; *p; p++)
        if (*p == 'B')
            *p = '\0';
        else if (*p == 'k')
            *p = 'K';
}

/*
 * The table of a large family has the first and the last member, the recommended one, and the
 * measured ones, or evenly spaced ones if fewer than three are measured.  The JSON has all.
 */
static bool is_shown(const struct fm_list *list, int row)
{
    int measured = 0;
    if (list->rows <= ROWS_ALL || row == 0 || row == list->rows - 1)
        return true;
    for (int i = 0; i < list->rows; i++)
        measured += list->row[i].known && !list->row[i].interpolated;
    if (measured < 3 ? row % (list->rows / ROWS_EVEN) == 0
                     : list->row[row].known && !list->row[row].interpolated)
        return true;
    return fm_list_recommended(list) == row;
}

static int count_shown(const struct fm_list *list)
{
    int n = 0;
    for (int i = 0; i < list->rows; i++)
        n += is_shown(list, i);
    return n;
}

static void row_text(FILE *out, const struct fm_list *list, int row)
{
    const struct fm_list_row *r = &list->row[row];
    char bytes[32], params[32], active[32], ce[32];
    fm_units_bytes(bytes, r->bytes);
    format_count(params, r->params);
    format_count(active, r->params_active);
    fprintf(out, "%6.4f  %-14s %5u %8.1f %5u %9s %9s %9s", r->budget, r->method, r->width_min,
            r->width_mean, r->width_max, bytes, params, active);
    if (r->known) {
        snprintf(ce, sizeof ce, "%s%.4f", r->interpolated ? "~" : "", r->ce);
        fprintf(out, " %9s %8.4f %6.1f%s", ce, r->kl, 100 * r->agree,
                r->recovered ? "  recovered" : "");
    }
    for (int k = 0; r->known && k < list->texts.count; k++) {
        int width = (int)strlen(list->texts.name[k]);
        fprintf(out, " %*.4f", width > 8 ? width : 8, r->kind[k]);
    }
    if (r->worst >= 0)
        fprintf(out, "  %+.4f %s", r->lost, list->texts.name[r->worst]);
    if (fm_list_recommended(list) == row)
        fputs("  <- recommended", out);
    else if (r->removed > 0 && r->known && r->agree < FM_LIST_AGREEMENT)
        fputs("  expect loops", out);
    fputc('\n', out);
}

static void form_row(FILE *out, const struct fm_list *list, const struct fm_list_row *r)
{
    fprintf(out, "%6.4f", r->budget);
    for (int i = 0; i < list->kinds; i++) {
        char bytes[32];
        bool possible = !list->packed || r->form[i].files > 0;
        fm_units_bytes(bytes, list->packed ? r->form[i].files : r->form[i].tensors);
        fprintf(out, " %10s", possible ? bytes : "-");
    }
    fputc('\n', out);
}

/* Print the size of every member in each layout. */
static void form_table(FILE *out, const struct fm_list *list)
{
    fprintf(out, "\nbytes of an export, %s\nbudget", list->packed ? "all files" : "tensors only");
    for (int i = 0; i < list->kinds; i++)
        fprintf(out, " %10s", list->kind[i].name);
    fputc('\n', out);
    for (int i = 0; i < list->rows; i++)
        if (is_shown(list, i))
            form_row(out, list, &list->row[i]);
}

/* Print the size of an export in FM_LAYOUT_ROUNDED with experts rounded to each possible format. */
static void format_table(FILE *out, const struct fm_list *list)
{
    bool any = false;
    for (int r = 0; r < list->rows; r++)
        for (int i = 0; fm_quantisers[i]; i++)
            any = any || list->row[r].format[i].tensors > 0;
    if (!any)
        return;
    fprintf(out,
            "\nbytes of a %s export with --weights FORMAT, tensors only; - if the sizes "
            "do not fit the format\nbudget",
            FM_LAYOUT_ROUNDED->name);
    for (int i = 0; fm_quantisers[i]; i++)
        fprintf(out, " %9s", fm_quantisers[i]->name);
    fputc('\n', out);
    for (int r = 0; r < list->rows; r++) {
        if (!is_shown(list, r))
            continue;
        fprintf(out, "%6.4f", list->row[r].budget);
        for (int i = 0; fm_quantisers[i]; i++) {
            char bytes[32];
            fm_units_bytes(bytes, list->row[r].format[i].tensors);
            fprintf(out, " %9s", list->row[r].format[i].tensors ? bytes : "-");
        }
        fputc('\n', out);
    }
}

/* Print, for each layout, the budget from which it is smaller than the quantised checkpoint. */
static void smaller_line(FILE *out, const struct fm_list *list)
{
    char stored[32];
    fm_units_bytes(stored, list->bytes_stored);
    fprintf(out, "smaller than the checkpoint's %s", stored);
    for (int k = 0; k < list->kinds; k++) {
        int first = 0;
        while (first < list->rows && !(list->row[first].form[k].files > 0 &&
                                       list->row[first].form[k].files < list->bytes_stored))
            first++;
        fprintf(out, "%s %s ", k ? "," : ":", list->kind[k].name);
        if (first < list->rows)
            fprintf(out, "from %.4f", list->row[first].budget);
        else
            fputs("never", out);
    }
    fputc('\n', out);
}

static void legend(FILE *out, const struct fm_list *list)
{
    fprintf(out,
            "budget: share of expert channels removed; min mean max: channels of an expert; bytes: "
            "tensors of a ragged export%s; active: parameters a token uses\nCE KL agree%%: on "
            "held-out text, KL and agree%% against the original; ~: interpolated between the "
            "nearest measured budgets\n"
            "the losses are of the mask's widths and the bundle's values: not of layouts that "
            "change widths, nor of --weights FORMAT\n",
            list->codes ? " in memory, decoded" : "");
    if (fm_list_recommended(list) >= 0)
        fprintf(out, "recommended: the smallest with agree%% of at least %g\n",
                100 * FM_LIST_AGREEMENT);
    fprintf(out,
            "expect loops: with agree%% below %g long answers often repeat themselves; fm-bench "
            "loops counts them\n",
            100 * FM_LIST_AGREEMENT);
    if (list->texts.count)
        fputs("last columns: CE of each kind of held-out text, and the kind whose CE is most above "
              "that of the first row\n",
              out);
}

static void member_table(FILE *out, const struct fm_list *list)
{
    fprintf(out, "%6s  %-14s %5s %8s %5s %9s %9s %9s %9s %8s %6s", "budget", "method", "min",
            "mean", "max", "bytes", "params", "active", "CE", "KL", "agree%");
    for (int k = 0; k < list->texts.count; k++)
        fprintf(out, " %8s", list->texts.name[k]);
    fprintf(out, "%s\n", list->texts.count ? "  worst" : "");
    for (int i = 0; i < list->rows; i++)
        if (is_shown(list, i))
            row_text(out, list, i);
}

static void describe_list(const struct fm_result *r, const struct fm_list *list)
{
    FILE *out = r->text;
    fm_list_json(r->json, list);
    fm_printable_write(out, list->family);
    fprintf(out, ", stage %s: %d layers, ", list->stage, list->layers);
    if (list->M < list->layers)
        fprintf(out, "%d of them with ", list->M);
    fprintf(out, "%d experts (%d per token), hidden %d, channels %d, %s\n", list->experts,
            list->experts_per_token, list->hidden, list->channels, list->dtype);
    fm_show_extra(r, &list->extra, "kept, and left out of exports without --keep-extra");
    if (list->storage[0]) {
        char stored[32], plain[32];
        fm_units_bytes(stored, list->bytes_stored);
        fm_units_bytes(plain, list->bytes_plain);
        fprintf(out, "checkpoint stored as %s, %s; the same weights in %s %s\n", list->storage,
                stored, list->dtype, plain);
    }
    if (list->granularity[0] && strcmp(list->granularity, "expert") != 0)
        fprintf(out, "one width per %s\n", list->granularity);
    if (list->adapter_budget >= 0)
        fprintf(out, "adapter trained at budget %.4f\n", list->adapter_budget);
    for (int i = 0; i < list->serves; i++)
        fprintf(out, "%s %.4f%s", i ? "," : "down projections solved for budgets",
                list->served[i].budget, i + 1 < list->serves ? "" : "\n");
    if (list->rows == 0) {
        fputs("no budgets yet: fm-train makes them\n", out);
        return;
    }
    legend(out, list);
    member_table(out, list);
    form_table(out, list);
    if (list->packed && list->storage[0])
        smaller_line(out, list);
    if (list->packed)
        format_table(out, list);
    int shown = count_shown(list);
    if (shown < list->rows)
        fprintf(out, "\n%d of %d members are shown; --json has all\n", shown, list->rows);
}

/* Print what every member keeps of each kind of text. */
static void kept_table(FILE *out, const struct fm_list *list, const struct fm_kept *kept)
{
    int width[FM_KINDS_MAX];
    fputs("\nshare of the scores of each ranking that a member keeps, and the least\nbudget", out);
    for (int k = 0; k < kept->kinds.count; k++) {
        width[k] = (int)strlen(kept->kinds.name[k]);
        width[k] = width[k] > 6 ? width[k] : 6;
        fprintf(out, " %*s", width[k], kept->kinds.name[k]);
    }
    fputs("  least\n", out);
    for (int i = 0; i < list->rows; i++) {
        if (!is_shown(list, i))
            continue;
        fprintf(out, "%6.4f", list->row[i].budget);
        for (int k = 0; k < kept->kinds.count; k++)
            fprintf(out, " %*.4f", width[k], kept->share[i][k]);
        fprintf(out, "  %s\n", kept->kinds.name[fm_kept_least(kept, i)]);
    }
}

/* A list and, with --coverage, what members keep. */
struct listing {
    struct fm_list list;
    struct fm_kept kept;
};

static void describe(const struct fm_result *r, const void *self)
{
    const struct listing *l = self;
    describe_list(r, &l->list);
    if (l->kept.kinds.count == 0)
        return;
    kept_table(r->text, &l->list, &l->kept);
    fm_kept_add(cJSON_GetObjectItemCaseSensitive(r->json, "budgets"), &l->kept);
}

int fm_listing_print(const struct fm_cli *cli, const char *const *coverage, struct fm_err *err)
{
    struct fm_opened opened = {0};
    struct listing l = {0};
    struct fm_shown shown = {cli, "fm-pack", describe, &l, NULL};
    int rc = FM_OK;
    if (fm_stage_open(&opened.bundle, cli->run.inputs.stream, coverage[0] ? FM_MEMBER_MASKS : NULL,
                      err) ||
        fm_list_fill(&l.list, &opened, true, err) ||
        (coverage[0] && fm_kept_fill(&l.kept, &opened, coverage, err)) || fm_show(&shown, err))
        rc = err->code;
    fm_kept_release(&l.kept);
    fm_list_release(&l.list);
    fm_opened_release(&opened);
    return rc;
}
