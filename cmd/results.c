/* The quality measurements of fm-bench, as tables and as JSON. */
#include "cmd/results.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/show.h"
#include "lib/base/printable.h"
#include "lib/base/units.h"
#include "lib/bench/plot.h"
#include "lib/stage/budgets.h"

/* Print the head of a table of losses by kind of held-out text. */
static void kinds_head(FILE *out, const struct fm_kinds *kinds, const char *first, int width)
{
    if (kinds->count)
        fprintf(out, "CE by kind of text\n%-*s", width, first);
    for (int k = 0; k < kinds->count; k++)
        fprintf(out, "  %10s%s", kinds->name[k], k + 1 == kinds->count ? "\n" : "");
}

static void kinds_cells(FILE *out, const struct fm_kinds *kinds, const double *kind)
{
    for (int k = 0; k < kinds->count; k++) {
        int width = (int)strlen(kinds->name[k]);
        fprintf(out, "  %*.4f", width > 10 ? width : 10, kind[k]);
    }
    fputc('\n', out);
}

/* Print a number as a column, or blanks if it is not known (not finite). */
static void print_known(FILE *out, int width, int digits, double x)
{
    if (isfinite(x))
        fprintf(out, " %*.*f", width, digits, x);
    else
        fprintf(out, " %*s", width, "");
}

/* Print a difference of losses and its standard error, or blanks. */
static void print_paired(FILE *out, const struct fm_spread_paired *p)
{
    if (p->known) /* without "-0.0000" */
        fprintf(out, " %+8.4f", fabs(p->mean) < 5e-5 ? 0 : p->mean);
    else
        fprintf(out, " %8s", "");
    print_known(out, 7, 4, p->known ? p->error : (double)NAN);
}

/* Titles of the columns of print_paired, and what they mean. */
#define PAIRED_ORIGINAL " original      +-"
#define PAIRED_ROW "      row      +-"

static void print_paired_about(FILE *out, bool compared, bool rows)
{
    if (compared || rows)
        fprintf(out, "%s%s+-: standard error of the difference, paired over sequences\n",
                compared ? "original: CE minus that of the original; " : "",
                rows ? "row: CE minus that of the row above; " : "");
}

/* Add [mean, standard error]; nothing if the difference is not known. */
static void add_paired(cJSON *o, const char *name, const struct fm_spread_paired *p)
{
    cJSON *list = p->known ? fm_json_add_array(o, name) : NULL;
    if (!list)
        return;
    fm_json_add_double(list, NULL, p->mean);
    if (isfinite(p->error))
        fm_json_add_double(list, NULL, p->error);
    else
        fm_json_add_null(list, NULL);
}

/* ---- what KL and agreement compare with ---- */

static void print_reference(FILE *out, enum fm_bench_reference reference, bool merged)
{
    static const char *const name[] = {"the original", "budget 0 of this bundle"};
    fprintf(out, "KL, agree%%, dp%%: against %s%s\n", name[reference],
            reference == FM_BENCH_BUNDLE && merged ? ", which has the adapter merged" : "");
}

static void add_reference(cJSON *o, enum fm_bench_reference reference)
{
    static const char *const name[] = {"original", "bundle"};
    fm_json_add_string(o, "reference", name[reference]);
}

/* ---- figures of tokens ---- */

/* Print a table row: a budget, and the figures that are usual on model cards of pruned and
 * quantised models. */
static void print_kl(FILE *out, double budget, const struct fm_spread *s)
{
    fprintf(out, "%-10.4f", budget);
    for (int i = FM_SPREAD_MEDIAN; i < FM_SPREAD_AT; i++)
        if (fm_spread_at[i] != 0.75)
            fprintf(out, " %7.4f", s->kl_at[i]);
    fprintf(out, " %7.2f\n", 100 * s->top5);
}

static void print_change(FILE *out, double budget, const struct fm_spread *s)
{
    fprintf(out, "%-10.4f %7.2f %7.2f", budget, 100 * s->change, 100 * s->change_rms);
    for (int i = 1; i < FM_SPREAD_AT - 1; i++)
        if (fm_spread_at[i] != 0.25 && fm_spread_at[i] != 0.75)
            fprintf(out, " %7.2f", 100 * s->change_at[i]);
    fputc('\n', out);
}

static void print_kl_head(FILE *out)
{
    fprintf(out, "%-10s %7s %7s %7s %7s %7s %7s %7s\n", "KL/token", "median", "90%", "95%", "99%",
            "99.9%", "max", "top5%");
}

