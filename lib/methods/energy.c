/*
 * Criterion `energy`: the sum over all rows of (w h_j)^2, times |down_j|^2, for the router's
 * weights w (n) and the column down_j of W_down.  This is the energy of CAMERA (Xu et al., AAAI
 * 2026, arXiv 2508.02322), [(1 - alpha) |Phi_j|_2^2 + alpha |Phi_j|_inf^2] |down_j|^2, at alpha 0;
 * the paper finds that alpha hardly matters.  In its authors' code (xuyuzhuang11/CAMERA, the option
 * reduce_ratio) alpha is 1 by default and 0.9 in the one example.  CAMERA scores a layer after the
 * layers before it have been pruned; here they are complete.
 *
 * The loops cost little compared with the expert itself, so they are plain, in double and in order
 * of rows.
 */
#include "lib/base/pool.h"
#include "lib/learn/criterion.h"

static void add(double *sums, const struct fm_expert_view *v, const struct fm_ops *ops, int I,
                int H)
{
    struct fm_mark mark = fm_scratch_mark();
    const float *h = fm_criterion_inner(v, I);
    float *squares = fm_scratch((size_t)I * sizeof *squares); /* |down_j|^2 */
    for (int r = 0; r < v->n; r++)
        for (int j = 0; j < I; j++) {
            double x = (double)v->weight[r] * (double)h[(size_t)r * (size_t)I + (size_t)j];
            sums[j] += x * x;
        }
    ops->dot_rows(squares, v->down, v->down, I, H, H);
    for (int j = 0; j < I; j++)
        sums[j] *= (double)squares[j];
    fm_scratch_release(mark);
}

const struct fm_criterion fm_criterion_energy = {.name = "energy", .add = add};
