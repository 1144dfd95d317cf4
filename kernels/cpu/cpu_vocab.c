/* Embedding and losses on blocks of rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"

#include <math.h>

#include "lib/base/pool.h"

struct embed {
    float *x;
    const int32_t *ids;
    struct fm_in table;
    int H;
};

static void embed_rows(const void *args, int64_t first, int64_t last)
{
    const struct embed *a = args;
    ref_embed(a->x + first * a->H, a->ids + first, a->table, (int)(last - first), a->H);
}

void cpu_embed(float *x, const int32_t *ids, struct fm_in table, int N, int H)
{
    fm_cpu_rows(N, H, embed_rows, &(struct embed){x, ids, table, H});
}

struct loss {
    double *ce, *kl;
    int32_t *top;
    float *logits;
    const float *teacher;
    const int32_t *target;
    int V;
    const struct fm_loss_weights *weights;
};

/* e[i] = exp(l[i] - max). */
FM_INLINE void exp_row(float *restrict e, const float *restrict l, float max, int V)
{
    for (int i = 0; i < V; i++)
        e[i] = fm_expf(l[i] - max);
}

/*
 * With t and s the logits of teacher and student minus the maximum of their row, eq = exp(t), and
 * zq and zp the sums of exp(t) and exp(s): kl = sum eq (t - s) / zq - log zq + log zp, which is
 * exactly 0 if teacher and student agree.  Returns sum eq (t - s).
 */
FM_INLINE double sum_kl(const float *eq, const float *t, const float *l, float max_t, float max_l,
                        int V)
{
    float lane[FM_LANES] = {0};
    int i = 0;
    for (; i + FM_LANES <= V; i += FM_LANES)
        for (int j = 0; j < FM_LANES; j++)
            lane[j] += eq[i + j] * ((t[i + j] - max_t) - (l[i + j] - max_l));
    for (int j = 0; i < V; i++, j++)
        lane[j] += eq[i] * ((t[i] - max_t) - (l[i] - max_l));
    return fm_add_lanes(lane);
}

static int32_t find_first(const float *l, int V, float value)
{
    for (int i = 0; i < V; i++)
        if (l[i] == value)
            return i;
    return 0; /* l[0] is NaN, and so is the maximum */
}

/* One row; e and eq (V) are scratch. */
FM_CLONES(void, loss_row, (const struct loss *a, int64_t r, float *restrict e, float *restrict eq),
          (a, r, e, eq))
{
    int V = a->V, target = a->target[r];
    float *restrict l = a->logits + r * V;
    const float *restrict t = a->teacher ? a->teacher + r * V : NULL;
    float max = fm_max(l, V), at_target = l[target];
    exp_row(e, l, max, V);
    double z = fm_sum(e, V), zq = 1;
    a->top[r] = find_first(l, V, max);
    a->ce[r] = log(z) - ((double)at_target - max);
    a->kl[r] = 0;
    if (t) {
        float max_t = fm_max(t, V);
        exp_row(eq, t, max_t, V);
        zq = fm_sum(eq, V);
        a->kl[r] = sum_kl(eq, t, l, max_t, max, V) / zq + (log(z) - log(zq));
    }
    if (!a->weights)
        return;
    const struct fm_loss_weights *w = a->weights;
    float p_scale = (float)(w->scale * ((double)w->ce + (t ? w->kl : 0)) / z);
    float q_scale = (float)((double)w->scale * w->kl / zq);
    if (t)
        for (int i = 0; i < V; i++)
            l[i] = p_scale * e[i] - q_scale * eq[i];
    else
        for (int i = 0; i < V; i++)
            l[i] = p_scale * e[i];
    l[target] -= w->scale * w->ce;
}

static void loss_rows(const void *args, int64_t first, int64_t last)
{
    const struct loss *a = args;
    struct fm_mark mark = fm_scratch_mark();
    float *e = fm_scratch((size_t)a->V * sizeof *e);
    float *eq = fm_scratch((size_t)a->V * sizeof *eq);
    for (int64_t r = first; r < last; r++) {
        if (a->target[r] >= 0) {
            loss_row(a, r, e, eq);
            continue;
        }
        a->ce[r] = a->kl[r] = 0;
        a->top[r] = 0;
        if (a->weights)
            memset(a->logits + r * a->V, 0, (size_t)a->V * sizeof(float));
    }
    fm_scratch_release(mark);
}

void cpu_loss(double *ce, double *kl, int32_t *top, float *logits, const float *teacher,
              const int32_t *target, int n, int V, const struct fm_loss_weights *weights)
{
    fm_cpu_rows(n, 16 * (int64_t)V, loss_rows,
                &(struct loss){ce, kl, top, logits, teacher, target, V, weights});
}
