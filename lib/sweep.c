#include "lib/sweep.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/layer.h"
#include "lib/store.h"

/* Rows of one head task: fixed, so that results depend on nothing else. */
#define HEAD_ROWS 128

/* A layer whose experts hold an adapter, shared by all lanes that name it. */
struct merged {
    const struct fm_adapter *adapter;
    bool round;
    float *gate_up, *down;
    struct fm_layer layer;
};

struct fm_sweep {
    struct fm_model *model;
    const struct fm_ops *ops, *f32; /* f32: adapters are merged in float32 whatever ops rounds */
    const struct fm_config *config;
    struct fm_sweep_options options;
    struct fm_sweep_taps taps;
    int batches, rows, T, lanes, slots;
    float *cos, *sin;
    struct fm_store store;
    int64_t *routed;            /* (batches, lanes, E) of one layer */
    struct fm_measure *partial; /* (batches, chunks, lanes) */
    float *scale;               /* (lanes) */
    bool *computed;             /* (batches, lanes): waiting for their commit */
    struct merged *merged;      /* (lanes) */
    int merges;
};

/* One fm_sweep_run: shared by all its tasks. */
struct run {
    struct fm_sweep *sweep;
    const struct fm_batch *batch;
    int batches;
    const struct fm_lane *lane;
    int lanes;
    const struct fm_visitor *visitor;
    const struct fm_ends *ends;
    const struct fm_layer *layer;
    int l, done, total;
    int chunks;                 /* of the largest batch */
    int back[FM_LANES_MAX];     /* lanes with a gradient */
    int nth[FM_LANES_MAX];      /* index of a lane in back, or -1 */
    bool teaches[FM_LANES_MAX]; /* some other lane names it */
    int backs;
    pthread_mutex_t lock;
    pthread_cond_t committed;
    int commits; /* tasks of this layer committed: tasks [0, commits) */
    bool committing;
    int failed; /* lowest task that failed, INT_MAX: none */
    struct fm_err err;
};

static void fail_task(struct run *r, int task, const struct fm_err *err)
{
    pthread_mutex_lock(&r->lock);
    if (task < r->failed) {
        r->failed = task;
        r->err = *err;
    }
    pthread_mutex_unlock(&r->lock);
}

static int settle(const struct run *r, struct fm_err *err)
{
    if (r->failed == INT_MAX)
        return FM_OK;
    *err = r->err;
    return err->code;
}

/* Floats of a micro-batch's boundary. */
static size_t boundary_count(const struct run *r, int b)
{
    return (size_t)r->batch[b].S * (size_t)r->batch[b].T * (size_t)r->sweep->config->H;
}

/*
 * Record of boundary l (the input of layer l; L: of the head) of a batch and lane.  Lanes
 * without a gradient need the newest alone.  The gradient of the others takes the place of
 * boundary L.  What is used most often has the lowest numbers and stays in memory.
 */
static size_t record_of(const struct run *r, int b, int lane, int l)
{
    int L = r->sweep->config->L, nth = r->nth[lane];
    if (nth < 0 || l == L)
        return (size_t)b * (size_t)r->lanes + (size_t)lane;
    size_t above = (size_t)(L - 1 - l) * (size_t)r->batches + (size_t)b;
    return (size_t)r->batches * (size_t)r->lanes + above * (size_t)r->backs + (size_t)nth;
}

static struct fm_pass pass_of(const struct run *r, int b, int lane)
{
    const struct fm_sweep *s = r->sweep;
    const struct fm_lane *who = &r->lane[lane];
    struct fm_pass pass = {.ops = s->ops,
                           .config = s->config,
                           .layer = r->layer,
                           .cos = s->cos,
                           .sin = s->sin,
                           .S = r->batch[b].S,
                           .T = r->batch[b].T};
    if (who->widths)
        pass.widths = who->widths + (size_t)r->l * (size_t)s->config->E;
    for (int m = 0; who->adapter && m < s->merges; m++)
        if (s->merged[m].adapter == who->adapter && s->merged[m].round == who->round)
            pass.layer = &s->merged[m].layer;
    return pass;
}