static void print_change_head(FILE *out)
{
    fprintf(out, "%-10s %7s %7s %7s %7s %7s %7s %7s %7s %7s %7s %7s\n", "dp%/token", "mean", "RMS",
            "0.1%", "1%", "5%", "10%", "median", "90%", "95%", "99%", "99.9%");
}

static void add_percentiles(cJSON *o, const char *name, const double at[FM_SPREAD_AT])
{
    cJSON *list = fm_json_add_array(o, name);
    for (int i = 0; i < FM_SPREAD_AT; i++)
        fm_json_add_double(list, NULL, at[i]);
}

static void add_interval(cJSON *o, const char *name, double mean, double half)
{
    cJSON *list = isfinite(half) ? fm_json_add_array(o, name) : NULL;
    if (!list)
        return;
    fm_json_add_double(list, NULL, mean - half);
    fm_json_add_double(list, NULL, mean + half);
}

/* Add a spread to the JSON object of a quality. */
static void add_spread(cJSON *o, const struct fm_quality *q, const struct fm_spread *s)
{
    fm_json_add_double(o, "perplexity", exp(q->ce));
    add_interval(o, "ce_interval", q->ce, s->ce_half);
    if (!s->compared)
        return;
    add_interval(o, "kl_interval", q->kl, s->kl_half);
    fm_json_add_double(o, "agree_five", s->top5);
    add_percentiles(o, "kl_tokens", s->kl_at);
    fm_json_add_double(o, "dp_mean", s->change);
    fm_json_add_double(o, "dp_rms", s->change_rms);
    add_percentiles(o, "dp_tokens", s->change_at);
}

static void add_values(cJSON *o, uint64_t tokens, uint64_t values)
{
    fm_json_add_uint(o, "tokens", tokens);
    fm_json_add_uint(o, "values_bytes", values);
    add_percentiles(o, "percentiles", fm_spread_at);
}

static void print_values(FILE *out, uint64_t tokens, uint64_t values)
{
    char bytes[32];
    fm_units_bytes(bytes, values);
    fprintf(out, "%llu tokens are predicted; their values take %s of memory\n",
            (unsigned long long)tokens, bytes);
}

/* ---- a family ---- */

/* Print the differences of losses between rows and columns. */
static void print_changes(FILE *out, const struct fm_bench_quality *q)
{
    fprintf(out,
            "differences of CE and their standard errors, paired over sequences: from the model "
            "that KL compares with, from the row above, and of controls from the family\n"
            "%6s  %8s %7s %8s %7s",
            "budget", "full", "+-", "row", "+-");
    fprintf(out, " %8s %7s %8s %7s %8s %7s\n", "uniform", "+-", "layer", "+-", "global", "+-");
    for (int i = 0; i < q->rows; i++) {
        const struct fm_bench_row *r = &q->row[i];
        fprintf(out, "%6.4f ", r->budget[FM_BENCH_FAMILY]);
        print_paired(out, &r->change[FM_BENCH_FAMILY]);
        print_paired(out, &r->step);
        for (int k = FM_BENCH_FAMILY + 1; k < FM_BENCH_KINDS; k++)
            print_paired(out, &r->change[k]);
        fputc('\n', out);
    }
}

static void add_row(cJSON *rows, const struct fm_bench_quality *q, const struct fm_bench_row *r)
{
    cJSON *row = fm_json_add_object(rows, NULL);
    fm_json_add_uint(row, "mask", (uint64_t)r->mask);
    for (int k = 0; k < FM_BENCH_KINDS; k++) {
        cJSON *m = fm_budgets_quality(&r->quality[k], &q->kinds);
        add_spread(m, &r->quality[k], &r->spread[k]);
        add_paired(m, "ce_change", &r->change[k]);
        if (k == FM_BENCH_FAMILY)
            add_paired(m, "ce_step", &r->step);
        fm_json_add_double(m, "budget", r->budget[k]);
        fm_json_add_uint(m, "bytes", r->bytes[k]);
        fm_json_add(row, fm_bench_kind_name((enum fm_bench_kind)k), m);
    }
}

