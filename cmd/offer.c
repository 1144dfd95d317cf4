/*
 * fm-pack --list: the members of a family, what every form of export takes of each, and over how
 * many devices it can be split.  Columns are the forms that the list has.
 */
#include "cmd/offer.h"
#include "cmd/show.h"
#include "lib/base/units.h"

#include <stdlib.h>
#include <string.h>

#include "lib/export/list.h"
#include "lib/export/runtimes.h"

static void format_count(char text[32], uint64_t n)
{
    fm_units_bytes(text, n);
    for (char *p = text; *p; p++)
        if (*p == 'B')
            *p = '\0';
        else if (*p == 'k')
            *p = 'K';
}

static void row_text(FILE *out, const struct fm_list_row *r)
{
    char bytes[32], params[32], active[32];
    fm_units_bytes(bytes, r->bytes);
    format_count(params, r->params);
    format_count(active, r->params_active);
    fprintf(out, "%6.4f  %-14s %5u %8.1f %5u %9s %9s %9s", r->budget, r->method, r->width_min,
            r->width_mean, r->width_max, bytes, params, active);
    if (r->measured)
        fprintf(out, " %9.4f %8.4f %6.1f%s", r->ce, r->kl, 100 * r->agree,
                r->recovered ? "  recovered" : "");
    fputc('\n', out);
}

/* Tensor-parallel degrees of a form: other ones for every member, or the same for all. */
static bool tp_degrees_vary(const struct fm_list_kind *kind)
{
    return kind->layout->split == FM_SPLIT_EXPERTS && !kind->layout->full;
}

static bool tp_degrees_fixed(const struct fm_list_kind *kind, enum fm_split split)
{
    return kind->layout->split == split && !kind->capped && !tp_degrees_vary(kind);
}

/* Degrees of a member in all forms where they vary; the forms' names where r is NULL. */
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

/* "ragged, elastic, layer: 1,2": of forms that split in this way, the same for all members. */
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

/* What each layout takes of every member, and over how many devices it can be split. */
static void form_table(FILE *out, const struct fm_list *list)
{
    const char *separator = "";
    fprintf(out, "\nbytes of an export, %s; tensor-parallel degrees of ",
            list->packed ? "all files" : "tensors alone");
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
        form_row(out, list, &list->row[i]);
    fprintf(out, "tensor-parallel degrees of ");
    fixed_tp_degrees(out, list, FM_SPLIT_HEADS);
    fprintf(out, "; ");
    fixed_tp_degrees(out, list, FM_SPLIT_EXPERTS);
    fputc('\n', out);
}

static void table(FILE *out, const struct fm_list *list)
{
    fm_cli_word(out, list->family);
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
    fprintf(out, "%6s  %-14s %5s %8s %5s %9s %9s %9s %9s %8s %6s\n", "budget", "method", "min",
            "mean", "max", "bytes", "params", "active", "CE", "KL", "agree%");
    for (int i = 0; i < list->rows; i++)
        row_text(out, &list->row[i]);
    form_table(out, list);
}

static cJSON *list_json(const struct fm_list *list, struct fm_err *err)
{
    char *text = fm_list_json(list);
    cJSON *tree = text ? cJSON_Parse(text) : NULL;
    if (!tree)
        fm_fail(err, FM_ENOMEM, "no memory for the list");
    free(text);
    return tree;
}

int fm_offer(const struct fm_cli *cli, struct fm_err *err)
{
    struct fm_list list;
    struct fm_cli_text text;
    int rc = fm_list_read(&list, cli->run.input, true, err);
    if (!rc)
        rc = fm_cli_text_open(&text, err);
    if (!rc) {
        table(text.out, &list);
        rc = fm_cli_result(cli, &text, list_json(&list, err), err);
    }
    fm_list_release(&list);
    return rc;
}
