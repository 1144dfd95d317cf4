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
 * the projection on the kept channels.  s is RIDGE times the trace of M divided by the number of
 * rows, that is the mean squared norm of a row: the fewer rows an expert has per channel, the
 * nearer B is to W.  Channels that no mask keeps, and experts that lose nothing or have no rows,
 * are copied.
 *
 * lib/learn/rows.h has the rows g h of a layer, in memory or in a file.  Experts are solved one
 * after another, with several ranks as many at once, each by one rank; the operations give the same
 * bytes for any number of threads.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/learn/recovery.h"
#include "lib/learn/rows.h"
#include "lib/learn/task.h"

#define RIDGE 1

struct solver {
    struct fm_solving *s;
    const struct fm_config *config;
    const struct fm_ops *ops;
    struct fm_comm *comm;
    struct fm_rows rows;
    struct fm_wire_part *send, *recv; /* (ranks) */
    /* Of one expert. */
    double *v, *matrix, *x;      /* (I + 1), (I, I), (I, H) */
    float *moments, *w, *change; /* (I, I), (I, H), (I, H) */
    bool summed;                 /* the moments have the rows of a chunk */
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
    fm_rows_begin(&s->rows);
    return FM_OK;
}

static void take_rows(void *self, const struct fm_expert_view *v)
{
    struct solver *s = self;
    if (v->layer >= s->s->solved)
        fm_rows_add(&s->rows, v);
}