void fm_results_quality(const struct fm_result *result, const void *self)
{
    const struct fm_bench_quality *q = self;
    FILE *out = result->text;
    fprintf(out, "held out: %d sequences of %d tokens, %d budgets\n", q->sequences, q->T, q->rows);
    fm_json_add_uint(result->json, "sequences", (uint64_t)q->sequences);
    fm_json_add_uint(result->json, "seq_len", (uint64_t)q->T);
    print_values(out, q->tokens, q->values);
    add_values(result->json, q->tokens, q->values);
    add_reference(result->json, q->reference);
    cJSON *rows = fm_json_add_array(result->json, "rows");
    if (q->rows == 0 || q->row[0].quality[0].positions == 0)
        return;
    print_reference(out, q->reference, q->row[0].quality[0].recovered);
    fprintf(out, "%6s  %8s %8s %7s %7s  %16s  %8s %8s\n", "budget", "CE", "KL", "+-95%", "agree%",
            "uniform CE", "layer CE", "global CE");
    for (int i = 0; i < q->rows; i++) {
        const struct fm_bench_row *r = &q->row[i];
        const struct fm_quality *m = r->quality;
        fprintf(out, "%6.4f  %8.4f %8.4f", r->budget[FM_BENCH_FAMILY], m[FM_BENCH_FAMILY].ce,
                m[FM_BENCH_FAMILY].kl);
        print_known(out, 7, 4, r->spread[FM_BENCH_FAMILY].kl_half);
        fprintf(out, " %7.2f  %8.4f @ %5.3f  %8.4f  %8.4f\n", 100 * m[FM_BENCH_FAMILY].agree,
                m[FM_BENCH_UNIFORM].ce, r->budget[FM_BENCH_UNIFORM], m[FM_BENCH_LAYER].ce,
                m[FM_BENCH_GLOBAL].ce);
        if (m->positions > 0)
            add_row(rows, q, r);
    }
    print_changes(out, q);
    print_kl_head(out);
    for (int i = 0; i < q->rows; i++)
        print_kl(out, q->row[i].budget[FM_BENCH_FAMILY], &q->row[i].spread[FM_BENCH_FAMILY]);
    print_change_head(out);
    for (int i = 0; i < q->rows; i++)
        print_change(out, q->row[i].budget[FM_BENCH_FAMILY], &q->row[i].spread[FM_BENCH_FAMILY]);
    kinds_head(out, &q->kinds, "budget", 6);
    for (int i = 0; i < q->rows && q->kinds.count; i++) {
        fprintf(out, "%6.4f", q->row[i].budget[FM_BENCH_FAMILY]);
        kinds_cells(out, &q->kinds, q->row[i].quality[FM_BENCH_FAMILY].kind);
    }
}

/* The upper end of the plot's loss axis: the family's highest loss plus a quarter of its span.
 * Controls with a higher loss are cut off.  0, no limit, if the span is 0. */
static double loss_most(const struct fm_bench_quality *q)
{
    double low = INFINITY, high = 0;
    for (int i = 0; i < q->rows; i++) {
        low = fmin(low, q->row[i].quality[FM_BENCH_FAMILY].ce);
        high = fmax(high, q->row[i].quality[FM_BENCH_FAMILY].ce);
    }
    return high > low ? high + 0.25 * (high - low) : 0;
}

int fm_results_quality_plot(const struct fm_bench_quality *q, const char *path, bool force,
                            struct fm_err *err)
{
    struct fm_plot plot = {.title = "Held-out cross-entropy of a family and its controls",
                           .x_label = "share of expert channels removed",
                           .y_label = "cross-entropy (nats per token)",
                           .y_most = loss_most(q),
                           .count = FM_BENCH_KINDS};
    size_t n = (size_t)q->rows;
    double *v = calloc(2 * FM_BENCH_KINDS * n + 1, sizeof *v);
    if (!v)
        return fm_fail(err, FM_ENOMEM, "no memory for the plot");
    for (int k = 0; k < FM_BENCH_KINDS; k++) {
        double *x = v + 2 * (size_t)k * n, *y = x + n;
        for (size_t i = 0; i < n; i++) {
            x[i] = q->row[i].budget[k];
            y[i] = q->row[i].quality[k].ce;
        }
        plot.series[k] =
            (struct fm_plot_series){fm_bench_kind_name((enum fm_bench_kind)k), x, y, q->rows};
    }
    int rc = fm_plot_write(&plot, path, force, err);
    free(v);
    return rc;
}

/* Print KL and agreement, in the columns "KL   +-95%  agree%". */
static void print_against(FILE *out, const struct fm_quality *q, const struct fm_spread *s)
{
    fprintf(out, " %8.4f", q->kl);
    print_known(out, 7, 4, s->kl_half);
    fprintf(out, " %7.2f", 100 * q->agree);
}

