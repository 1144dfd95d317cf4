/*
 * Recovery `down`: the down projections of every expert in closed form, from one forward sweep of
 * the full model (fm-method(7)).  With h the inner activations of the rows routed to an expert, g
 * the router's weights, C = sum of g^2 h h^T, W (I, H) the ranked projection, and masks b that keep
 * the first k_b channels with weights w_b:
 *
 *     v_i = sum of w_b over the masks with k_b > i
 *     (M + s) X = T W,   M_ij = C_ij v_max(i,j),   T_ij = C_ij (v_i - v_max(i,j)),   B = W + X
 *
 * which is the least-squares solution of sum_b w_b |h P_b B - h W|^2 with a ridge s |B - W|^2, P_b
 * the projection on the kept channels.  s is RIDGE times the mean of M's diagonal.  Channels that
 * no mask keeps, and experts that lose nothing or have no rows, are copied.
 *
 * The scaled rows of one layer are in memory.  They are gathered in order of micro-batch, and
 * experts are solved one after another by operations that give the same bytes for any number of
 * threads.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/learn/criterion.h"
#include "lib/learn/recovery.h"
#include "lib/learn/task.h"

#define RIDGE 0.01

/* Where the rows of an expert in a micro-batch are. */
struct place {
    size_t at;
    int n;
};

struct solver {
    struct fm_solving *s;
    const struct fm_config *config;
    const struct fm_ops *ops;
    float *rows; /* (tokens K, I) g h, in any order */
    size_t room;
    atomic_size_t used;
    struct place *place; /* (batches, E) */
    int batches;
    /* Of one expert. */
    double *v, *matrix, *x;                 /* (I + 1), (I, I), (I, H) */
    float *gathered, *moments, *w, *change; /* (rows, I), (I, I), (I, H), (I, H) */
};

static double floats(const struct fm_config *c, const struct fm_recover_options *o, double kept)
{
    (void)o, (void)kept;
    return (double)c->E * c->I * c->H;
}

static int begin_layer(void *self, int m, struct fm_err *err)
{
    (void)m, (void)err;
    struct solver *s = self;
    atomic_store(&s->used, 0);
    memset(s->place, 0, (size_t)s->batches * (size_t)s->config->E * sizeof *s->place);
    return FM_OK;
}

static void take_rows(void *self, const struct fm_expert_view *v)
{
    struct solver *s = self;
    size_t I = (size_t)s->config->I, n = (size_t)v->n, at = atomic_fetch_add(&s->used, n);
    s->place[(size_t)v->batch * (size_t)s->config->E + (size_t)v->expert] =
        (struct place){at, v->n};
    if (v->layer < s->s->solved)
        return;
    struct fm_mark mark = fm_scratch_mark();
    const float *h = fm_criterion_inner(v, (int)I);
    float *to = s->rows + at * I;
    for (size_t r = 0; r < n; r++)
        for (size_t j = 0; j < I; j++)
            to[r * I + j] = v->weight[r] * h[r * I + j];
    fm_scratch_release(mark);
}

/* Copy the rows of an expert to s->gathered, in order of micro-batch; return their number. */
static int gather(const struct solver *s, int e)
{
    size_t I = (size_t)s->config->I, n = 0;
    for (int b = 0; b < s->batches; b++) {
        const struct place *p = &s->place[(size_t)b * (size_t)s->config->E + (size_t)e];
        memcpy(s->gathered + n * I, s->rows + p->at * I, (size_t)p->n * I * sizeof(float));
        n += (size_t)p->n;
    }
    return (int)n;
}

/* Set v for expert e of layer m; return the number of channels that a mask keeps, 0 if each mask
 * keeps all of them. */