static int check_finite(const struct run *r, const float *x, int b, int lane, const char *what,
                        struct fm_err *err)
{
    size_t n = boundary_count(r, b), bad = fm_dtype_nonfinite(x, FM_F32, n);
    if (bad == n)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "layer %d: %s of lane %d, batch %d, token %zu is not finite; check the weights",
                   r->l, what, lane, b, bad / (size_t)r->sweep->config->H);
}

/* (E): rows of each expert in this layer. */
static int64_t *routed_of(const struct run *r, int b, int lane)
{
    size_t pair = (size_t)b * (size_t)r->lanes + (size_t)lane;
    return r->sweep->routed + pair * (size_t)r->sweep->config->E;
}

static int forward_one(const struct run *r, int b, int lane, struct fm_err *err)
{
    const struct fm_sweep *s = r->sweep;
    const struct fm_config *c = s->config;
    struct fm_pass pass = pass_of(r, b, lane);
    size_t in = record_of(r, b, lane, r->l), out = record_of(r, b, lane, r->l + 1);
    size_t bytes = boundary_count(r, b) * sizeof(float);
    float *spare = fm_scratch(bytes), *spare_out = fm_scratch(bytes);
    void *x = NULL;
    int rc = FM_OK;
    if (r->l == 0) {
        x = fm_store_place(&s->store, in, spare);
        s->ops->embed(x, r->batch[b].ids, r->ends->embed, pass.S * pass.T, c->H);
        if (in != out)
            rc = fm_store_put(&s->store, in, 0, bytes, x, err);
    } else {
        rc = fm_store_get(&s->store, in, 0, bytes, &x, spare, err);
    }
    if (rc)
        return rc;
    float *y = in == out ? x : fm_store_place(&s->store, out, spare_out);
    fm_layer_forward(&pass, y, x, routed_of(r, b, lane));
    rc = check_finite(r, y, b, lane, "an activation", err);
    return rc ? rc : fm_store_put(&s->store, out, 0, bytes, y, err);
}

static void forward_task(void *arg, int i)
{
    struct run *r = arg;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_err err = {0};
    if (forward_one(r, i / r->lanes, i % r->lanes, &err))
        fail_task(r, i, &err);
    fm_scratch_release(mark);
}

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