/* Print the name of a row: a budget, with `mark` after that of the member that the export starts
 * with, or the layout. */
static void print_name(FILE *out, const struct fm_bench_export *e, int i, const char *mark)
{
    if (e->layout->all_members)
        fprintf(out, "%-9.4f%s", e->member[i].budget, i == e->start ? mark : " ");
    else
        fprintf(out, "%-10s", e->layout->name);
}

static void print_member(FILE *out, const struct fm_bench_export *e, int i)
{
    const struct fm_quality *q = &e->member[i].quality;
    print_name(out, e, i, "*");
    fprintf(out, " %10.4f", q->ce);
    if (e->compared)
        print_paired(out, &e->member[i].change);
    if (e->members > 1)
        print_paired(out, &e->member[i].step);
    fprintf(out, " %12.4f", exp(q->ce));
    if (e->compared)
        print_against(out, q, &e->member[i].spread);
    fputc('\n', out);
}

static void add_numbers(cJSON *o, const struct fm_bench_export *e, int i, bool step)
{
    const struct fm_quality *q = &e->member[i].quality;
    fm_json_add_double(o, "ce", q->ce);
    fm_budgets_add_kinds(o, &e->kinds, q->kind);
    if (e->compared) {
        fm_json_add_double(o, "kl", q->kl);
        fm_json_add_double(o, "agree", q->agree);
    }
    add_spread(o, q, &e->member[i].spread);
    add_paired(o, "ce_change", &e->member[i].change);
    if (step)
        add_paired(o, "ce_step", &e->member[i].step);
}

/* The --weights of an export, as in tables and JSON. */
static const char *weights_of(const struct fm_bench_export *e)
{
    return !e->weights[0] ? "plain" : strcmp(e->weights, "keep") == 0 ? "codes" : e->weights;
}

/* Add an export and, if `step`, the differences between its members. */
static void add_export(cJSON *o, const struct fm_bench_export *e, bool step)
{
    fm_json_add_string(o, "layout", e->layout->name);
    fm_json_add_string(o, "weights", weights_of(e));
    fm_json_add_uint(o, "bytes", e->bytes);
    fm_json_add_double(o, "budget", e->member[e->start].budget);
    fm_json_add_uint(o, "sequences", (uint64_t)e->sequences);
    fm_json_add_uint(o, "seq_len", (uint64_t)e->T);
    fm_json_add_string(o, "digest", e->digest);
    fm_json_add_string(o, "precision", e->precision);
    add_values(o, e->tokens, e->values);
    if (e->member[e->start].quality.positions == 0)
        return;
    fm_json_add_uint(o, "positions", (uint64_t)e->member[e->start].quality.positions);
    if (e->compared)
        add_reference(o, e->planned ? FM_BENCH_BUNDLE : FM_BENCH_ORIGINAL);
    add_numbers(o, e, e->start, step);
    if (e->compared)
        fm_json_add_double(o, "original_ce", e->original.ce);
    if (e->compared)
        add_interval(o, "original_ce_interval", e->original.ce, e->original_spread.ce_half);
    cJSON *members = e->layout->all_members ? fm_json_add_array(o, "members") : NULL;
    for (int i = 0; e->layout->all_members && i < e->members; i++) {
        cJSON *member = fm_json_add_object(members, NULL);
        fm_json_add_double(member, "budget", e->member[i].budget);
        add_numbers(member, e, i, true);
    }
}

