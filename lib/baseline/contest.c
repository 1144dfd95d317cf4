/*
 * The two parts of a comparison.  First calibrations run one after another with nothing else in
 * memory, so that time and peak memory are measured for each.  Then one model is open, and every
 * rule is measured on the same tokens against the same full model, by closing experts in the
 * router.
 */
#include "lib/baseline/contest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/learn/quality.h"
#include "lib/baseline/expertdrop.h"

/* --- calibration --- */

/* Cost of a calibration: time from the clock, and the largest resident size of this process from
 * the kernel. */
struct spent {
    double began, seconds;
    uint64_t memory; /* bytes; 0: not available on this system */
};

/* The peak is reset here, so memory that earlier work has already freed does not count. */
static void spent_begin(struct spent *spent)
{
    *spent = (struct spent){0};
    FILE *f = fopen("/proc/self/clear_refs", "w"); /* 5: reset the peak */
    if (f) {
        fputs("5\n", f);
        fclose(f);
    }
    spent->began = fm_clock_now();
}

static void spent_end(struct spent *spent)
{
    char line[128];
    long kib = 0;
    spent->seconds = fm_clock_now() - spent->began;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    spent->memory = kib > 0 ? (uint64_t)kib * 1024 : 0;
}

static int score_experts(struct fm_contest *c, enum fm_baseline baseline, struct spent *spent,
                         struct fm_err *err)
{
    size_t X = (size_t)c->config.M * (size_t)c->config.E;
    c->score[baseline] = fm_alloc(X, sizeof *c->score[baseline], "scores of experts", err);
    if (!c->score[baseline])
        return FM_ENOMEM;
    spent_begin(spent);
    int rc = fm_expertdrop_score(c->score[baseline], c->run, baseline == FM_BASELINE_REAP, err);
    spent_end(spent);
    return rc;
}

static int calibrate_row(struct fm_contest *c, struct fm_baseline_row *row, struct fm_err *err)
{
    struct spent spent = {0};
    row->measured = row->baseline != FM_BASELINE_RANDOM;
    if (!row->measured)
        return FM_OK;
    int rc = score_experts(c, row->baseline, &spent, err);
    row->seconds = spent.seconds;
    row->memory = spent.memory;
    return rc;
}

int fm_contest_calibrate(struct fm_contest *c, struct fm_err *err)
{
    int rc = FM_OK;
    for (int i = 0; !rc && i < FM_BASELINES; i++) {
        rc = calibrate_row(c, &c->table->row[i], err);
        if (rc)
            fm_within(err, "%s", fm_baseline_name(c->table->row[i].baseline));
    }
    return rc;
}

/* --- figures --- */

/* State of measuring: the current model, and the masks of the current row of the table. */
struct match {
    struct fm_contest *contest;
    struct fm_model *model;
    struct fm_calib held;
    int masks;        /* of the current row */
    int *cell;        /* (budgets FM_BASELINE_DRAWS) the cell of each mask */
    uint32_t *widths; /* (as many masks, M, E) */
    float *closed;    /* (as many masks, M, E) */
    struct fm_quality *quality;
};

static size_t experts_of(const struct match *s)
{
    return (size_t)s->contest->config.M * (size_t)s->contest->config.E;
}

/* Append a mask at full width to the row. */
static void add_mask(struct match *s, int cell)
{
    uint32_t *w = s->widths + (size_t)s->masks * experts_of(s);
    for (size_t x = 0; x < experts_of(s); x++)
        w[x] = (uint32_t)s->contest->config.I;
    s->cell[s->masks++] = cell;
}

/* Average over the masks of each cell. */
static void settle(struct match *s, struct fm_baseline_row *row)
{
    const struct fm_baseline_table *t = s->contest->table;
    for (int i = 0; i < s->masks; i++) {
        struct fm_baseline_cell *cell = &row->cell[s->cell[i]];
        const struct fm_quality *q = &s->quality[i];
        double share = row->baseline == FM_BASELINE_RANDOM ? 1.0 / FM_BASELINE_DRAWS : 1;
        cell->budget = (double)t->dropped[s->cell[i]] / t->experts;
        cell->quality.ce += share * q->ce;
        cell->quality.kl += share * q->kl;
        cell->quality.agree += share * q->agree;
        cell->quality.positions = q->positions;
    }
}

