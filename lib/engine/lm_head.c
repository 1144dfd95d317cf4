/*
 * The final norm, the LM head and the losses, in chunks of rows so that logits of a large
 * vocabulary need little memory.  Lanes of a chunk are processed in order: a teacher's logits are
 * kept for the lanes that are compared with them.  Losses of rows are added chunk by chunk, in
 * order.
 */
#include "lib/engine/sweeping.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "lib/base/pool.h"
#include "lib/block/norm.h"

/* Memory of the LM head for the lanes of one chunk of rows. */
struct chunk {
    int b, first, n;      /* batch, first row, rows */
    int32_t *target;      /* (n) */
    float **saved;        /* (lanes): logits of a lane that is a teacher */
    int32_t **top;        /* (lanes): most probable tokens of each lane, (n) */
    double *ce, *kl;      /* (n) */
    float *taught;        /* logits of the teaching sweep; NULL: none, or not computed yet */
    int32_t *best;        /* (n): most probable tokens of the teaching sweep */
    float *logits;        /* (n, V) of a lane that is not a teacher */
    float *capped;        /* (n, V): copy of capped logits, if the gradient replaces them */
    float *x, *xn, *rstd; /* (n, H), (n, H), (n) */
    float *dx, *dxn;      /* (n, H) */
};

static void take_memory(struct chunk *k, const struct fm_sweeping *r)
{
    const struct fm_config *c = r->sweep->config;
    const struct fm_sweep *other = r->sweep->options.teacher;
    int T = r->batch[k->b].T, H = other && other->config->H > c->H ? other->config->H : c->H;
    size_t n = (size_t)k->n, lanes = (size_t)r->lanes, h = n * (size_t)H, v = n * (size_t)c->V;
    k->target = fm_scratch(n * sizeof *k->target);
    k->saved = fm_scratch(lanes * sizeof *k->saved);
    k->top = fm_scratch(lanes * sizeof *k->top);
    for (size_t lane = 0; lane < lanes; lane++) {
        k->top[lane] = fm_scratch(n * sizeof(int32_t));
        k->saved[lane] = r->teaches[lane] ? fm_scratch_floats(v) : NULL;
    }
    k->best = fm_scratch(n * sizeof(int32_t));
    k->ce = fm_scratch(n * sizeof(double));
    k->kl = fm_scratch(n * sizeof(double));
    k->logits = fm_scratch_floats(v);
    k->capped = c->softcap > 0 ? fm_scratch_floats(v) : NULL;
    k->x = fm_scratch_floats(h);
    k->xn = fm_scratch_floats(h);
    k->dx = fm_scratch_floats(h);
    k->dxn = fm_scratch_floats(h);
    k->rstd = fm_scratch_floats(n);
    for (int i = 0; i < k->n; i++) {
        int at = k->first + i, t = at % T;
        k->target[i] = t < T - 1 ? r->batch[k->b].ids[at + 1] : -1;
    }
}

/* The memory of take_memory, with the logits of one lane and, if there are several lanes, those of
 * a teacher (`lanes` includes the teaching sweep), and a copy if they are capped; plus a copy of
 * the logits in bfloat16 for products. */
uint64_t fm_sweep_head_bytes(const struct fm_config *c, int rows, int lanes, int *tasks)
{
    uint64_t n = (uint64_t)(rows < FM_HEAD_ROWS ? rows : FM_HEAD_ROWS), row = sizeof(float);
    uint64_t logits = n * (uint64_t)c->V * ((lanes > 1 ? 2u : 1u) + (c->softcap > 0 ? 1u : 0u)),
             rounded = n * (uint64_t)c->V / 2;
    *tasks = (rows + FM_HEAD_ROWS - 1) / FM_HEAD_ROWS;
    return (logits + rounded + n * (4 * (uint64_t)c->H + (uint64_t)lanes + 8)) * row;
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
    const int32_t *best = teacher >= 0 ? k->top[teacher] : k->taught ? k->best : NULL;
    *m = (struct fm_measure){0};
    for (int i = 0; i < k->n; i++) {
        if (k->target[i] < 0)
            continue;
        m->ce += k->ce[i];
        m->kl += k->kl[i];
        m->agree += best && k->top[lane][i] == best[i];
        m->n++;
    }
}