void fm_results_exported(const struct fm_result *r, const void *self)
{
    const struct fm_bench_export *e = self;
    FILE *out = r->text;
    add_export(r->json, e, true);
    fprintf(out, "held out: %d sequences of %d tokens, %s; ", e->sequences, e->T, e->precision);
    if (e->layout->all_members)
        fprintf(out, "%d budgets, * is the one it starts with\n", e->members);
    else
        fprintf(out, "budget %.4f\n", e->member[e->start].budget);
    print_values(out, e->tokens, e->values);
    if (e->member[e->start].quality.positions == 0)
        return;
    if (e->compared)
        print_reference(out, FM_BENCH_ORIGINAL, false);
    print_paired_about(out, e->compared, e->members > 1);
    fprintf(out, "%-10s %10s%s%s %12s", e->layout->all_members ? "budget" : "", "CE",
            e->compared ? PAIRED_ORIGINAL : "", e->members > 1 ? PAIRED_ROW : "", "perplexity");
    fprintf(out, "%s\n", e->compared ? "       KL   +-95%  agree%" : "");
    for (int i = 0; i < e->members; i++)
        print_member(out, e, i);
    if (e->compared) {
        fprintf(out, "%-10s %10.4f%*s %12.4f\n", "original", e->original.ce,
                (e->members > 1 ? 2 : 1) * (int)strlen(PAIRED_ROW), "", exp(e->original.ce));
        print_kl_head(out);
        for (int i = 0; i < e->members; i++)
            print_kl(out, e->member[i].budget, &e->member[i].spread);
        print_change_head(out);
        for (int i = 0; i < e->members; i++)
            print_change(out, e->member[i].budget, &e->member[i].spread);
    }
    kinds_head(out, &e->kinds, e->layout->all_members ? "budget" : "", 10);
    for (int i = 0; i < e->members && e->kinds.count; i++) {
        print_name(out, e, i, " ");
        kinds_cells(out, &e->kinds, e->member[i].quality.kind);
    }
    if (e->compared && e->kinds.count) {
        fprintf(out, "%-10s", "original");
        kinds_cells(out, &e->kinds, e->original.kind);
    }
}

/* Sort by bytes, the smallest first; `order` (n) gets the indices.  Exports that fm-pack would not
 * write are left out; returns the number of the others. */
static int sort_by_bytes(int *order, const struct fm_bench_export *e, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int at = count;
        if (e[i].why[0])
            continue;
        for (; at > 0 && e[order[at - 1]].bytes > e[i].bytes; at--)
            order[at] = order[at - 1];
        order[at] = i;
        count++;
    }
    return count;
}

/* The difference between the i-th directory in the order of bytes and the one before it. */
static struct fm_spread_paired step_of(const struct fm_bench_export *e, const int *order, int i)
{
    struct fm_spread_paired none = {0};
    const struct fm_bench_export *a = &e[order[i]], *b = &e[order[i > 0 ? i - 1 : 0]];
    return i > 0 && a->sums.groups > 0 ? fm_spread_pair(&a->sums, a->start, &b->sums, b->start)
                                       : none;
}

/* The exports that fm-pack would not write. */
static void describe_refused(const struct fm_result *r, const struct fm_bench_export *e, int n)
{
    cJSON *list = NULL;
    for (int i = 0; i < n; i++) {
        if (!e[i].why[0])
            continue;
        fprintf(r->text, "%10s %-10s %-8s %7.4f  %s\n", "", weights_of(&e[i]), e[i].layout->name,
                e[i].member[0].budget, e[i].why);
        list = list ? list : fm_json_add_array(r->json, "refused");
        cJSON *one = fm_json_add_object(list, NULL);
        fm_json_add_string(one, "layout", e[i].layout->name);
        fm_json_add_string(one, "weights", weights_of(&e[i]));
        fm_json_add_double(one, "budget", e[i].member[0].budget);
        fm_json_add_string(one, "why", e[i].why);
    }
}

/* A row of the table: an export, in the directory `name`; NULL: it is only planned. */
static void describe_export(const struct fm_result *row, const struct fm_bench_export *e,
                            const struct fm_spread_paired *step, const char *name)
{
    FILE *out = row->text;
    const struct fm_quality *q = &e->member[e->start].quality;
    char bytes[32];
    fm_units_bytes(bytes, e->bytes);
    add_export(row->json, e, false);
    add_paired(row->json, "ce_step", step);
    if (name)
        fm_json_add_string(row->json, "directory", name);
    fprintf(out, "%10s %-10s %-8s %7.4f", bytes, weights_of(e), e->layout->name,
            e->member[e->start].budget);
    if (q->positions > 0) {
        fprintf(out, " %10.4f", q->ce);
        if (e->compared)
            print_paired(out, &e->member[e->start].change);
        print_paired(out, step);
        if (e->compared)
            print_against(out, q, &e->member[e->start].spread);
    }
    fprintf(out, "%s%s\n", name ? "  " : "", name ? name : "");
}