static int weigh(const struct solver *s, int m, int e)
{
    size_t I = (size_t)s->config->I, at = (size_t)m * (size_t)s->config->E + (size_t)e;
    int kept = 0;
    bool loses = false;
    memset(s->v, 0, (I + 1) * sizeof *s->v);
    for (int b = 0; b < s->s->masks; b++) {
        int k = (int)fm_masks_widths(s->s->family, s->s->mask[b])[at];
        kept = k > kept ? k : kept;
        loses |= k < (int)I;
        for (int i = 0; i < k; i++)
            s->v[i] += s->s->weight[b];
    }
    return loses ? kept : 0;
}

/* Set the matrix M + s of the first k channels, and turn the moments into T. */
static void set_equations(const struct solver *s, int k)
{
    size_t I = (size_t)s->config->I;
    double sum = 0;
    for (size_t i = 0; i < (size_t)k; i++)
        sum += (double)s->moments[i * I + i] * s->v[i];
    double ridge = RIDGE * sum / k;
    for (size_t i = 0; i < (size_t)k; i++) {
        for (size_t j = 0; j <= i; j++)
            s->matrix[i * (size_t)k + j] = (double)s->moments[i * I + j] * s->v[i];
        s->matrix[i * (size_t)k + i] += ridge;
    }
    for (size_t i = 0; i < (size_t)k; i++)
        for (size_t j = 0; j < I; j++)
            s->moments[i * I + j] *= (float)(s->v[i] - s->v[i > j ? i : j]);
}

/* s->w becomes the solution; its channels from k on are not changed. */
static void solve_expert(const struct solver *s, int n, int k)
{
    int I = s->config->I, H = s->config->H;
    size_t values = (size_t)k * (size_t)H;
    const struct fm_ops *ops = s->ops->f32;
    ops->gemm(true, false, I, I, n, 1, fm_f32(s->gathered), I, fm_f32(s->gathered), I, 0,
              s->moments, I);
    double trace = 0;
    for (size_t i = 0; i < (size_t)k; i++)
        trace += (double)s->moments[i * (size_t)I + i];
    if (!(trace > 0))
        return;
    set_equations(s, k);
    ops->gemm(false, false, k, H, I, 1, fm_f32(s->moments), I, fm_f32(s->w), H, 0, s->change, H);
    for (size_t i = 0; i < values; i++)
        s->x[i] = (double)s->change[i];
    ops->solve(s->x, s->matrix, k, H);
    for (size_t i = 0; i < values; i++)
        s->w[i] = (float)((double)s->w[i] + s->x[i]);
}

static int solve_layer(struct solver *s, int m, const struct fm_layer *layer, struct fm_err *err)
{
    const struct fm_adapter *a = s->s->adapter;
    size_t count = (size_t)s->config->I * (size_t)s->config->H;
    for (int e = 0; e < s->config->E; e++) {
        struct fm_in from = fm_element(layer->down, (size_t)layer->row0[e] * (size_t)a->H);
        int k = weigh(s, m, e), n = gather(s, e);
        fm_dtype_to_f32(s->w, from.data, from.dtype, count);
        if (k > 0 && n > 0)
            solve_expert(s, n, k);
        void *to = fm_adapter_down(a, m, e);
        fm_dtype_from_f32(to, s->w, a->dtype, count);
        if (fm_dtype_nonfinite(to, a->dtype, count) < count && !fm_pool_ending())
            return fm_fail(err, FM_EFORMAT,
                           "layer %d, expert %d: the solved down projection is not finite",
                           s->config->moe[m], e);
        s->s->least = n < s->s->least ? n : s->s->least;
        s->s->most = n > s->s->most ? n : s->s->most;
    }
    return FM_OK;
}

static int end_layer(void *self, int m, struct fm_err *err)
{
    struct solver *s = self;
    const struct fm_layer *layer;
    if (m < s->s->solved)
        return FM_OK;
    int rc = fm_model_layer(s->s->task->model, s->config->moe[m], -1, &layer, err);
    if (!rc)
        rc = solve_layer(s, m, layer, err);
    if (!rc) /* if the run is about to end, tasks were skipped */
        rc = fm_task_stopped(s->s->task, err);
    if (rc)
        return rc;
    s->s->solved = m + 1;
    return s->s->due(s->s->self, err);
}

