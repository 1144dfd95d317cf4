/*
 * Reference implementation of routers that choose by score.  Every expert has a score, the sigmoid
 * of its logit or its probability; a trained bias affects only the choice, not the weights, and
 * whole groups of experts can be left out.  DeepSeek-V3 introduced the rule; the variants of other
 * models are fields of struct fm_route_rule.
 */
#include "kernels/ops/ops.h"

#include <math.h>

#include "lib/base/pool.h"

/* Replace the logits of a row by its scores. */
static void make_scores(float *s, bool sigmoid, int E)
{
    float largest = s[0];
    double all = 0;
    for (int e = 1; e < E; e++)
        largest = s[e] > largest ? s[e] : largest;
    for (int e = 0; e < E && !sigmoid; e++)
        all += exp((double)s[e] - (double)largest);
    for (int e = 0; e < E; e++)
        s[e] = (float)(sigmoid ? fm_sigmoid(s[e]) : exp((double)s[e] - (double)largest) / all);
}

/* Sum of the `count` largest of c (n), count 1 or 2. */
static float group_score(const float *c, int n, int count)
{
    int32_t best = fm_largest_left(c, NULL, 0, n);
    return count == 1 ? c[best] : c[best] + c[fm_largest_left(c, &best, 1, n)];
}

/* Set the choice scores of a row to -Inf in groups that are left out. */
static void leave_groups_out(float *c, const struct fm_route_rule *rule, int E)
{
    struct fm_mark mark = fm_scratch_mark();
    int groups = rule->groups, n = E / groups, at = 0;
    float *score = fm_scratch((size_t)groups * sizeof *score);
    int32_t *kept = fm_scratch((size_t)groups * sizeof *kept);
    for (int g = 0; g < groups; g++)
        score[g] = group_score(c + (size_t)g * (size_t)n, n, rule->group_sum);
    for (; at < rule->topk_group; at++)
        kept[at] = fm_largest_left(score, kept, at, groups);
    for (; at < groups; at++) {
        int out = fm_largest_left(score, kept, at, groups);
        kept[at] = out;
        for (int i = 0; i < n; i++)
            c[(size_t)out * (size_t)n + (size_t)i] = -INFINITY;
    }
    fm_scratch_release(mark);
}

/* The divisor of the weights, from the sum of the chosen scores. */
static double divisor(const struct fm_route_rule *rule, double sum)
{
    double by = sum + (double)rule->eps;
    return !rule->renormalised ? 1 : by < (double)rule->least ? (double)rule->least : by;
}

void ref_route_scored(int32_t *ids, float *weights, float *s, const float *bias,
                      const struct fm_route_rule *rule, int N, int E, int K)
{
    struct fm_mark mark = fm_scratch_mark();
    float *c = fm_scratch((size_t)E * sizeof *c);
    for (int t = 0; t < N; t++) {
        float *row = s + (size_t)t * (size_t)E, *w = weights + (size_t)t * (size_t)K;
        int32_t *id = ids + (size_t)t * (size_t)K;
        double all = 0, chosen = 0;
        make_scores(row, rule->sigmoid, E);
        for (int e = 0; e < E; e++) {
            c[e] = bias ? row[e] + bias[e] : row[e];
            all += row[e];
        }
        if (rule->groups > 1)
            leave_groups_out(c, rule, E);
        for (int i = 0; i < K; i++) {
            id[i] = fm_largest_left(c, id, i, E);
            chosen += row[id[i]];
        }
        double nothing = all - all; /* NaN if a logit is NaN, to propagate it */
        for (int i = 0; i < K; i++)
            w[i] = (float)(row[id[i]] * (double)rule->scale / divisor(rule, chosen) + nothing);
    }
    fm_scratch_release(mark);
}

/* With w_i = scale s_i / d, the gradient at a chosen score is scale / d (g_i - sum_j g_j s_j / d),
 * without the sum if d is constant.  The choice is constant. */
void ref_route_scored_back(float *dlogits, const float *dweights, const int32_t *ids,
                           const float *s, const struct fm_route_rule *rule, int N, int E, int K)
{
    for (int t = 0; t < N; t++) {
        const float *row = s + (size_t)t * (size_t)E, *g = dweights + (size_t)t * (size_t)K;
        const int32_t *id = ids + (size_t)t * (size_t)K;
        float *d = dlogits + (size_t)t * (size_t)E;
        double sum = 0, product = 0, mean = 0;
        for (int i = 0; i < K; i++) {
            sum += row[id[i]];
            product += (double)row[id[i]] * g[i];
        }
        bool moves = rule->renormalised && sum + (double)rule->eps >= (double)rule->least;
        double by = divisor(rule, sum), less = moves ? product / by : 0, factor = rule->scale / by;
        if (!rule->sigmoid)
            for (int i = 0; i < K; i++)
                mean += row[id[i]] * factor * (g[i] - less);
        for (int e = 0; e < E; e++)
            d[e] = (float)(row[e] * -mean);
        for (int i = 0; i < K; i++) {
            double p = row[id[i]], ds = factor * (g[i] - less);
            d[id[i]] = (float)(rule->sigmoid ? p * (1 - p) * ds : p * (ds - mean));
        }
    }
}
