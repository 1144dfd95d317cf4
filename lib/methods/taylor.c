/*
 * Criterion `taylor`: the mean over batches of the sum over the channel's parameters of
 * (theta dL/dtheta)^2, the suite's own (fm-method(7)).  The scores are squared estimates of changes
 * of the loss.
 */
#include <assert.h>

#include "lib/learn/criterion.h"

static void add(double *sums, const struct fm_expert_view *v, const struct fm_ops *ops, int I,
                int H)
{
    if (v->parts > 0)
        ops->channel_scores_each(sums, v->gate_up, v->down, v->dgu, v->x, v->h, v->dy, v->first,
                                 v->parts, I, H);
    else
        ops->channel_scores(sums, v->gate_up, v->down, v->dgu, v->x, v->h, v->dy, v->n, I, H);
    assert(v->parts == 0 || !v->gate_up_bias);
    if (v->gate_up_bias)
        ops->bias_scores(sums, v->gate_up_bias, v->dgu, v->n, I);
}

static double score(double sum, int batches)
{
    return sum / batches;
}

static double sum_of(double score, int batches)
{
    return score * batches;
}

const struct fm_criterion fm_criterion_taylor = {.name = "taylor",
                                                 .backward = true,
                                                 .comparable = true,
                                                 .add = add,
                                                 .score = score,
                                                 .sum = sum_of};