static int take_memory(struct solver *s, struct fm_err *err)
{
    size_t I = (size_t)s->config->I, H = (size_t)s->config->H;
    s->place = fm_alloc((size_t)s->batches * (size_t)s->config->E, sizeof *s->place, "rows", err);
    s->v = fm_alloc(I + 1, sizeof *s->v, "weights of masks", err);
    s->rows = fm_alloc_large(s->room * I * sizeof(float), "rows", err);
    s->gathered = fm_alloc_large(s->room * I * sizeof(float), "rows", err);
    s->moments = fm_alloc_large(I * I * sizeof(float), "moments", err);
    s->matrix = fm_alloc_large(I * I * sizeof(double), "equations", err);
    s->w = fm_alloc_large(I * H * sizeof(float), "a projection", err);
    s->change = fm_alloc_large(I * H * sizeof(float), "a projection", err);
    s->x = fm_alloc_large(I * H * sizeof(double), "a projection", err);
    return s->place && s->v && s->rows && s->gathered && s->moments && s->matrix && s->w &&
                   s->change && s->x
               ? FM_OK
               : err->code;
}

static void release(struct solver *s)
{
    free(s->place);
    free(s->v);
    free(s->rows);
    free(s->gathered);
    free(s->moments);
    free(s->matrix);
    free(s->w);
    free(s->change);
    free(s->x);
}

static uint64_t memory(const struct fm_task *task)
{
    const struct fm_config *c = task->config;
    uint64_t I = (uint64_t)c->I, H = (uint64_t)c->H;
    uint64_t rows = (uint64_t)task->calib.count * (uint64_t)task->calib.T * (uint64_t)c->K;
    return 2 * rows * I * sizeof(float) + I * I * 12 + I * H * 16;
}

static int run(struct solver *s, struct fm_sweep *sweep, struct fm_err *err)
{
    const struct fm_calib *calib = &s->s->task->calib;
    size_t T = (size_t)calib->T, n = (size_t)s->batches;
    const struct fm_lane lane = {.teacher = -1, .ce = 1};
    const struct fm_visitor visitor = {.self = s,
                                       .forward = true,
                                       .layer_begin = begin_layer,
                                       .expert = take_rows,
                                       .layer_end = end_layer};
    int32_t *ids = fm_alloc(n * T, sizeof *ids, "tokens", err);
    struct fm_batch *batch = fm_alloc(n, sizeof *batch, "batches", err);
    struct fm_measure *measure = fm_alloc(n, sizeof *measure, "measures", err);
    int rc = ids && batch && measure ? fm_calib_read(calib, 0, s->batches, ids, err) : FM_ENOMEM;
    for (size_t i = 0; !rc && i < n; i++)
        batch[i] = (struct fm_batch){ids + i * T, 1, calib->T};
    if (!rc)
        rc = fm_sweep_run(sweep, batch, s->batches, &lane, 1, &visitor, measure, NULL, err);
    free(ids);
    free(batch);
    free(measure);
    return rc;
}

static int solve(struct fm_solving *solving, struct fm_err *err)
{
    struct fm_task *task = solving->task;
    struct fm_sweep *sweep = NULL;
    struct solver s = {.s = solving,
                       .config = task->config,
                       .ops = task->ops,
                       .batches = task->calib.count,
                       .room = (size_t)task->calib.count * (size_t)task->calib.T *
                               (size_t)task->config->K};
    int rc = take_memory(&s, err);
    if (!rc)
        rc = fm_task_sweep(&sweep, task, s.batches, task->calib.T, 1, task->memory, err);
    if (!rc)
        rc = run(&s, sweep, err);
    fm_sweep_free(sweep);
    release(&s);
    return rc;
}

const struct fm_recovery fm_recovery_down = {.name = "down",
                                             .merges = true,
                                             .ridge = RIDGE,
                                             .floats = floats,
                                             .memory = memory,
                                             .solve = solve};