static void show_rows(const struct fm_sweeping *r, const struct chunk *k, int lane,
                      const float *logits)
{
    const struct fm_sweep_options *options = &r->sweep->options;
    if (!options->rows)
        return;
    const struct fm_head_rows rows = {.batch = r->base + k->b,
                                      .lane = lane,
                                      .first = k->first,
                                      .n = k->n,
                                      .target = k->target,
                                      .logits = logits,
                                      .ce = k->ce,
                                      .kl = k->kl};
    options->rows(options->rows_self, &rows);
}

/* Offset of the chunk's rows in a record of the store whose rows have `row` bytes. */
static size_t offset_of(const struct fm_sweeping *r, const struct chunk *k, size_t row)
{
    const struct fm_batch *batch = &r->batch[k->b];
    const struct fm_block *block = &r->sweep->block[r->sweep->block_of[k->b]];
    int before = (k->b - block->first) * batch->S * batch->T; /* rows of earlier batches */
    return (size_t)(before + k->first) * row;
}

/* Compute logits (n, V) of the boundary x (n, H): final norm and LM head of the model of `s`. */
static void find_logits(const struct fm_sweep *s, const struct fm_nonlayer *nonlayer,
                        const struct chunk *k, const float *x, float *logits)
{
    const struct fm_config *c = s->config;
    fm_norm_forward(s->ops, c, k->xn, k->rstd, x, nonlayer->norm, nonlayer->norm_bias, k->n, c->H);
    s->ops->gemm(false, true, k->n, c->V, c->H, c->logit_scale, fm_f32(k->xn), c->H,
                 nonlayer->lm_head, c->H, 0, logits, c->V);
    if (nonlayer->lm_head_bias)
        s->ops->add_rows(logits, nonlayer->lm_head_bias, k->n, c->V);
    if (c->softcap > 0)
        s->ops->softcap(logits, c->softcap, (int64_t)k->n * c->V);
}

/* Compute logits and most probable tokens of the teaching sweep. */
static int head_taught(const struct fm_sweeping *r, struct chunk *k, struct fm_err *err)
{
    const struct fm_sweep *other = r->sweep->options.teacher;
    int V = r->sweep->config->V;
    void *x = NULL;
    if (!other)
        return FM_OK;
    assert(other->config->V == V && other->together == r->sweep->together);
    size_t row = (size_t)other->config->H * sizeof(float);
    int rc = fm_store_get(&other->store, (size_t)r->sweep->block_of[k->b], offset_of(r, k, row),
                          (size_t)k->n * row, &x, k->x, err);
    if (rc)
        return rc;
    float *logits = fm_scratch_floats((size_t)k->n * (size_t)V);
    find_logits(other, r->taught, k, x, logits);
    r->sweep->ops->loss(k->ce, k->kl, k->best, logits, NULL, k->target, k->n, V, NULL);
    k->taught = logits;
    show_rows(r, k, -1, logits);
    return FM_OK;
}

/* FM_ESAVED if the run is about to end: then products may be incomplete. */
static int check_going(struct fm_err *err)
{
    return fm_pool_ending() ? fm_fail(err, FM_ESAVED, "interrupted in the LM head") : FM_OK;
}

