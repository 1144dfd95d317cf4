#include "lib/engine/sweeping.h"

#include <math.h>
#include <string.h>

#include "lib/base/pool.h"

/* What the head keeps of the lanes of one chunk of rows. */
struct chunk {
    int b, first, n;      /* batch, first row, rows */
    int32_t *target;      /* (n) */
    float *logits;        /* (n, V) of a lane that nobody learns from */
    float **kept;         /* (lanes): logits of a teacher */
    int32_t **top;        /* (lanes): its most probable tokens */
    float *x, *xn, *rstd; /* (n, H), (n, H), (n) */
    float *dx, *dxn;      /* (n, H) */
    double *ce, *kl;      /* (n) */
};

static void take_chunk(struct chunk *k, const struct fm_sweeping *r, int b, int first)
{
    const struct fm_config *c = r->sweep->config;
    int T = r->batch[b].T, N = r->batch[b].S * T;
    *k = (struct chunk){
        .b = b, .first = first, .n = N - first < FM_HEAD_ROWS ? N - first : FM_HEAD_ROWS};
    size_t n = (size_t)k->n, h = n * (size_t)c->H * sizeof(float);
    size_t v = n * (size_t)c->V * sizeof(float);
    k->target = fm_scratch(n * sizeof *k->target);
    k->logits = fm_scratch(v);
    k->kept = fm_scratch((size_t)r->lanes * sizeof *k->kept);
    k->top = fm_scratch((size_t)r->lanes * sizeof *k->top);
    for (int lane = 0; lane < r->lanes; lane++) {
        k->kept[lane] = r->teaches[lane] ? fm_scratch(v) : NULL;
        k->top[lane] = fm_scratch(n * sizeof(int32_t));
    }
    k->x = fm_scratch(h);
    k->xn = fm_scratch(h);
    k->dx = fm_scratch(h);
    k->dxn = fm_scratch(h);
    k->rstd = fm_scratch(n * sizeof(float));
    k->ce = fm_scratch(n * sizeof(double));
    k->kl = fm_scratch(n * sizeof(double));
    for (int i = 0; i < k->n; i++) {
        int at = first + i;
        k->target[i] = at % T == T - 1 ? -1 : r->batch[b].ids[at + 1];
    }
}

static void tap_logits(const struct fm_sweeping *r, const struct chunk *k, const float *logits)
{
    size_t V = (size_t)r->sweep->config->V;
    float *out = r->sweep->taps.logits;
    if (out)
        memcpy(out + (size_t)k->first * V, logits, (size_t)k->n * V * sizeof *logits);
}

static void tap_logprob(const struct fm_sweeping *r, const struct chunk *k)
{
    float *out = r->sweep->taps.logprob;
    int T = r->batch[k->b].T;
    for (int i = 0; out && i < k->n; i++) {
        int at = k->first + i;
        if (k->target[i] >= 0)
            out[at - at / T] = (float)-k->ce[i];
    }
}

static void sum_chunk(struct fm_measure *m, const struct chunk *k, int lane, int teacher)
{
    *m = (struct fm_measure){0};
    for (int i = 0; i < k->n; i++) {
        if (k->target[i] < 0)
            continue;
        m->ce += k->ce[i];
        m->kl += k->kl[i];
        m->agree += teacher >= 0 && k->top[lane][i] == k->top[teacher][i];
        m->n++;
    }
}

