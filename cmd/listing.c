/*
 * fm-pack --list: the members of a family, the size of each in every form of export, and over how
 * many devices it can be split.
 */
#include "cmd/listing.h"
#include "cmd/show.h"
#include "lib/base/mem.h"
#include "lib/base/printable.h"
#include "lib/base/units.h"

#include <stdlib.h>
#include <string.h>

#include "lib/export/list.h"
#include "lib/export/runtimes.h"

#define ROWS_ALL 40   /* a table of at most this many members shows all of them */
#define ROWS_EVEN 20  /* a larger one, if fewer than three are measured, shows about this many */
#define CONTEXT 32768 /* tokens of one sequence: a common length in serving */

static void format_count(char text[32], uint64_t n)
{
    fm_units_bytes(text, n);
    for (char *p = text; *p; p++)
        if (*p == 'B')
            *p = '\0';
        else if (*p == 'k')
            *p = 'K';
}

/* Print why a row is marked: "  <- 80 GB, recommended". */
static void marks(FILE *out, const struct fm_list *list, int row, uint64_t context)
{
    const char *before = "  <- ";
    for (int card = FM_CARDS - 1; card >= 0; card--) {
        bool smaller = card > 0 && fm_list_first_on_card(list, card - 1, context) == row;
        if (smaller || fm_list_first_on_card(list, card, context) != row)
            continue;
        fprintf(out, "%s%d GB", before, (int)(fm_runtimes_cards[card] / 1000000000));
        before = ", ";
    }
    if (fm_list_recommended(list) == row)
        fprintf(out, "%srecommended", before);
}

/* True if the member is the first that fits a card, or the recommended one. */
static bool is_marked(const struct fm_list *list, int row, uint64_t context)
{
    for (int card = 0; card < FM_CARDS; card++)
        if (fm_list_first_on_card(list, card, context) == row)
            return true;
    return fm_list_recommended(list) == row;
}

/*
 * The table of a large family has the first and the last member, the marked ones, and the measured
 * ones, or evenly spaced ones if fewer than three are measured.  The JSON has all.
 */
static bool is_shown(const struct fm_list *list, int row, uint64_t context)
{
    int measured = 0;
    if (list->rows <= ROWS_ALL || row == 0 || row == list->rows - 1)
        return true;
    for (int i = 0; i < list->rows; i++)
        measured += list->row[i].known && !list->row[i].interpolated;
    if (measured < 3 ? row % (list->rows / ROWS_EVEN) == 0
                     : list->row[row].known && !list->row[row].interpolated)
        return true;
    return is_marked(list, row, context);
}

static int count_shown(const struct fm_list *list, uint64_t context)
{
    int n = 0;
    for (int i = 0; i < list->rows; i++)
        n += is_shown(list, i, context);
    return n;
}

static void row_text(FILE *out, const struct fm_list *list, int row, uint64_t context)
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
    marks(out, list, row, context);
    fputc('\n', out);
}

/* True if the tensor-parallel degrees of a form can differ between members. */
static bool tp_degrees_vary(const struct fm_list_kind *kind)
{
    return kind->layout->split == FM_SPLIT_EXPERTS && !kind->layout->full;
}

static bool tp_degrees_fixed(const struct fm_list_kind *kind, enum fm_split split)
{
    return kind->layout->split == split && !kind->capped && !tp_degrees_vary(kind);
}

/* Print the degrees of a member in all forms where they vary; if r is NULL, the names of these
 * forms. */
static void degree_cells(FILE *out, const struct fm_list *list, const struct fm_list_row *r)
{
    int used = 12, blanks = 2;
    for (int i = 0; i < list->kinds; i++) {
        char tp_degrees[FM_TP_DEGREES_TEXT];
        const char *text = r ? tp_degrees : list->kind[i].name;
        if (!tp_degrees_vary(&list->kind[i]))
            continue;
        if (r)
            fm_runtimes_print(tp_degrees, r->form[i].tp_degrees, ",");
        fprintf(out, "%*s%s", blanks + (used < 12 ? 12 - used : 0), "", text);
        used = (int)strlen(text);
        blanks = 1;
    }
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
    degree_cells(out, list, r);
}

/* "ragged, elastic, layer: 1,2": forms that split in the same way for all members. */
static void fixed_tp_degrees(FILE *out, const struct fm_list *list, enum fm_split split)
{
    char tp_degrees[FM_TP_DEGREES_TEXT] = "";
    const char *separator = "";
    for (int i = 0; i < list->kinds; i++) {
        if (!tp_degrees_fixed(&list->kind[i], split))
            continue;
        fprintf(out, "%s%s", separator, list->kind[i].name);
        fm_runtimes_print(tp_degrees, list->row[0].form[i].tp_degrees, ",");
        separator = ", ";
    }
    fprintf(out, ": %s", tp_degrees);
}