/* Final norm, logits and losses of one lane; its gradient at the last boundary if it has one. */
static int head_lane(const struct fm_sweeping *r, struct chunk *k, int lane, struct fm_measure *sum,
                     struct fm_err *err)
{
    const struct fm_sweep *s = r->sweep;
    const struct fm_config *c = s->config;
    const struct fm_lane *own = &r->lane[lane];
    const struct fm_batch *batch = &r->batch[k->b];
    size_t row = (size_t)c->H * sizeof(float), size = (size_t)k->n * row;
    size_t record = fm_sweeping_record(r, s->block_of[k->b], lane, s->end);
    size_t offset = offset_of(r, k, row);
    bool tapped = k->b == 0 && s->taps.lane == lane;
    void *x = NULL;
    int rc = fm_store_get(&s->store, record, offset, size, &x, k->x, err);
    if (rc)
        return rc;
    /* The teacher's logits are there, and nothing replaces them. */
    assert(own->teacher < lane && (own->teacher < 0 || k->saved[own->teacher]));
    float *logits = k->saved[lane] ? k->saved[lane] : k->logits;
    find_logits(s, r->nonlayer, k, x, logits);
    if (own->backward &&
        k->saved[lane]) /* the gradient must not overwrite logits that other lanes still need */
        s->ops->copy(logits = k->logits, k->saved[lane],
                     (size_t)k->n * (size_t)c->V * sizeof *logits);
    if (tapped && s->taps.logits)
        memcpy(s->taps.logits + (size_t)k->first * (size_t)c->V, logits,
               (size_t)k->n * (size_t)c->V * sizeof *logits);
    if (own->backward && k->capped)
        s->ops->copy(k->capped, logits, (size_t)k->n * (size_t)c->V * sizeof *logits);
    struct fm_loss_weights weights = {own->ce, own->kl, 1 / (float)(batch->S * (batch->T - 1))};
    s->ops->loss(k->ce, k->kl, k->top[lane], logits,
                 own->teacher >= 0 ? k->saved[own->teacher] : k->taught, k->target, k->n, c->V,
                 own->backward ? &weights : NULL); /* with weights, logits become their gradient */
    if (!own->backward)
        show_rows(r, k, lane, logits);
    sum_chunk(sum, k, lane, own->teacher);
    if (check_going(err))
        return err->code;
    if (!isfinite(sum->ce) || !isfinite(sum->kl))
        return fm_fail(err, FM_EFORMAT, "the loss of lane %d, batch %d is not finite", lane,
                       r->base + k->b);
    if (tapped)
        tap_logprob(r, k);
    if (!own->backward)
        return FM_OK;
    if (k->capped)
        s->ops->softcap_back(logits, k->capped, c->softcap, (int64_t)k->n * c->V);
    s->ops->zero(k->dx, size);
    s->ops->gemm(false, false, k->n, c->H, c->V, c->logit_scale, fm_f32(logits), c->V,
                 r->nonlayer->lm_head, c->H, 0, k->dxn, c->H);
    fm_norm_backward(s->ops, c, k->dx, k->dxn, x, r->nonlayer->norm, r->nonlayer->norm_bias,
                     k->rstd, k->n, c->H);
    record = fm_sweeping_gradient(r, s->block_of[k->b], lane);
    return fm_store_put(&s->store, record, offset, size, k->dx, err);
}

static void head_task(void *arg, int i)
{
    struct fm_sweeping *r = arg;
    int b = i / r->chunks, first = i % r->chunks * FM_HEAD_ROWS;
    if (first >= r->batch[b].S * r->batch[b].T)
        return;
    struct fm_measure *sum = r->sweep->partial + (size_t)i * (size_t)r->lanes;
    int tasks;
    int lanes = r->lanes + (r->sweep->options.teacher ? 1 : 0);
    fm_scratch_reserve(fm_sweep_head_bytes(r->sweep->config, r->sweep->rows, lanes, &tasks));
    struct fm_mark mark = fm_scratch_mark();
    struct fm_err err = {0};
    int rows = r->batch[b].S * r->batch[b].T - first, rc = FM_OK;
    struct chunk chunk = {.b = b, .first = first, .n = rows < FM_HEAD_ROWS ? rows : FM_HEAD_ROWS};
    take_memory(&chunk, r);
    rc = check_going(&err);
    if (!rc)
        rc = head_taught(r, &chunk, &err);
    for (int lane = 0; lane < r->lanes && !rc; lane++)
        rc = head_lane(r, &chunk, lane, sum + lane, &err);
    if (rc)
        fm_sweeping_fail(r, i, &err);
    else
        fm_sweeping_did_head(r, chunk.n);
    fm_scratch_release(mark);
}

/* Losses of every batch and lane, the chunks' sums added in order. */
int fm_lm_head_run(struct fm_sweeping *r, struct fm_measure *measure, struct fm_err *err)
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