/* Final norm, logits and losses of one lane; its gradient at boundary L where it has one. */
static int head_lane(const struct fm_sweeping *r, struct chunk *k, int lane, struct fm_measure *sum,
                     struct fm_err *err)
{
    const struct fm_sweep *s = r->sweep;
    const struct fm_config *c = s->config;
    const struct fm_lane *who = &r->lane[lane];
    const struct fm_batch *batch = &r->batch[k->b];
    const struct fm_block *block = &s->block[s->block_of[k->b]];
    size_t row = (size_t)c->H * sizeof(float), size = (size_t)k->n * row;
    size_t record = fm_sweeping_record(r, s->block_of[k->b], lane, c->L);
    int before = (k->b - block->first) * batch->S * batch->T; /* rows of older batches */
    size_t offset = (size_t)(before + k->first) * row;
    bool tapped = k->b == 0 && s->taps.lane == lane;
    void *x = NULL;
    int rc = fm_store_get(&s->store, record, offset, size, &x, k->x, err);
    if (rc)
        return rc;
    float *logits = k->kept[lane] ? k->kept[lane] : k->logits;
    s->ops->norm(k->xn, k->rstd, x, r->ends->norm, r->ends->norm_bias, k->n, c->H, c->eps);
    s->ops->gemm(false, true, k->n, c->V, c->H, 1, k->xn, c->H, r->ends->head, c->H, 0, logits,
                 c->V);
    if (r->ends->head_bias)
        s->ops->add_rows(logits, r->ends->head_bias, k->n, c->V);
    if (who->backward && k->kept[lane]) /* the gradient may not overwrite what others learn from */
        memcpy(logits = k->logits, k->kept[lane], (size_t)k->n * (size_t)c->V * sizeof *logits);
    if (tapped)
        tap_logits(r, k, logits);
    const float *teacher = who->teacher >= 0 ? k->kept[who->teacher] : NULL;
    struct fm_loss_weights weights = {who->ce, who->kl, 1 / (float)(batch->S * (batch->T - 1))};
    s->ops->loss(k->ce, k->kl, k->top[lane], logits, teacher, k->target, k->n, c->V,
                 who->backward ? &weights : NULL);
    sum_chunk(sum, k, lane, who->teacher);
    if (!isfinite(sum->ce) || !isfinite(sum->kl))
        return fm_fail(err, FM_EFORMAT, "the loss of lane %d, batch %d is not finite", lane, k->b);
    if (tapped)
        tap_logprob(r, k);
    if (!who->backward)
        return FM_OK;
    memset(k->dx, 0, size);
    s->ops->gemm(false, false, k->n, c->H, c->V, 1, logits, c->V, r->ends->head, c->H, 0, k->dxn,
                 c->H);
    s->ops->norm_back(k->dx, k->dxn, x, r->ends->norm, r->ends->norm_bias, k->rstd, k->n, c->H);
    return fm_store_put(&s->store, record, offset, size, k->dx, err);
}

static void head_task(void *arg, int i)
{
    struct fm_sweeping *r = arg;
    int b = i / r->chunks, first = i % r->chunks * FM_HEAD_ROWS;
    if (first >= r->batch[b].S * r->batch[b].T)
        return;
    struct fm_measure *sum = r->sweep->partial + (size_t)i * (size_t)r->lanes;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_err err = {0};
    struct chunk chunk;
    take_chunk(&chunk, r, b, first);
    int rc = FM_OK;
    for (int lane = 0; lane < r->lanes && !rc; lane++)
        rc = head_lane(r, &chunk, lane, sum + lane, &err);
    if (rc)
        fm_sweeping_fail(r, i, &err);
    fm_scratch_release(mark);
}

/* Losses of every batch and lane, the chunks' sums added in order. */
int fm_head_run(struct fm_sweeping *r, struct fm_measure *measure, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    size_t lanes = (size_t)r->lanes, chunks = (size_t)r->chunks;
    memset(s->partial, 0, (size_t)r->batches * chunks * lanes * sizeof *s->partial);
    fm_pool_for(r->batches * r->chunks, head_task, r);
    int rc = fm_sweeping_settle(r, err);
    for (size_t i = 0; !rc && i < (size_t)r->batches * lanes; i++) {
        measure[i] = (struct fm_measure){0};
        for (size_t k = 0; k < chunks; k++) {
            const struct fm_measure *m = s->partial + (i / lanes * chunks + k) * lanes + i % lanes;
            measure[i].ce += m->ce;
            measure[i].kl += m->kl;
            measure[i].agree += m->agree;
            measure[i].n += m->n;
        }
    }
    return rc;
}