void fm_results_compared(const struct fm_result *result, const void *self)
{
    const struct fm_results_exports *all = self;
    const struct fm_bench_export *e = all->export;
    char *const *name = all->name;
    FILE *out = result->text;
    assert(all->n > 0 && all->n <= FM_RESULTS_COMPARED_MAX);
    int order[FM_RESULTS_COMPARED_MAX], n = all->n, count = sort_by_bytes(order, e, n);
    cJSON *list = fm_json_add_array(result->json, "exports");
    const struct fm_bench_export *first = &e[count ? order[0] : 0];
    bool measured = first->member[first->start].quality.positions > 0;
    bool compared = measured && first->compared;
    fprintf(out, "held out: %d sequences of %d tokens, %s; sorted by bytes of %s files\n",
            first->sequences, first->T, first->precision, name ? "weight" : "all");
    print_values(out, first->tokens, first->values);
    if (compared)
        print_reference(out, name ? FM_BENCH_ORIGINAL : FM_BENCH_BUNDLE, false);
    if (measured)
        print_paired_about(out, first->compared, true);
    fprintf(out, "%10s %-10s %-8s %7s", "bytes", "weights", "layout", "budget");
    fprintf(out, "%s%s%s%s%s\n", measured ? "         CE" : "", compared ? PAIRED_ORIGINAL : "",
            measured ? PAIRED_ROW : "", compared ? "       KL   +-95%  agree%" : "",
            name ? "  directory" : "");
    for (int i = 0; i < count; i++) {
        const struct fm_result row = {out, fm_json_add_object(list, NULL)};
        const struct fm_spread_paired step = step_of(e, order, i);
        describe_export(&row, &e[order[i]], &step, name ? name[order[i]] : NULL);
    }
    if (compared)
        fprintf(out, "%10s %-10s %-8s %7s %10.4f\n", "", "original", "", "", first->original.ce);
    describe_refused(result, e, n);
}

/* ---- loops in generated texts: a table of files, with the longest loops of each ---- */

/* A row of the table, whose object in the JSON also has the loops; shares of nothing are NaN. */
static void describe_file(const struct fm_result *r, const struct fm_loops *l, const char *path)
{
    double words = (double)l->words, texts = (double)l->texts;
    double distinct = l->different / (double)l->long_enough;
    fm_json_add_string(r->json, "path", path);
    fprintf(r->text, "%7" PRIu64 " %6" PRIu64 " %7" PRIu64, l->texts, l->empty, l->failed);
    fm_json_add_uint(r->json, "texts", l->texts);
    fm_json_add_uint(r->json, "empty", l->empty);
    fm_json_add_uint(r->json, "errors", l->failed);
    print_known(r->text, 8, 1, l->texts ? words / texts : words);
    fm_json_add_uint(r->json, "words", l->words);
    print_known(r->text, 7, 1, 100.0 * (double)l->ended / (double)l->told);
    fm_json_add_uint(r->json, "told", l->told);
    fm_json_add_uint(r->json, "ended", l->ended);
    print_known(r->text, 7, 1, 100.0 * (double)l->looping / texts);
    fm_json_add_uint(r->json, "looping", l->looping);
    print_known(r->text, 10, 4, distinct);
    if (isfinite(distinct))
        fm_json_add_double(r->json, "distinct_four", distinct);
    fputs("  ", r->text);
    fm_printable_write(r->text, path);
    fputc('\n', r->text);
    cJSON *loops = fm_json_add_array(r->json, "loops");
    for (int k = 0; k < l->shown; k++) {
        const struct fm_loops_example *x = &l->worst[k];
        cJSON *one = fm_json_add_object(loops, NULL);
        fm_json_add_uint(one, "line", x->line);
        fm_json_add_uint(one, "text", x->text);
        fm_json_add_uint(one, "repeats", x->loop.repeats);
        fm_json_add_uint(one, "characters", x->loop.characters);
        fm_json_add_string(one, "unit", x->unit);
    }
}

void fm_results_loops(const struct fm_result *r, const void *self)
{
    const struct fm_results_texts *t = self;
    FILE *out = r->text;
    cJSON *files = fm_json_add_array(r->json, "files");
    fprintf(out, "%7s %6s %7s %8s %7s %7s %10s  %s\n", "texts", "empty", "errors", "words",
            "ended%", "loops%", "distinct-4", "file");
    for (int i = 0; i < t->n; i++) {
        const struct fm_result file = {out, fm_json_add_object(files, NULL)};
        describe_file(&file, &t->loops[i], t->path[i]);
    }
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->loops[i].shown; k++) {
            const struct fm_loops_example *x = &t->loops[i].worst[k];
            fm_printable_write(out, t->path[i]);
            fprintf(out, ": line %" PRIu64 " ends in %" PRIu64 " times '%s%s'\n", x->line,
                    x->loop.repeats, x->unit,
                    x->loop.unit_bytes >= FM_LOOPS_UNIT_BYTES ? "..." : "");
        }
}
