/*
 * Criterion `activation`: the root of the sum over batches of (mean over the batch's rows of
 * |h_j|)^2.  This is Minitron's (Muralidharan et al., NeurIPS 2024, arXiv 2407.14679), with the
 * mean over a sequence and the L2 norm over sequences, as in NVIDIA's Model-Optimizer
 * (MegatronL2NormHook), for each expert separately.
 */
#include <math.h>

#include "lib/base/pool.h"
#include "lib/learn/criterion.h"

static void add(double *sums, const struct fm_expert_view *v, const struct fm_ops *ops, int I,
                int H)
{
    (void)ops, (void)H;
    struct fm_mark mark = fm_scratch_mark();
    const float *h = fm_criterion_inner(v, I);
    for (int r = 0; r < v->n; r++)
        for (int j = 0; j < I; j++)
            sums[j] += fabs((double)h[(size_t)r * (size_t)I + (size_t)j]);
    for (int j = 0; j < I; j++) {
        double mean = sums[j] / v->n;
        sums[j] = mean * mean;
    }
    fm_scratch_release(mark);
}

static double score(double sum, int batches)
{
    (void)batches;
    return sqrt(sum);
}

static double sum_of(double score, int batches)
{
    (void)batches;
    return score * score;
}

const struct fm_criterion fm_criterion_activation = {
    .name = "activation", .add = add, .score = score, .sum = sum_of};