static void add_moments(void *self, const float *rows, int n)
{
    struct solver *s = self;
    int I = s->config->I;
    s->ops->f32->gemm(true, false, I, I, n, 1, fm_f32(rows), I, fm_f32(rows), I, s->summed,
                      s->moments, I);
    s->summed = true;
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
static void set_equations(const struct solver *s, int64_t n, int k)
{
    size_t I = (size_t)s->config->I;
    double sum = 0;
    for (size_t i = 0; i < (size_t)k; i++)
        sum += (double)s->moments[i * I + i] * s->v[i];
    double ridge = RIDGE * sum / (double)n;
    for (size_t i = 0; i < (size_t)k; i++) {
        for (size_t j = 0; j <= i; j++)
            s->matrix[i * (size_t)k + j] = (double)s->moments[i * I + j] * s->v[i];
        s->matrix[i * (size_t)k + i] += ridge;
    }
    for (size_t i = 0; i < (size_t)k; i++)
        for (size_t j = 0; j < I; j++)
            s->moments[i * I + j] *= (float)(s->v[i] - s->v[i > j ? i : j]);
}

/* s->w becomes the solution from the moments of n rows; its channels from k on are not changed. */
static void solve_expert(const struct solver *s, int64_t n, int k)
{
    int I = s->config->I, H = s->config->H;
    size_t values = (size_t)k * (size_t)H;
    const struct fm_ops *ops = s->ops->f32;
    double trace = 0;
    for (size_t i = 0; i < (size_t)k; i++)
        trace += (double)s->moments[i * (size_t)I + i];
    if (!(trace > 0))
        return;
    set_equations(s, n, k);
    ops->gemm(false, false, k, H, I, 1, fm_f32(s->moments), I, fm_f32(s->w), H, 0, s->change, H);
    for (size_t i = 0; i < values; i++)
        s->x[i] = (double)s->change[i];
    ops->solve(s->x, s->matrix, k, H);
    for (size_t i = 0; i < values; i++)
        s->w[i] = (float)((double)s->w[i] + s->x[i]);
}

/* Write the projection of expert e, whose moments are summed if it has rows. */
static int set_expert(const struct solver *s, int m, int e, struct fm_err *err)
{
    const struct fm_adapter *a = s->s->adapter;
    size_t count = (size_t)s->config->I * (size_t)s->config->H;
    const struct fm_layer *layer;
    int rc = fm_model_layer(s->s->task->model, s->config->moe[m], -1, &layer, err);
    if (rc)
        return rc;
    struct fm_in from = fm_element(layer->down, (size_t)layer->row0[e] * (size_t)a->H);
    int64_t n = fm_rows_count(&s->rows, e);
    int k = weigh(s, m, e);
    fm_dtype_to_f32(s->w, from.data, from.dtype, count);
    if (k > 0 && n > 0)
        solve_expert(s, n, k);
    void *to = fm_adapter_down(a, m, e);
    fm_dtype_from_f32(to, s->w, a->dtype, count);
    if (fm_dtype_nonfinite(to, a->dtype, count) < count && !fm_pool_ending())
        return fm_fail(err, FM_EFORMAT,
                       "layer %d, expert %d: the solved down projection is not finite",
                       s->config->moe[m], e);
    return FM_OK;
}

/* Distribute the projections of experts [first, first + ranks), each solved by one rank. */
static int spread(const struct solver *s, int m, int first, struct fm_err *err)
{
    const struct fm_adapter *a = s->s->adapter;
    int ranks = fm_comm_size(s->comm), me = fm_comm_rank(s->comm), E = s->config->E;
    size_t bytes = (size_t)a->widths[0] * (size_t)a->H * (size_t)(fm_dtype_bits(a->dtype) / 8);
    bool mine = first + me < E;
    if (!s->comm)
        return FM_OK;
    for (int r = 0; r < ranks; r++) {
        bool theirs = r != me && first + r < E;
        s->send[r] = (struct fm_wire_part){mine ? fm_adapter_down(a, m, first + me) : NULL,
                                           mine && r != me ? bytes : 0};
        s->recv[r] = (struct fm_wire_part){theirs ? fm_adapter_down(a, m, first + r) : NULL,
                                           theirs ? bytes : 0};
    }
    return fm_comm_exchange(s->comm, s->send, s->recv, err);
}

static int solve_layer(struct solver *s, int m, struct fm_err *err)
{
    int ranks = fm_comm_size(s->comm), E = s->config->E, rc = fm_rows_end(&s->rows, err);
    for (int first = 0; !rc && first < E; first += ranks) {
        int own = first + fm_comm_rank(s->comm);
        s->summed = false;
        rc = fm_rows_send(&s->rows, first, add_moments, s, err);
        if (!rc && own < E)
            rc = set_expert(s, m, own, err);
        if (!rc)
            rc = spread(s, m, first, err);
    }
    return rc;
}

static int end_layer(void *self, int m, struct fm_err *err)
{
    struct solver *s = self;
    if (m < s->s->solved)
        return FM_OK;
    int rc = solve_layer(s, m, err);
    if (!rc) /* if the run is about to end, tasks were skipped */
        rc = fm_task_stopped(s->s->task, err);
    if (rc)
        return rc;
    for (int e = 0; e < s->config->E; e++) {
        int64_t n = fm_rows_count(&s->rows, e);
        s->s->least = n < s->s->least ? n : s->s->least;
        s->s->most = n > s->s->most ? n : s->s->most;
    }
    s->s->solved = m + 1;
    return s->s->due(s->s->self, err);
}

static int take_memory(struct solver *s, struct fm_err *err)
{
    size_t I = (size_t)s->config->I, H = (size_t)s->config->H;
    size_t ranks = (size_t)fm_comm_size(s->comm);
    s->send = fm_alloc(ranks, sizeof *s->send, "messages", err);
    s->recv = fm_alloc(ranks, sizeof *s->recv, "messages", err);
    s->v = fm_alloc(I + 1, sizeof *s->v, "weights of masks", err);
    s->moments = fm_alloc_large(I * I * sizeof(float), "moments", err);
    s->matrix = fm_alloc_large(I * I * sizeof(double), "equations", err);
    s->w = fm_alloc_large(I * H * sizeof(float), "a projection", err);
    s->change = fm_alloc_large(I * H * sizeof(float), "a projection", err);
    s->x = fm_alloc_large(I * H * sizeof(double), "a projection", err);
    return s->send && s->recv && s->v && s->moments && s->matrix && s->w && s->change && s->x
               ? FM_OK
               : err->code;
}

static void release(struct solver *s)
{
    fm_rows_release(&s->rows);
    free(s->send);
    free(s->recv);
    free(s->v);
    free(s->moments);
    free(s->matrix);
    free(s->w);
    free(s->change);
    free(s->x);
}

static struct fm_recovery_memory memory(const struct fm_task *task)
{
    const struct fm_config *c = task->config;
    struct fm_comm *comm = task->run->machine.comm;
    uint64_t I = (uint64_t)c->I, H = (uint64_t)c->H;
    return (struct fm_recovery_memory){
        .fixed = I * I * 12 + I * H * 16 + fm_rows_beside(c, comm),
        .record = fm_rows_record(c, task->calib.T),
        .records = (uint64_t)fm_rows_records(comm, task->calib.count, task->calib.T, task->cut)};
}

static int run(struct solver *s, struct fm_sweep *sweep, struct fm_err *err)
{
    const struct fm_calib *calib = &s->s->task->calib;
    size_t T = (size_t)calib->T, n = (size_t)calib->count;
    const struct fm_lane lane = {.teacher = -1, .ce = 1};
    const struct fm_visitor visitor = {.self = s,
                                       .forward = true,
                                       .layer_begin = begin_layer,
                                       .expert = take_rows,
                                       .layer_end = end_layer};
    int32_t *ids = fm_alloc(n * T, sizeof *ids, "tokens", err);
    struct fm_batch *batch = fm_alloc(n, sizeof *batch, "batches", err);
    struct fm_measure *measure = fm_alloc(n, sizeof *measure, "measures", err);
    int rc = ids && batch && measure ? fm_calib_read(calib, 0, calib->count, ids, err) : FM_ENOMEM;
    for (size_t i = 0; !rc && i < n; i++)
        batch[i] = (struct fm_batch){ids + i * T, 1, calib->T};
    if (!rc)
        rc = fm_sweep_run(sweep, batch, calib->count, &lane, 1, &visitor, measure, NULL, err);
    free(ids);
    free(batch);
    free(measure);
    return rc;
}

static int solve(struct fm_solving *solving, struct fm_err *err)
{
    struct fm_task *task = solving->task;
    struct fm_sweep *sweep = NULL;
    struct solver s = {
        .s = solving, .config = task->config, .ops = task->ops, .comm = task->run->machine.comm};
    int rc = take_memory(&s, err);
    if (!rc)
        rc = fm_task_sweep(&sweep, task, task->calib.count, task->calib.T, 1, task->memory, err);
    if (!rc)
        rc = fm_rows_init(&s.rows, sweep, task->ops, task->config, task->calib.T, solving->memory,
                          err);
    rc = fm_comm_agree(s.comm, rc, err);
    if (!rc)
        rc = run(&s, sweep, err);
    release(&s);
    fm_sweep_free(sweep);
    return rc;
}

const struct fm_recovery fm_recovery_down = {.name = "down",
                                             .merges = true,
                                             .ridge = RIDGE,
                                             .floats = floats,
                                             .memory = memory,
                                             .solve = solve};
