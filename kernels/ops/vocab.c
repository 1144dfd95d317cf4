/* Reference implementation of embedding, and of the losses of a logit row with their gradient. */
#include "kernels/ops/ops.h"

#include <math.h>

void ref_embed(float *x, const int32_t *ids, struct fm_in table, int N, int H)
{
    for (int t = 0; t < N; t++)
        fm_dtype_to_f32(x + (size_t)t * H, fm_element(table, (size_t)ids[t] * H).data, table.dtype,
                        (size_t)H);
}

/* log of sum of exp(l); *top is the index of the largest. */
static double log_sum(const float *l, int V, int *top)
{
    double sum = 0;
    *top = 0;
    for (int i = 1; i < V; i++)
        if (l[i] > l[*top])
            *top = i;
    for (int i = 0; i < V; i++)
        sum += exp((double)l[i] - l[*top]);
    return log(sum) + l[*top];
}

/* ce = -log p[target], kl = sum q (log q - log p), q the teacher's probabilities. */
static void loss_row(double *ce, double *kl, int32_t *top, float *logits, const float *teacher,
                     int target, int V, const struct fm_loss_weights *w)
{
    int best, unused;
    double log_z = log_sum(logits, V, &best);
    double log_zq = teacher ? log_sum(teacher, V, &unused) : 0;
    *ce = log_z - logits[target];
    *top = best;
    *kl = 0;
    for (int i = 0; i < V; i++) {
        double log_p = logits[i] - log_z, log_q = teacher ? teacher[i] - log_zq : 0;
        double q = teacher ? exp(log_q) : 0, p = exp(log_p);
        if (teacher)
            *kl += q * (log_q - log_p);
        if (w)
            logits[i] =
                (float)(w->scale * (w->ce * (p - (i == target)) + (teacher ? w->kl * (p - q) : 0)));
    }
}

void ref_loss(double *ce, double *kl, int32_t *top, float *logits, const float *teacher,
              const int32_t *target, int n, int V, const struct fm_loss_weights *weights)
{
    for (int r = 0; r < n; r++) {
        float *row = logits + (size_t)r * V;
        if (target[r] >= 0) {
            loss_row(&ce[r], &kl[r], &top[r], row, teacher ? teacher + (size_t)r * V : NULL,
                     target[r], V, weights);
            continue;
        }
        ce[r] = kl[r] = 0;
        top[r] = 0;
        for (int i = 0; weights && i < V; i++)
            row[i] = 0;
    }
}