/* Measure the masks that were added; FM_EUSAGE if that takes too much memory. */
static int measure(const struct match *s, struct fm_err *err)
{
    const struct fm_run_options *run = s->contest->run;
    struct fm_estimate estimate;
    struct fm_quality_subject subject = {.model = s->model,
                                         .held = &s->held,
                                         .masks = s->masks,
                                         .widths = s->widths,
                                         .closed = s->closed,
                                         .kept = 1};
    fm_quality_plan(&estimate, &subject, run);
    int rc = fm_estimate_fits(&estimate, run, err);
    return rc ? rc : fm_quality_measure(s->quality, &subject, run, err);
}

static int measure_row(struct match *s, struct fm_baseline_row *row, struct fm_err *err)
{
    const struct fm_contest *c = s->contest;
    bool random = row->baseline == FM_BASELINE_RANDOM;
    s->masks = 0;
    double *drawn = fm_alloc(experts_of(s), sizeof *drawn, "scores of experts", err);
    if (!drawn)
        return FM_ENOMEM;
    for (int b = 0; b < c->table->budgets; b++)
        for (int n = 0; n < (random ? FM_BASELINE_DRAWS : 1); n++) {
            if (random)
                fm_expertdrop_draw(drawn, &c->config, c->run->inputs.seed, n);
            fm_expertdrop_close(s->closed + (size_t)s->masks * experts_of(s),
                                random ? drawn : c->score[row->baseline], &c->config,
                                c->table->dropped[b]);
            add_mask(s, b);
        }
    free(drawn);
    int rc = measure(s, err);
    if (!rc)
        settle(s, row);
    return rc;
}

static int open_match(struct match *s, struct fm_err *err)
{
    struct fm_contest *c = s->contest;
    const struct fm_ops *ops;
    size_t masks = (size_t)c->table->budgets * FM_BASELINE_DRAWS, X = experts_of(s);
    s->cell = fm_alloc(masks, sizeof *s->cell, "masks", err);
    s->widths = fm_alloc(masks * X, sizeof *s->widths, "widths", err);
    s->closed = fm_alloc(masks * X, sizeof *s->closed, "closed experts", err);
    s->quality = fm_alloc(masks, sizeof *s->quality, "measures", err);
    if (!s->cell || !s->widths || !s->closed || !s->quality)
        return FM_ENOMEM;
    if (fm_model_open(&s->model, c->run->inputs.model, fm_machine_memory(&c->run->machine) / 2,
                      err) ||
        fm_machine_ops(&ops, &c->run->machine, fm_model_dtype(s->model), err))
        return err->code;
    fm_model_use(s->model, ops);
    return fm_calib_open(&s->held, c->run, &c->config, true, err);
}

int fm_contest_measure(struct fm_contest *c, struct fm_err *err)
{
    struct match s = {.contest = c};
    int rc = open_match(&s, err);
    if (!rc) {
        add_mask(&s, 0);
        rc = measure(&s, err);
        c->table->full = s.quality[0];
    }
    for (int i = 0; !rc && i < FM_BASELINES; i++) {
        fm_run_report(c->run, "measure", (uint64_t)i, FM_BASELINES, "rows");
        rc = measure_row(&s, &c->table->row[i], err);
        if (rc)
            fm_within(err, "%s", fm_baseline_name(c->table->row[i].baseline));
    }
    fm_run_report(c->run, "measure", FM_BASELINES, FM_BASELINES, "rows");
    fm_calib_close(&s.held);
    fm_model_close(s.model);
    free(s.cell);
    free(s.widths);
    free(s.closed);
    free(s.quality);
    return rc;
}
