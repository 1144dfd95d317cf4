/*
 * Chooses the budgets of the table from the options.  contest.c calibrates and measures.
 */
#include "lib/baseline/baseline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/block/experts.h"
#include "lib/learn/task.h"
#include "lib/masks/decimal.h"
#include "lib/baseline/contest.h"
#include "lib/baseline/expertdrop.h"
#include "lib/stage/stage.h"

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

/* --- the run --- */

/* Open the model and all tokens once at the start, so that an incomplete input is reported before
 * any lengthy work. */
static int open_config(struct fm_contest *c, struct fm_err *err)
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

static void release(struct fm_contest *c)
{
    for (int i = 0; i < FM_BASELINE_RANDOM; i++)
        free(c->score[i]);
    fm_config_release(&c->config);
}

int fm_baseline_run(const struct fm_run_options *run, const struct fm_decimals *budgets, bool plan,
                    struct fm_baseline_table *table, struct fm_err *err)
{
    struct fm_contest c = {.run = run, .table = table};
    *table = (struct fm_baseline_table){0};
    int rc = FM_OK;
    for (int i = 0; i < FM_BASELINES; i++)
        table->row[i].baseline = (enum fm_baseline)i;
    if (open_config(&c, err) || choose_budgets(table, &c.config, budgets, err))
        rc = err->code;
    if (!rc && !plan)
        rc = fm_contest_calibrate(&c, err);
    if (!rc && !plan)
        rc = fm_contest_measure(&c, err);
    release(&c);
    return rc;
}
