/* Which member of the family an export is of. */
#include "lib/export/exporter.h"

#include <math.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/stage/stage.h"

/* What fm-train was told; its default where the stream does not say. */
static double budget_step(const struct fm_exporter *x)
{
    const cJSON *train = fm_stage_history_of(&x->bundle, "fm-train");
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(train, "options");
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(options, "budget_step");
    struct fm_decimal d;
    struct fm_err unread = {0};
    if (cJSON_IsString(step) &&
        fm_decimal_parse(&d, step->valuestring, "budget_step", &unread) == FM_OK)
        return (double)d.num / (double)d.den;
    return 0.01;
}

/* Budgets are quotients of integers and what was asked for was typed: equal up to rounding is
 * equal. */
#define SLACK 1e-9

static bool is_kept(const struct fm_export_options *o, double budget)
{
    return !o->load_cap || (budget >= o->load_low - SLACK && budget <= o->load_high + SLACK);
}

int fm_exporter_keep(struct fm_exporter *x, struct fm_err *err)
{
    const struct fm_export_options *o = x->options;
    const struct fm_budget *b = x->budgets.budget;
    int n = x->budgets.family.count;
    x->first = 0;
    x->last = n - 1;
    while (x->first < n && !is_kept(o, b[x->first].budget))
        x->first++;
    while (x->last > x->first && !is_kept(o, b[x->last].budget))
        x->last--;
    if (x->first < n)
        return FM_OK;
    return fm_fail(err, FM_EUSAGE,
                   "--load-cap %g:%g keeps none of the family's %d budgets, %.6f to %.6f",
                   o->load_low, o->load_high, n, b[0].budget, b[n - 1].budget);
}

static int choose_budget(struct fm_exporter *x, int *index, struct fm_err *err)
{
    double want = x->options->budget, step = budget_step(x);
    const struct fm_budget *b = x->budgets.budget;
    int n = x->last + 1, best = x->first;
    if (!is_kept(x->options, want))
        return fm_fail(err, FM_EUSAGE, "--budget %g is outside of --load-cap %g:%g", want,
                       x->options->load_low, x->options->load_high);
    for (int i = best + 1; i < n; i++)
        if (fabs(b[i].budget - want) < fabs(b[best].budget - want))
            best = i;
    *index = best;
    if (fabs(b[best].budget - want) <= step + SLACK)
        return FM_OK;
    int above = best < n - 1 && b[best].budget < want ? best + 1 : best;
    int below = best > x->first && b[best].budget > want ? best - 1 : best;
    if (above == below)
        return fm_fail(err, FM_EUSAGE,
                       "no budget within %g of %g: the nearest is %.6f, at an end of the family "
                       "(%d budgets, %.6f to %.6f)",
                       step, want, b[best].budget, n - x->first, b[x->first].budget,
                       b[n - 1].budget);
    return fm_fail(err, FM_EUSAGE, "no budget within %g of %g: the neighbours are %.6f and %.6f",
                   step, want, b[below].budget, b[above].budget);
}

/* All that the export would write. */
static uint64_t bytes_out(const struct fm_exporter *x)
{
    return strcmp(x->run->output, "-") == 0 ? fm_exporter_stream_bytes(x) : fm_exporter_bytes(x);
}

/* Budgets come with rising number of removed channels, so the first that fits is the largest. */
static int choose_fit(struct fm_exporter *x, int *index, struct fm_err *err)
{
    uint64_t least = UINT64_MAX;
    for (*index = 0; *index < x->budgets.family.count; ++*index) {
        int rc = fm_exporter_plan(x, *index, err);
        if (rc != FM_OK)
            return rc;
        uint64_t bytes = bytes_out(x);
        if (bytes <= x->options->fit)
            return FM_OK;
        least = bytes < least ? bytes : least;
    }
    return fm_fail(err, FM_EUSAGE,
                   "no member fits in %llu bytes: the smallest takes %llu in layout %s, all files "
                   "counted",
                   (unsigned long long)x->options->fit, (unsigned long long)least,
                   x->options->layout->name);
}

static int choose_mask(const struct fm_exporter *x, int *index, struct fm_err *err)
{
    int n = x->budgets.family.count;
    *index = x->options->mask;
    if (*index < 0 || *index >= n)
        return fm_fail(err, FM_EUSAGE, "no mask %d: the family has masks 0 to %d", *index, n - 1);
    if (*index < x->first || *index > x->last)
        return fm_fail(err, FM_EUSAGE, "mask %d is outside of --load-cap, which keeps %d to %d",
                       *index, x->first, x->last);
    return FM_OK;
}

int fm_exporter_choose(struct fm_exporter *x, int *index, struct fm_err *err)
{
    switch (x->options->by) {
    case FM_BY_FIT:
        return choose_fit(x, index, err);
    case FM_BY_MASK:
        return choose_mask(x, index, err);
    case FM_BY_DEFAULT:
        *index = x->first;
        return FM_OK;
    case FM_BY_BUDGET:
        break;
    }
    return choose_budget(x, index, err);
}

int fm_exporter_check(const struct fm_export_options *o, struct fm_err *err)
{
    if (o->by == FM_BY_FIT && o->layout->family)
        return fm_fail(err, FM_EUSAGE,
                       "--fit chooses a member, and layout %s holds all of them; use "
                       "--budget R, the one to start with",
                       o->layout->name);
    if (o->load_cap && !o->layout->capped)
        return fm_fail(err, FM_EUSAGE,
                       "--load-cap is for layout %s; layout %s holds one member, no wider "
                       "than it needs",
                       fm_layouts_capped(), o->layout->name);
    if (o->load_cap && !(o->load_low >= 0 && o->load_low <= o->load_high && o->load_high <= 1))
        return fm_fail(err, FM_EUSAGE, "--load-cap %g:%g: two shares from 0 to 1, the lower first",
                       o->load_low, o->load_high);
    if (o->shard_bytes && !o->layout->sharded)
        return fm_fail(err, FM_EUSAGE,
                       "--shard-size: layout %s has a file for every layer, not shards",
                       o->layout->name);
    return FM_OK;
}