static void take_chunk(struct chunk *k, const struct run *r, int b, int first)
{
    const struct fm_config *c = r->sweep->config;
    int T = r->batch[b].T, N = r->batch[b].S * T;
    *k = (struct chunk){.b = b, .first = first, .n = N - first < HEAD_ROWS ? N - first : HEAD_ROWS};
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

static void tap_logits(const struct run *r, const struct chunk *k, const float *logits)
{
    size_t V = (size_t)r->sweep->config->V;
    float *out = r->sweep->taps.logits;
    if (out)
        memcpy(out + (size_t)k->first * V, logits, (size_t)k->n * V * sizeof *logits);
}

static void tap_logprob(const struct run *r, const struct chunk *k)
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
static int head_lane(const struct run *r, struct chunk *k, int lane, struct fm_measure *sum,
                     struct fm_err *err)
{
    const struct fm_sweep *s = r->sweep;
    const struct fm_config *c = s->config;
    const struct fm_lane *who = &r->lane[lane];
    const struct fm_batch *batch = &r->batch[k->b];
    size_t row = (size_t)c->H * sizeof(float), record = record_of(r, k->b, lane, c->L);
    size_t offset = (size_t)k->first * row, size = (size_t)k->n * row;
    bool tapped = k->b == 0 && s->taps.lane == lane;
    void *x = NULL;
    int rc = fm_store_get(&s->store, record, offset, size, &x, k->x, err);
    if (rc)
        return rc;
    float *logits = k->kept[lane] ? k->kept[lane] : k->logits;
    s->ops->rmsnorm(k->xn, k->rstd, x, r->ends->norm, k->n, c->H, c->eps);
    s->ops->gemm(false, true, k->n, c->V, c->H, 1, k->xn, c->H, r->ends->head, c->H, 0, logits,
                 c->V);
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
    s->ops->rmsnorm_back(k->dx, k->dxn, x, r->ends->norm, k->rstd, k->n, c->H);
    return fm_store_put(&s->store, record, offset, size, k->dx, err);
}

static void head_task(void *arg, int i)
{
    struct run *r = arg;
    int b = i / r->chunks, first = i % r->chunks * HEAD_ROWS;
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
        fail_task(r, i, &err);
    fm_scratch_release(mark);
}

/* Losses of every batch and lane, the chunks' sums added in order. */
static int run_head(struct run *r, struct fm_measure *measure, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    size_t lanes = (size_t)r->lanes, chunks = (size_t)r->chunks;
    memset(s->partial, 0, (size_t)r->batches * chunks * lanes * sizeof *s->partial);
    fm_pool_for(r->batches * r->chunks, head_task, r);
    int rc = settle(r, err);
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

static int backward_one(const struct run *r, int i, int b, int lane, struct fm_err *err)
{
    const struct fm_sweep *s = r->sweep;
    struct fm_pass pass = pass_of(r, b, lane);
    size_t count = boundary_count(r, b), bytes = count * sizeof(float);
    size_t in = record_of(r, b, lane, r->l), out = record_of(r, b, lane, s->config->L);
    float *spare = fm_scratch(bytes), *spare_out = fm_scratch(bytes);
    void *x = NULL, *dx = NULL;
    int rc = fm_store_get(&s->store, in, 0, bytes, &x, spare, err);
    if (!rc)
        rc = fm_store_get(&s->store, out, 0, bytes, &dx, spare_out, err);
    if (rc)
        return rc;
    struct fm_expert_view where = {.layer = r->l, .lane = lane, .batch = b, .slot = i % s->slots};
    float *tap = b == 0 && s->taps.lane == lane ? s->taps.dx : NULL;
    if (r->l == s->config->L - 1) {
        float *d = dx, scale = s->scale[lane];
        for (size_t j = 0; scale != 1 && j < count; j++)
            d[j] *= scale;
        if (tap)
            memcpy(tap + (size_t)(r->l + 1) * count, dx, bytes);
    }
    fm_layer_backward(&pass, dx, x, r->visitor, &where);
    if (tap)
        memcpy(tap + (size_t)r->l * count, dx, bytes);
    rc = check_finite(r, dx, b, lane, "a gradient", err);
    return rc ? rc : fm_store_put(&s->store, out, 0, bytes, dx, err);
}

/* The slot of task i is free once the task that had it before is committed.  That one and all
 * older tasks were taken by other threads, so waiting for them ends. */
static void wait_for_slot(struct run *r, int i)
{
    pthread_mutex_lock(&r->lock);
    while (i - r->commits >= r->sweep->slots)
        pthread_cond_wait(&r->committed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* Task i is computed: commit what is next in order, one at a time, without holding the lock. */
static void commit_ready(struct run *r, int i)
{
    struct fm_sweep *s = r->sweep;
    const struct fm_visitor *v = r->visitor;
    pthread_mutex_lock(&r->lock);
    s->computed[i] = true;
    if (r->committing) {
        pthread_mutex_unlock(&r->lock);
        return;
    }
    r->committing = true;
    int n = r->batches * r->backs;
    while (r->commits < n && s->computed[r->commits]) {
        int j = r->commits;
        bool call = v && v->commit && r->failed == INT_MAX;
        pthread_mutex_unlock(&r->lock);
        if (call)
            v->commit(v->self, r->l, j / r->backs, r->back[j % r->backs], j % s->slots);
        pthread_mutex_lock(&r->lock);
        r->commits++;
        pthread_cond_broadcast(&r->committed);
    }
    r->committing = false;
    pthread_mutex_unlock(&r->lock);
}

static void backward_task(void *arg, int i)
{
    struct run *r = arg;
    struct fm_err err = {0};
    wait_for_slot(r, i);
    struct fm_mark mark = fm_scratch_mark();
    if (backward_one(r, i, i / r->backs, r->back[i % r->backs], &err))
        fail_task(r, i, &err);
    fm_scratch_release(mark);
    commit_ready(r, i);
}

/* count floats to the stored dtype and back, in place. */
static void round_weights(float *w, size_t count, enum fm_dtype dtype)
{
    float stored[1024]; /* room for as many values of any weight dtype */
    for (size_t i = 0; i < count; i += 1024) {
        size_t n = count - i < 1024 ? count - i : 1024;
        fm_dtype_from_f32(stored, w + i, dtype, n);
        fm_dtype_to_f32(w + i, stored, dtype, n);
    }
}

static void merge_task(void *arg, int i)
{
    struct run *r = arg;
    struct fm_sweep *s = r->sweep;
    const struct fm_config *c = s->config;
    struct merged *m = &s->merged[i / c->E];
    int e = i % c->E;
    size_t H = (size_t)c->H, row0 = (size_t)r->layer->row0[e], rows = (size_t)r->layer->cap[e];
    float *gate_up = m->gate_up + 2 * row0 * H, *down = m->down + row0 * H;
    memcpy(gate_up, r->layer->gate_up + 2 * row0 * H, 2 * rows * H * sizeof *gate_up);
    memcpy(down, r->layer->down + row0 * H, rows * H * sizeof *down);
    fm_adapter_merge(m->adapter, s->f32, gate_up, down, r->l, e);
    if (m->round) {
        size_t k = m->adapter->widths[(size_t)r->l * (size_t)c->E + (size_t)e];
        round_weights(gate_up, 2 * k * H, fm_model_dtype(s->model));
        round_weights(down, k * H, fm_model_dtype(s->model));
    }
}

/* The next layer of a direction is resident, with every adapter's copy. */
static int enter_layer(struct run *r, int l, int next, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    if (s->options.stop && *s->options.stop)
        return fm_fail(err, FM_ESAVED, "interrupted before layer %d", l);
    int rc = fm_model_layer(s->model, l, next, &r->layer, err);
    if (rc)
        return rc;
    r->l = l;
    for (int m = 0; m < s->merges; m++) {
        s->merged[m].layer = *r->layer;
        s->merged[m].layer.gate_up = s->merged[m].gate_up;
        s->merged[m].layer.down = s->merged[m].down;
    }
    fm_pool_for(s->merges * s->config->E, merge_task, r);
    return FM_OK;
}

static void leave_layer(struct run *r)
{
    const struct fm_sweep_options *o = &r->sweep->options;
    r->done++;
    if (o->progress)
        o->progress(o->progress_self, r->done, r->total);
}

static int run_forward(struct run *r, int64_t *counts, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    int L = s->config->L, E = s->config->E;
    for (int l = 0; l < L; l++) {
        int rc = enter_layer(r, l, l + 1 < L ? l + 1 : -1, err);
        if (rc)
            return rc;
        fm_pool_for(r->batches * r->lanes, forward_task, r);
        if ((rc = settle(r, err)) != FM_OK)
            return rc;
        for (int i = 0; counts && i < r->batches * r->lanes; i++)
            for (int e = 0; e < E; e++)
                counts[((size_t)(i % r->lanes) * (size_t)L + (size_t)l) * (size_t)E + (size_t)e] +=
                    s->routed[(size_t)i * (size_t)E + (size_t)e];
        leave_layer(r);
    }
    return FM_OK;
}

static int run_backward(struct run *r, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    const struct fm_visitor *v = r->visitor;
    int n = r->batches * r->backs;
    for (int l = s->config->L - 1; l >= 0; l--) {
        int rc = enter_layer(r, l, l - 1, err);
        if (!rc && v && v->layer_begin)
            rc = v->layer_begin(v->self, l, err);
        if (rc)
            return rc;
        r->commits = 0;
        memset(s->computed, 0, (size_t)n * sizeof *s->computed);
        fm_pool_for(n, backward_task, r);
        rc = settle(r, err);
        if (!rc && v && v->layer_end)
            rc = v->layer_end(v->self, l, err);
        if (rc)
            return rc;
        leave_layer(r);
    }
    return FM_OK;
}

/* Which lanes go back, which teach; checks of what callers must not get wrong. */
static void sort_lanes(struct run *r)
{
    for (int i = 0; i < r->lanes; i++) {
        int teacher = r->lane[i].teacher;
        assert(teacher < i);
        r->teaches[i] = false;
        r->nth[i] = r->lane[i].backward ? r->backs : -1;
        if (r->lane[i].backward)
            r->back[r->backs++] = i;
        if (teacher >= 0)
            r->teaches[teacher] = true;
    }
}

/* Largest number of expert channels in a layer. */
static size_t channels_max(const struct fm_sweep *s)
{
    const uint32_t *caps = fm_model_caps(s->model);
    size_t most = 0, E = (size_t)s->config->E;
    for (size_t l = 0; l < (size_t)s->config->L; l++) {
        size_t sum = 0;
        for (size_t e = 0; e < E; e++)
            sum += caps[l * E + e];
        most = sum > most ? sum : most;
    }
    return most;
}

/* One merged copy per adapter and rounding that the lanes name; blocks stay for the next run. */
static int prepare_merges(struct run *r, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    size_t H = (size_t)s->config->H;
    s->merges = 0;
    for (int i = 0; i < r->lanes; i++) {
        const struct fm_lane *who = &r->lane[i];
        int m = 0;
        while (m < s->merges &&
               (s->merged[m].adapter != who->adapter || s->merged[m].round != who->round))
            m++;
        if (!who->adapter || m < s->merges)
            continue;
        struct merged *new = &s->merged[s->merges++];
        new->adapter = who->adapter;
        new->round = who->round;
        if (new->gate_up)
            continue;
        new->gate_up = fm_alloc(2 * channels_max(s), H * sizeof(float), "merged weights", err);
        new->down = fm_alloc(channels_max(s), H * sizeof(float), "merged weights", err);
        if (!new->gate_up || !new->down)
            return err->code;
    }
    return FM_OK;
}

/* Records for the boundaries of this run; the store of the last run is kept where it is enough. */
static int prepare_store(struct run *r, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    size_t batches = (size_t)r->batches, row = (size_t)s->config->H * sizeof(float), bytes = 0;
    size_t want = batches * ((size_t)r->lanes + (size_t)r->backs * (size_t)s->config->L);
    if (want <= s->store.count)
        return FM_OK;
    if (!fm_mul(&bytes, (size_t)s->rows, row))
        return fm_fail(err, FM_ENOMEM, "a boundary of %d tokens is too large", s->rows);
    fm_store_release(&s->store);
    return fm_store_init(&s->store, bytes, want, s->options.memory, err);
}

int fm_sweep_run(struct fm_sweep *s, const struct fm_batch *batch, int batches,
                 const struct fm_lane *lane, int lanes, const struct fm_visitor *visitor,
                 struct fm_measure *measure, int64_t *counts, struct fm_err *err)
{
    const struct fm_config *c = s->config;
    assert(batches > 0 && batches <= s->batches && lanes > 0 && lanes <= s->lanes);
    struct run r = {.sweep = s,
                    .batch = batch,
                    .batches = batches,
                    .lane = lane,
                    .lanes = lanes,
                    .visitor = visitor,
                    .failed = INT_MAX,
                    .lock = PTHREAD_MUTEX_INITIALIZER,
                    .committed = PTHREAD_COND_INITIALIZER};
    for (int b = 0; b < batches; b++) {
        int rows = batch[b].S * batch[b].T, chunks = (rows + HEAD_ROWS - 1) / HEAD_ROWS;
        assert(batch[b].S > 0 && batch[b].T > 1 && batch[b].T <= s->T && rows <= s->rows);
        r.chunks = chunks > r.chunks ? chunks : r.chunks;
    }
    sort_lanes(&r);
    r.total = r.backs > 0 ? 2 * c->L : c->L;
    if (counts)
        memset(counts, 0, (size_t)lanes * (size_t)c->L * (size_t)c->E * sizeof *counts);
    for (int i = 0; i < lanes; i++)
        s->scale[i] = 1;
    int rc = prepare_merges(&r, err);
    if (!rc)
        rc = prepare_store(&r, err);
    if (!rc)
        rc = fm_model_ends(s->model, &r.ends, err);
    if (!rc)
        rc = run_forward(&r, counts, err);
    if (!rc)
        rc = run_head(&r, measure, err);
    if (!rc && visitor && visitor->losses)
        visitor->losses(visitor->self, measure, s->scale);
    if (!rc && r.backs > 0)
        rc = run_backward(&r, err);
    pthread_mutex_destroy(&r.lock);
    pthread_cond_destroy(&r.committed);
    return rc;
}

int fm_sweep_new(struct fm_sweep **sweep, struct fm_model *model, const struct fm_ops *ops,
                 int batches, int rows, int T, int lanes, const struct fm_sweep_options *options,
                 struct fm_err *err)
{
    const struct fm_config *c = fm_model_config(model);
    assert(batches > 0 && rows >= T && T > 1 && lanes > 0 && lanes <= FM_LANES_MAX);
    *sweep = NULL;
    if (rows > INT_MAX / c->K || batches > INT_MAX / lanes / (rows / HEAD_ROWS + 1))
        return fm_fail(err, FM_EUSAGE, "%d batches of %d tokens are too many; use a smaller batch",
                       batches, rows);
    struct fm_sweep *s = fm_alloc(1, sizeof *s, "a sweep", err);
    if (!s)
        return err->code;
    *s = (struct fm_sweep){.model = model,
                           .ops = ops,
                           .f32 = ops,
                           .config = c,
                           .options = *options,
                           .taps = {.lane = -1},
                           .batches = batches,
                           .rows = rows,
                           .T = T,
                           .lanes = lanes};
    size_t pairs = (size_t)batches * (size_t)lanes, half = (size_t)c->C / 2;
    size_t chunks = (size_t)rows / HEAD_ROWS + 1, slots = 2 * (size_t)fm_pool_threads();
    s->slots = fm_pool_threads() == 1 ? 1 : (int)(slots < pairs ? slots : pairs);
    s->cos = fm_alloc((size_t)T * half, sizeof *s->cos, "rotary angles", err);
    s->sin = fm_alloc((size_t)T * half, sizeof *s->sin, "rotary angles", err);
    s->routed = fm_alloc(pairs * (size_t)c->E, sizeof *s->routed, "token counts", err);
    s->partial = fm_alloc(pairs * chunks, sizeof *s->partial, "losses", err);
    s->scale = fm_alloc((size_t)lanes, sizeof *s->scale, "loss factors", err);
    s->computed = fm_alloc(pairs, sizeof *s->computed, "a commit list", err);
    s->merged = fm_alloc((size_t)lanes, sizeof *s->merged, "merged weights", err);
    if (!s->cos || !s->sin || !s->routed || !s->partial || !s->scale || !s->computed || !s->merged)
        goto out;
    if (ops != fm_ops_ref() && fm_ops_cpu(&s->f32, FM_PRECISION_F32, err))
        goto out;
    fm_layer_angles(s->cos, s->sin, c, T);
    *sweep = s;
    return FM_OK;
out:
    fm_sweep_free(s);
    return err->code;
}

void fm_sweep_free(struct fm_sweep *s)
{
    if (!s)
        return;
    for (int i = 0; s->merged && i < s->lanes; i++) {
        free(s->merged[i].gate_up);
        free(s->merged[i].down);
    }
    free(s->merged);
    free(s->computed);
    free(s->scale);
    free(s->partial);
    free(s->routed);
    free(s->cos);
    free(s->sin);
    fm_store_release(&s->store);
    free(s);
}

int fm_sweep_slots(const struct fm_sweep *s)
{
    return s->slots;
}

void fm_sweep_tap(struct fm_sweep *s, const struct fm_sweep_taps *taps)
{
    s->taps = *taps;
}