/* Print the size of every member in each layout, and over how many devices it can be split. */
static void form_table(FILE *out, const struct fm_list *list, uint64_t context)
{
    const char *separator = "";
    fprintf(out, "\nbytes of an export, %s; tensor-parallel degrees of ",
            list->packed ? "all files" : "tensors only");
    for (int i = 0; i < list->kinds; i++) {
        if (!tp_degrees_vary(&list->kind[i]))
            continue;
        fprintf(out, "%s%s", separator, list->kind[i].name);
        separator = " and ";
    }
    fprintf(out, "\nbudget");
    for (int i = 0; i < list->kinds; i++)
        fprintf(out, " %10s", list->kind[i].name);
    degree_cells(out, list, NULL);
    for (int i = 0; i < list->rows; i++)
        if (is_shown(list, i, context))
            form_row(out, list, &list->row[i]);
    fprintf(out, "tensor-parallel degrees of ");
    fixed_tp_degrees(out, list, FM_SPLIT_HEADS);
    fprintf(out, "; ");
    fixed_tp_degrees(out, list, FM_SPLIT_EXPERTS);
    fputc('\n', out);
}

/* Print the size of a uniform export with experts rounded to each possible format. */
static void format_table(FILE *out, const struct fm_list *list, uint64_t context)
{
    bool any = false;
    for (int r = 0; r < list->rows; r++)
        for (int i = 0; fm_quantisers[i]; i++)
            any = any || list->row[r].format[i].tensors > 0;
    if (!any)
        return;
    fprintf(out, "\nbytes of a uniform export with --weights FORMAT, tensors only; - if the sizes "
                 "do not fit the format\nbudget");
    for (int i = 0; fm_quantisers[i]; i++)
        fprintf(out, " %9s", fm_quantisers[i]->name);
    fputc('\n', out);
    for (int r = 0; r < list->rows; r++) {
        if (!is_shown(list, r, context))
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

/* Print the layouts that can be split over this number of devices, with widths in multiples of the
 * quantum on each. */
static void pass_table(FILE *out, const struct fm_list *list, const struct fm_listing_options *o)
{
    int devices = o->devices ? o->devices : 1, quantum = o->quantum ? o->quantum : 1;
    fprintf(out, "\nlayouts for %d device%s with widths in multiples of %d on each\nbudget\n",
            devices, devices == 1 ? "" : "s", quantum);
    for (int i = 0; i < list->rows; i++) {
        const char *before = "  ";
        if (!is_shown(list, i, o->context))
            continue;
        fprintf(out, "%6.4f", list->row[i].budget);
        for (int k = 0; k < list->kinds; k++) {
            if (!fm_list_passes(&list->kind[k], &list->row[i].form[k], devices, (uint32_t)quantum))
                continue;
            fprintf(out, "%s%s", before, list->kind[k].name);
            before = ", ";
        }
        fprintf(out, "%s\n", *before == ' ' ? "  none" : "");
    }
    fprintf(out,
            "--export --pad-multiple %d rounds the widths of any layout up to these multiples\n",
            quantum * devices);
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

static void legend(FILE *out, const struct fm_list *list, uint64_t context)
{
    fprintf(out,
            "budget: share of expert channels removed; min mean max: channels of an expert; bytes: "
            "tensors of a ragged export%s; active: parameters a token uses\nCE KL agree%%: on "
            "held-out text, KL and agree%% against the original; ~: interpolated between the "
            "nearest measured budgets\n"
            "the losses are of the mask's widths and the bundle's values: not of layouts that "
            "change widths, nor of --weights FORMAT\n",
            list->codes ? " in memory, decoded" : "");
    fprintf(out,
            "24, 48, 80 GB: the largest member that fits a GPU of that size with a cache of %llu "
            "tokens",
            (unsigned long long)context);
    if (fm_list_recommended(list) >= 0)
        fprintf(out, "; recommended: the smallest with agree%% of at least %g",
                100 * FM_LIST_AGREEMENT);
    fputc('\n', out);
    if (list->texts.count)
        fputs("last columns: CE of each kind of held-out text, and the kind whose CE is most above "
              "that of the first row\n",
              out);
}

static void member_table(FILE *out, const struct fm_list *list, uint64_t context)
{
    fprintf(out, "%6s  %-14s %5s %8s %5s %9s %9s %9s %9s %8s %6s", "budget", "method", "min",
            "mean", "max", "bytes", "params", "active", "CE", "KL", "agree%");
    for (int k = 0; k < list->texts.count; k++)
        fprintf(out, " %8s", list->texts.name[k]);
    fprintf(out, "%s\n", list->texts.count ? "  worst" : "");
    for (int i = 0; i < list->rows; i++)
        if (is_shown(list, i, context))
            row_text(out, list, i, context);
}

static void table(FILE *out, const struct fm_list *list, const struct fm_listing_options *o)
{
    uint64_t context = o->context;
    fm_printable_write(out, list->family);
    fprintf(out, ", stage %s: %d layers, ", list->stage, list->layers);
    if (list->M < list->layers)
        fprintf(out, "%d of them with ", list->M);
    fprintf(out, "%d experts (%d per token), hidden %d, channels %d, %s\n", list->experts,
            list->experts_per_token, list->hidden, list->channels, list->dtype);
    fm_show_extra(out, &list->extra, "kept, and left out of exports without --keep-extra");
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
    if (list->rows == 0) {
        fputs("no budgets yet: fm-train makes them\n", out);
        return;
    }
    legend(out, list, context);
    member_table(out, list, context);
    form_table(out, list, context);
    if (list->packed && list->storage[0])
        smaller_line(out, list);
    if (list->packed)
        format_table(out, list, context);
    if (o->devices || o->quantum)
        pass_table(out, list, o);
    int shown = count_shown(list, context);
    if (shown < list->rows)
        fprintf(out, "\n%d of %d members are shown; --json has all\n", shown, list->rows);
}

/* Which members fit GPUs, and which layouts pass, depend on options; fm_list_json omits both. */
static void add_answers(cJSON *tree, const struct fm_list *list, const struct fm_listing_options *o)
{
    if (list->rows == 0)
        return;
    fm_json_add_uint(tree, "context", o->context);
    cJSON *cards = fm_json_add_array(tree, "cards"), *passes;
    for (int c = 0; c < FM_CARDS; c++) {
        int row = fm_list_first_on_card(list, c, o->context);
        cJSON *card = fm_json_add_object(cards, NULL);
        fm_json_add_uint(card, "bytes", fm_runtimes_cards[c]);
        if (row < 0)
            fm_json_add_null(card, "index");
        else
            fm_json_add_uint(card, "index", (uint64_t)row);
    }
    if (!o->devices && !o->quantum)
        return;
    passes = fm_json_add_array(tree, "passes");
    for (int i = 0; i < list->rows; i++) {
        cJSON *names = fm_json_add_array(passes, NULL);
        for (int k = 0; k < list->kinds; k++)
            if (fm_list_passes(&list->kind[k], &list->row[i].form[k], o->devices ? o->devices : 1,
                               o->quantum ? (uint32_t)o->quantum : 1))
                fm_json_add_string(names, NULL, list->kind[k].name);
    }
}

static cJSON *list_json(const struct fm_list *list, const struct fm_listing_options *o,
                        struct fm_err *err)
{
    char *text = fm_list_json(list);
    cJSON *tree = text ? cJSON_Parse(text) : NULL;
    if (!tree)
        fm_fail(err, FM_ENOMEM, "no memory for the list");
    else
        add_answers(tree, list, o);
    free(text);
    return tree;
}

/* Check --context, and set the default. */
static int settle(struct fm_listing_options *o, const struct fm_list *list, struct fm_err *err)
{
    if (list->rows > 0 && o->context > list->context)
        return fm_fail(err, FM_EUSAGE,
                       "--context %llu: the longest sequence of this model has %llu tokens",
                       (unsigned long long)o->context, (unsigned long long)list->context);
    if (o->context == 0)
        o->context = list->context < CONTEXT ? list->context : CONTEXT;
    return FM_OK;
}

int fm_listing_print(const struct fm_cli *cli, const struct fm_listing_options *options,
                     struct fm_err *err)
{
    struct fm_listing_options o = *options;
    struct fm_list list;
    struct fm_cli_text text;
    int rc = FM_OK;
    if (fm_list_read(&list, cli->run.inputs.stream, true, err) || settle(&o, &list, err) ||
        fm_cli_text_open(&text, err))
        rc = err->code;
    if (!rc) {
        table(text.out, &list, &o);
        rc = fm_cli_result(cli, &text, list_json(&list, &o, err), err);
    }
    fm_list_release(&list);
    return rc;
}
