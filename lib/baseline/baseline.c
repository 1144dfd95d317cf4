/*
 * First calibrations run one after another with nothing else in memory, so that time and peak
 * memory are measured for each.  Then one model is open, and every rule is measured on the same
 * tokens against the same full model, by closing experts in the router.
 */
#include "lib/baseline/baseline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/block/experts.h"
#include "lib/baseline/expertdrop.h"
#include "lib/learn/quality.h"
#include "lib/learn/task.h"
#include "lib/masks/decimal.h"
#include "lib/stage/stage.h"

struct contest {
    const struct fm_run_options *run;
    struct fm_baseline_table *table;
    struct fm_config config;           /* of the checkpoint */
    double *score[FM_BASELINE_RANDOM]; /* (M, E) of reap and frequency */
};

const char *fm_baseline_name(enum fm_baseline baseline)
{
    static const char *const name[FM_BASELINES] = {"reap", "frequency", "random"};
    return name[baseline];
}

/* --- budgets --- */

/* Append the number of experts nearest to a budget, unless it is already in the list.  A budget
 * out of range is an error if it comes from the user, else it is left out. */
static int add_budget(struct fm_baseline_table *t, const struct fm_config *c,
                      const struct fm_decimal *d, bool asked, struct fm_err *err)
{
    char text[FM_DECIMAL_TEXT];
    int step, most = fm_expertdrop_most(c, &step);
    fm_decimal_print(text, d);
    int units = c->E / step;
    int count = step * (int)((2 * d->num * (uint64_t)units + d->den) / (2 * d->den));
    if ((count < 1 || count > most) && asked)
        return fm_fail(err, FM_EUSAGE,
                       "--budgets %s: of %d experts, rules that remove whole experts can remove "
                       "%d to %d in steps of %d, because the router chooses %d; give %.4f to %.4f",
                       text, c->E, step, most, step, c->K, (double)step / c->E,
                       (double)most / c->E);
    if (count < 1 || count > most || (t->budgets && t->dropped[t->budgets - 1] == count))
        return FM_OK;
    if (t->budgets && t->dropped[t->budgets - 1] > count)
        return fm_fail(err, FM_EUSAGE, "--budgets: %s is below the one before it", text);
    if (t->budgets == FM_BASELINE_BUDGETS_MAX)
        return fm_fail(err, FM_EUSAGE, "--budgets: more than %d budgets; give fewer",
                       FM_BASELINE_BUDGETS_MAX);
    t->dropped[t->budgets++] = count;
    return FM_OK;
}

static int choose_budgets(struct fm_baseline_table *t, const struct fm_config *c,
                          const struct fm_decimals *budgets, struct fm_err *err)
{
    static const struct fm_decimals usual = {
        .count = 5, .at = {{125, 1000}, {25, 100}, {375, 1000}, {5, 10}, {625, 1000}}};
    const struct fm_decimals *list = budgets ? budgets : &usual;
    int step, most = fm_expertdrop_most(c, &step);
    t->experts = c->E;
    if (most < step)
        return fm_fail(err, FM_ECONFIG,
                       "the router chooses %d of %d experts, so rules that remove whole experts "
                       "cannot remove any",
                       c->K, c->E);
    for (int i = 0; i < list->count; i++)
        if (add_budget(t, c, &list->at[i], budgets != NULL, err))
            return err->code;
    if (t->budgets == 0 && !budgets) /* few experts: all numbers that can be removed */
        for (int count = step; count <= most && t->budgets < FM_BASELINE_BUDGETS_MAX; count += step)
            t->dropped[t->budgets++] = count;
    return t->budgets ? FM_OK : fm_fail(err, FM_EUSAGE, "--budgets names no budget");
}

/* --- calibration --- */

/* Set the largest resident size of this process to the current one, so that memory which earlier
 * work has already freed does not count. */
static void reset_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w"); /* 5: reset the peak */
    if (f) {
        fputs("5\n", f);
        fclose(f);
    }
}

/* Bytes of the largest resident size; 0: not available on this system. */
static uint64_t peak(void)
{
    char line[128];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib > 0 ? (uint64_t)kib * 1024 : 0;
}

/* Compute the scores of a rule; a random choice needs none. */
static int calibrate_row(struct contest *c, struct fm_baseline_row *row, struct fm_err *err)
{
    size_t X = (size_t)c->config.M * (size_t)c->config.E;
    row->measured = row->baseline != FM_BASELINE_RANDOM;
    if (!row->measured)
        return FM_OK;
    double **score = &c->score[row->baseline], began;
    *score = fm_alloc(X, sizeof **score, "scores of experts", err);
    if (!*score)
        return FM_ENOMEM;
    reset_peak();
    began = fm_clock_now();
    int rc = fm_expertdrop_score(*score, c->run, row->baseline == FM_BASELINE_REAP, err);
    row->seconds = fm_clock_now() - began;
    row->memory = peak();
    return rc;
}

static int calibrate(struct contest *c, struct fm_err *err)
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
    struct contest *contest;
    struct fm_model *model;
    struct fm_calib held;
    int masks;        /* of the current row: for each budget, one or FM_BASELINE_DRAWS */
    uint32_t *widths; /* (masks, M, E) of all the full width */
    float *closed;    /* (masks, M, E) */
    struct fm_quality *quality;
};

