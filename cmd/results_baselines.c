/*
 * The baselines' table: a block for each figure, a row for each baseline, a column for each budget;
 * the best figure of a column is marked.
 */
#include "cmd/results.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "lib/base/units.h"
#include "lib/bench/plot.h"
#include "lib/stage/budgets.h"

static double budget_of(const struct fm_baseline_table *t, int b)
{
    return (double)t->dropped[b] / t->experts;
}

/* A figure of a baseline at a budget, in the text. */
struct figure {
    const char *title;
    size_t at; /* of the double in struct fm_quality */
    double scale;
    int digits;
    bool highest; /* the highest is the best, not the lowest */
};

static const struct figure figures[] = {
    {"CE", offsetof(struct fm_quality, ce), 1, 4, false},
    {"KL", offsetof(struct fm_quality, kl), 1, 4, false},
    {"top-1 agreement, %", offsetof(struct fm_quality, agree), 100, 2, true},
};

static double value_of(const struct figure *f, const struct fm_quality *q)
{
    return *(const double *)((const char *)q + f->at);
}

/* The baseline with the best figure of a column. */
static int best_of(const struct fm_baseline_table *t, int b, const struct figure *f)
{
    int best = -1;
    for (int i = 0; i < FM_BASELINES; i++) {
        const struct fm_quality *q = &t->row[i].cell[b].quality;
        double lead = best < 0 ? 0 : value_of(f, q) - value_of(f, &t->row[best].cell[b].quality);
        if (q->positions > 0 && (best < 0 || (f->highest ? lead > 0 : lead < 0)))
            best = i;
    }
    return best;
}

static void block(FILE *out, const struct fm_baseline_table *t, const struct figure *f)
{
    fprintf(out, "\n%-20s", f->title);
    for (int b = 0; b < t->budgets; b++)
        fprintf(out, "  %7.4f ", budget_of(t, b));
    fputc('\n', out);
    for (int i = 0; i < FM_BASELINES; i++) {
        fprintf(out, "%-20s", fm_baseline_name(t->row[i].baseline));
        for (int b = 0; b < t->budgets; b++) {
            const struct fm_quality *q = &t->row[i].cell[b].quality;
            if (q->positions > 0)
                fprintf(out, "  %7.*f%c", f->digits, f->scale * value_of(f, q),
                        best_of(t, b, f) == i ? '*' : ' ');
            else
                fprintf(out, "  %7s ", "-");
        }
        fputc('\n', out);
    }
}

static void costs(FILE *out, const struct fm_baseline_table *t)
{
    int measured = 0;
    for (int i = 0; i < FM_BASELINES; i++)
        measured += t->row[i].measured;
    if (measured == 0)
        return;
    fprintf(out, "\n%-20s  %9s  %s\n", "calibration", "seconds", "peak memory");
    for (int i = 0; i < FM_BASELINES; i++) {
        char bytes[32] = "-";
        const struct fm_baseline_row *row = &t->row[i];
        if (!row->measured)
            continue;
        if (row->memory)
            fm_units_bytes(bytes, row->memory);
        fprintf(out, "%-20s  %9.2f  %s\n", fm_baseline_name(row->baseline), row->seconds, bytes);
    }
}

static void print_table(FILE *out, const struct fm_baseline_table *t)
{
    fprintf(out, "held out: %d sequences of %d tokens; without", t->sequences, t->T);
    for (int b = 0; b < t->budgets; b++)
        fprintf(out, "%s %d", b ? "," : "", t->dropped[b]);
    fprintf(out, " of %d experts\n", t->experts);
    if (t->full.positions == 0) {
        for (int i = 0; i < FM_BASELINES; i++)
            fprintf(out, "%s\n", fm_baseline_name(t->row[i].baseline));
        return;
    }
    fprintf(out, "full model: CE %.4f; * the best of a column\n", t->full.ce);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        block(out, t, &figures[i]);
    costs(out, t);
}

static cJSON *row_json(const struct fm_baseline_table *t, const struct fm_baseline_row *row)
{
    cJSON *o = cJSON_CreateObject();
    fm_json_add_string(o, "baseline", fm_baseline_name(row->baseline));
    if (row->measured && t->full.positions > 0)
        fm_json_add_double(o, "seconds", row->seconds);
    if (row->measured && row->memory)
        fm_json_add_uint(o, "peak_bytes", row->memory);
    cJSON *cells = fm_json_add_array(o, "cells");
    for (int b = 0; b < t->budgets; b++) {
        const struct fm_baseline_cell *cell = &row->cell[b];
        cJSON *c = fm_budgets_quality(&cell->quality, NULL);
        if (cell->quality.positions > 0) {
            fm_json_add_double(c, "budget", cell->budget);
            /* all tensors without the channels that the rule actually removed */
            double bytes = (double)t->bytes - cell->budget * (double)t->bytes_experts;
            fm_json_add_uint(c, "bytes", (uint64_t)llround(bytes));
        }
        fm_json_add(cells, NULL, c);
    }
    return o;
}

void fm_results_baselines(const struct fm_result *r, const void *self)
{
    const struct fm_baseline_table *t = self;
    cJSON *o = r->json;
    print_table(r->text, t);
    fm_json_add_uint(o, "sequences", (uint64_t)t->sequences);
    fm_json_add_uint(o, "seq_len", (uint64_t)t->T);
    fm_json_add_uint(o, "experts", (uint64_t)t->experts);
    fm_json_add(o, "dropped", cJSON_CreateIntArray(t->dropped, t->budgets));
    cJSON *full = fm_budgets_quality(&t->full, NULL);
    if (t->full.positions > 0)
        fm_json_add_uint(full, "bytes", t->bytes);
    fm_json_add(o, "full", full);
    cJSON *rows = fm_json_add_array(o, "rows");
    for (int i = 0; i < FM_BASELINES; i++)
        fm_json_add(rows, NULL, row_json(t, &t->row[i]));
}

int fm_results_baselines_plot(const struct fm_baseline_table *t, const char *path, bool force,
                              struct fm_err *err)
{
    struct fm_plot plot = {.title = "Held-out cross-entropy at equal bytes of expert weights",
                           .x_label = "share of experts removed",
                           .y_label = "cross-entropy (nats per token)"};
    double *v = calloc(2 * (size_t)FM_BASELINES * (size_t)t->budgets + 1, sizeof *v);
    int rc = v ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for the plot");
    for (int i = 0; !rc && i < FM_BASELINES; i++) {
        double *x = v + 2 * (size_t)i * (size_t)t->budgets, *y = x + t->budgets;
        int n = 0;
        for (int b = 0; b < t->budgets; b++) {
            const struct fm_baseline_cell *cell = &t->row[i].cell[b];
            if (cell->quality.positions == 0)
                continue;
            x[n] = budget_of(t, b);
            y[n++] = cell->quality.ce;
        }
        if (n > 0)
            plot.series[plot.count++] =
                (struct fm_plot_series){fm_baseline_name(t->row[i].baseline), x, y, n};
    }
    if (!rc)
        rc = fm_plot_write(&plot, path, force, err);
    free(v);
    return rc;
}
