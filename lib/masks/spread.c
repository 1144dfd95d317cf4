/* Sums are in order of tokens; percentiles are taken from a sorted copy of the values. */
#include "lib/masks/spread.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

const double fm_spread_at[FM_SPREAD_AT] = {0,    0.001, 0.01, 0.05, 0.1,   0.25, 0.5,
                                           0.75, 0.9,   0.95, 0.99, 0.999, 1};

double fm_spread_student(int freedom)
{
    static const double few[] = {NAN,       12.7062047, 4.3026527, 3.1824463, 2.7764451, 2.5705818,
                                 2.4469119, 2.3646243,  2.3060041, 2.2621572, 2.2281389};
    if (freedom < (int)(sizeof few / sizeof *few))
        return few[freedom > 0 ? freedom : 0];
    /* Cornish and Fisher's expansion around the normal quantile (Abramowitz and Stegun 26.7.5). */
    double z = 1.959963984540054, v = freedom, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
    return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v) +
           (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * v * v * v);
}

double fm_spread_percentile(const float *sorted, size_t n, double at)
{
    assert(n > 0 && at >= 0 && at <= 1);
    double place = at * (double)(n - 1);
    size_t below = (size_t)place;
    double part = place - (double)below;
    return part > 0 ? (1 - part) * (double)sorted[below] + part * (double)sorted[below + 1]
                    : (double)sorted[below];
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void sort_into(double at[FM_SPREAD_AT], float *value, size_t n)
{
    qsort(value, n, sizeof *value, by_value);
    for (int i = 0; i < FM_SPREAD_AT; i++)
        at[i] = fm_spread_percentile(value, n, fm_spread_at[i]);
}

/* The values that are averaged. */
enum { CE, KL };

static double value_of(const struct fm_token *t, int which)
{
    return which == CE ? (double)t->ce : (double)t->kl;
}

/* The standard error of the mean of n tokens in groups, from the sum over groups of squared
 * distances from n_i times the mean. */
static double standard_error(double squares, int groups, double n)
{
    return groups > 1 ? sqrt((double)groups / (groups - 1) * squares) / n : (double)NAN;
}

static double half_width(const struct fm_token *token, const size_t *first, int groups, int which)
{
    double all = 0, squares = 0, n = (double)first[groups];
    for (size_t i = 0; i < first[groups]; i++)
        all += value_of(&token[i], which);
    for (int g = 0; g < groups; g++) {
        double sum = 0;
        for (size_t i = first[g]; i < first[g + 1]; i++)
            sum += value_of(&token[i], which);
        double off = sum - all / n * (double)(first[g + 1] - first[g]);
        squares += off * off;
    }
    return fm_spread_student(groups - 1) * standard_error(squares, groups, n);
}

int fm_spread_sums_init(struct fm_spread_sums *sums, int models, const size_t *first, int groups,
                        struct fm_err *err)
{
    size_t n = (size_t)groups + 1;
    *sums = (struct fm_spread_sums){.groups = groups};
    sums->first = fm_alloc(n, sizeof *sums->first, "sums of losses", err);
    sums->ce = fm_alloc((size_t)models * n, sizeof *sums->ce, "sums of losses", err);
    if (!sums->first || !sums->ce)
        return err->code;
    memcpy(sums->first, first, n * sizeof *first);
    return FM_OK;
}

void fm_spread_sums_release(struct fm_spread_sums *sums)
{
    free(sums->first);
    free(sums->ce);
    *sums = (struct fm_spread_sums){0};
}

void fm_spread_sums_set(struct fm_spread_sums *sums, int model, const struct fm_token *token)
{
    double *ce = sums->ce + (size_t)model * (size_t)sums->groups;
    for (int g = 0; g < sums->groups; g++) {
        ce[g] = 0;
        for (size_t i = sums->first[g]; i < sums->first[g + 1]; i++)
            ce[g] += (double)token[i].ce;
    }
}

struct fm_spread_paired fm_spread_pair(const struct fm_spread_sums *a, int i,
                                       const struct fm_spread_sums *b, int k)
{
    assert(a->groups == b->groups && a->first[a->groups] == b->first[b->groups]);
    const double *x = a->ce + (size_t)i * (size_t)a->groups;
    const double *y = b->ce + (size_t)k * (size_t)b->groups;
    double n = (double)a->first[a->groups], all = 0, squares = 0;
    for (int g = 0; g < a->groups; g++)
        all += x[g] - y[g];
    for (int g = 0; g < a->groups; g++) {
        double off = x[g] - y[g] - all / n * (double)(a->first[g + 1] - a->first[g]);
        squares += off * off;
    }
    return (struct fm_spread_paired){all / n, standard_error(squares, a->groups, n), true};
}

void fm_spread_of(struct fm_spread *spread, const struct fm_token *token, const size_t *first,
                  int groups, int near, bool compared, float *sorted)
{
    size_t n = first[groups];
    assert(groups > 0 && n > 0 && near > 0);
    *spread = (struct fm_spread){.compared = compared};
    spread->ce_half = half_width(token, first, groups, CE);
    if (!compared)
        return;
    spread->kl_half = half_width(token, first, groups, KL);
    double sum = 0, squares = 0;
    int64_t together = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)token[i].change;
        squares += (double)token[i].change * (double)token[i].change;
        together += token[i].near;
        sorted[i] = token[i].kl;
    }
    spread->change = sum / (double)n;
    spread->change_rms = sqrt(squares / (double)n);
    spread->top5 = (double)together / ((double)n * near);
    sort_into(spread->kl_at, sorted, n);
    for (size_t i = 0; i < n; i++)
        sorted[i] = token[i].change;
    sort_into(spread->change_at, sorted, n);
}