static size_t experts_of(const struct match *s)
{
    return (size_t)s->contest->config.M * (size_t)s->contest->config.E;
}

/* Average over the `draws` masks of each cell. */
static void settle(struct match *s, struct fm_baseline_row *row, int draws)
{
    const struct fm_baseline_table *t = s->contest->table;
    for (int i = 0; i < s->masks; i++) {
        struct fm_baseline_cell *cell = &row->cell[i / draws];
        const struct fm_quality *q = &s->quality[i];
        double share = 1.0 / draws;
        cell->budget = (double)t->dropped[i / draws] / t->experts;
        cell->quality.ce += share * q->ce;
        cell->quality.kl += share * q->kl;
        cell->quality.agree += share * q->agree;
        cell->quality.positions = q->positions;
    }
}

/* Measure the masks of the row; FM_EUSAGE if that takes too much memory. */
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
    const struct contest *c = s->contest;
    bool random = row->baseline == FM_BASELINE_RANDOM;
    int draws = random ? FM_BASELINE_DRAWS : 1;
    s->masks = c->table->budgets * draws;
    double *drawn = fm_alloc(experts_of(s), sizeof *drawn, "scores of experts", err);
    if (!drawn)
        return FM_ENOMEM;
    for (int i = 0; i < s->masks; i++) {
        if (random)
            fm_expertdrop_draw(drawn, &c->config, c->run->inputs.seed, i % draws);
        fm_expertdrop_close(s->closed + (size_t)i * experts_of(s),
                            random ? drawn : c->score[row->baseline], &c->config,
                            c->table->dropped[i / draws]);
    }
    free(drawn);
    int rc = measure(s, err);
    if (!rc)
        settle(s, row, draws);
    return rc;
}

static int open_match(struct match *s, struct fm_err *err)
{
    struct contest *c = s->contest;
    const struct fm_ops *ops;
    size_t masks = (size_t)c->table->budgets * FM_BASELINE_DRAWS, X = experts_of(s);
    s->widths = fm_alloc(masks * X, sizeof *s->widths, "widths", err);
    s->closed = fm_alloc(masks * X, sizeof *s->closed, "closed experts", err);
    s->quality = fm_alloc(masks, sizeof *s->quality, "measures", err);
    if (!s->widths || !s->closed || !s->quality)
        return FM_ENOMEM;
    for (size_t i = 0; i < masks * X; i++)
        s->widths[i] = (uint32_t)c->config.I;
    if (fm_model_open(&s->model, c->run->inputs.model, fm_machine_memory(&c->run->machine) / 2,
                      err) ||
        fm_machine_ops(&ops, &c->run->machine, fm_model_dtype(s->model), err))
        return err->code;
    fm_model_use(s->model, ops);
    return fm_calib_open(&s->held, c->run, &c->config, true, err);
}

static int measure_rows(struct contest *c, struct fm_err *err)
{
    struct match s = {.contest = c};
    int rc = open_match(&s, err);
    if (!rc) { /* the full model: no expert is closed yet */
        s.masks = 1;
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
    free(s.widths);
    free(s.closed);
    free(s.quality);
    return rc;
}

/* --- the run --- */

/* Open the model and all tokens once at the start, so that an incomplete input is reported before
 * any lengthy work. */
static int open_config(struct contest *c, struct fm_err *err)
{
    struct fm_task task = {0};
    struct fm_calib held = {0};
    int rc = fm_task_open_inputs(&task, c->run, false, err);
    if (!rc) /* parse it again, because the task frees its own copy */
        rc = fm_config_parse(&c->config, task.dir.config, task.dir.config_bytes, err);
    if (!rc) {
        rc = fm_calib_open(&held, c->run, &c->config, true, err);
        c->table->sequences = held.count;
        c->table->T = held.T;
        c->table->bytes = fm_stage_tensor_bytes(&task.dir, task.config);
        c->table->bytes_experts = (uint64_t)c->config.M * (uint64_t)c->config.E *
                                  (uint64_t)c->config.I *
                                  fm_expert_channel_params(c->config.expert, c->config.H) *
                                  (uint64_t)fm_dtype_bits(fm_model_dtype(task.model)) / 8;
    }
    fm_calib_close(&held);
    fm_task_close(&task);
    return rc;
}

int fm_baseline_run(const struct fm_run_options *run, const struct fm_decimals *budgets, bool plan,
                    struct fm_baseline_table *table, struct fm_err *err)
{
    struct contest c = {.run = run, .table = table};
    *table = (struct fm_baseline_table){0};
    int rc = FM_OK;
    for (int i = 0; i < FM_BASELINES; i++)
        table->row[i].baseline = (enum fm_baseline)i;
    if (open_config(&c, err) || choose_budgets(table, &c.config, budgets, err))
        rc = err->code;
    if (!rc && !plan)
        rc = calibrate(&c, err);
    if (!rc && !plan)
        rc = measure_rows(&c, err);
    for (int i = 0; i < FM_BASELINE_RANDOM; i++)
        free(c.score[i]);
    fm_config_release(&c.config);
    return rc;
}
