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
 * The rows g h of a layer are in memory or in a file.  Experts are solved one after another, with
 * several ranks as many at once, each by one rank; the operations give the same bytes for any
 * number of threads.
 */
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/learn/criterion.h"
#include "lib/learn/recoverer.h"
#include "lib/state/store.h"

#define RIDGE 1

/* The masks that are served without --budget, and the weights of their errors. */
static const struct {
    struct fm_decimal budget;
    double weight;
} family[FM_LORAFILE_SERVED] = {{{0, 1}, 8}, {{2, 10}, 4}, {{4, 10}, 2}, {{6, 10}, 1}};

/* ---- the rows of the experts of one layer ---- */

/*
 * Rows are inner activations of the full model, each multiplied by the router's weight.  A visitor
 * of the forward sweep adds them, micro-batch by micro-batch; then each expert's rows are taken in
 * order of micro-batch, in chunks whose sizes depend only on the number of rows.
 *
 *     record of micro-batch b:   [rows of e2 | rows of e0 | rows of e1 | unused ]
 *     place[b][e] = { first row, number of rows }, in the order in which threads added them
 *
 * A row's position in a record depends on the threads, so records are never read as a whole: rows
 * of an expert are taken in order of micro-batch, and in a micro-batch in order of token.  Records
 * that exceed the run's memory go to a temporary file.
 *
 * Ranks: each stores the rows of its own micro-batches.  Of the experts [first, first + ranks) the
 * r-th belongs to rank r, which receives all rows of it.  A reduction (lib/engine/reduction.h)
 * would send the second moments of every micro-batch instead, I / rows times as much.
 */
#define CHUNK 512

struct rows {
    const struct fm_sweep *sweep;
    int E, batches;        /* experts; micro-batches of this rank, at most */
    size_t I, piece;       /* channels; rows of a message */
    struct fm_store store; /* one record for each micro-batch: (rows, I) */
    struct place {
        size_t at;
        int n;
    } * place;           /* (batches, E) rows in the record of a micro-batch */
    atomic_size_t *used; /* (batches) */
    atomic_int failed;   /* the code of the first error; its text is in `err` */
    struct fm_err err;
    int64_t *own, *all; /* (E), (ranks, E): rows of an expert */
    float *chunk;       /* (CHUNK, I) */
    int filled;
    float *out, *in;                  /* (ranks, piece, I), (piece, I) */
    struct fm_wire_part *send, *recv; /* (ranks) */
};

#define MESSAGE_BYTES ((size_t)32 << 20) /* to all other ranks */

static struct fm_comm *comm_of(const struct rows *r)
{
    return fm_sweep_comm(r->sweep);
}

/* Rows of one message to each rank. */
static size_t piece_of(struct fm_comm *comm, size_t I)
{
    size_t n = MESSAGE_BYTES / ((size_t)fm_comm_size(comm) * I * sizeof(float));
    return n < 1 ? 1 : n < CHUNK ? n : CHUNK;
}

/* Bytes of a record, and the number of records, for a sweep of `batches` micro-batches of T tokens;
 * and what is needed in addition. */
static uint64_t record_bytes(const struct fm_config *c, int T)
{
    return (uint64_t)T * (uint64_t)c->K * (uint64_t)c->I * sizeof(float) + FM_ALIGN;
}

static int count_records(struct fm_comm *comm, int batches, int T, int cut)
{
    int first, most, together = fm_sweep_together(batches, T, cut);
    fm_comm_share(comm, 0, fm_sweep_leaves(batches, T, cut), &first, &most);
    return most * together < batches ? most * together : batches;
}

static uint64_t bytes_beside(const struct fm_config *c, struct fm_comm *comm)
{
    uint64_t messages = (uint64_t)fm_comm_size(comm) + 1;
    uint64_t rows = CHUNK + messages * piece_of(comm, (size_t)c->I);
    return rows * (uint64_t)c->I * sizeof(float);
}

static int take_rows_memory(struct rows *r, struct fm_err *err)
{
    size_t batches = (size_t)r->batches, E = (size_t)r->E, row = r->I * sizeof(float);
    size_t ranks = (size_t)fm_comm_size(comm_of(r));
    r->place = fm_alloc(batches * E, sizeof *r->place, "rows", err);
    r->used = fm_alloc(batches, sizeof *r->used, "rows", err);
    r->own = fm_alloc(E, sizeof *r->own, "rows", err);
    r->all = fm_alloc(ranks * E, sizeof *r->all, "rows", err);
    r->chunk = fm_alloc_large(CHUNK * row, "rows", err);
    r->out = fm_alloc_large(ranks * r->piece * row, "a message", err);
    r->in = fm_alloc_large(r->piece * row, "a message", err);
    r->send = fm_alloc(ranks, sizeof *r->send, "messages", err);
    r->recv = fm_alloc(ranks, sizeof *r->recv, "messages", err);
    return r->place && r->used && r->own && r->all && r->chunk && r->out && r->in && r->send &&
                   r->recv
               ? FM_OK
               : err->code;
}

static int init_rows(struct rows *r, const struct fm_sweep *sweep, const struct fm_ops *ops,
                     const struct fm_config *c, int T, uint64_t memory, struct fm_err *err)
{
    *r = (struct rows){.sweep = sweep,
                       .E = c->E,
                       .batches = fm_sweep_own_most(sweep),
                       .I = (size_t)c->I,
                       .piece = piece_of(fm_sweep_comm(sweep), (size_t)c->I),
                       .store = {.fd = -1}};
    int rc = take_rows_memory(r, err);
    return rc ? rc
              : fm_store_init(&r->store, ops, (size_t)record_bytes(c, T), (size_t)r->batches,
                              memory, err);
}

static void release_rows(struct rows *r)
{
    fm_store_release(&r->store);
    free(r->place);
    free(r->used);
    free(r->own);
    free(r->all);
    free(r->chunk);
    free(r->out);
    free(r->in);
    free(r->send);
    free(r->recv);
    *r = (struct rows){.store = {.fd = -1}};
}

static void begin_rows(struct rows *r)
{
    memset(r->place, 0, (size_t)r->batches * (size_t)r->E * sizeof *r->place);
    for (int b = 0; b < r->batches; b++)
        atomic_store(&r->used[b], 0);
}

/* The first micro-batch of this rank. */
static int first_own(const struct rows *r)
{
    int first = 0;
    for (int k = 0; k < fm_comm_rank(comm_of(r)); k++)
        first += fm_sweep_own(r->sweep, k);
    return first;
}

/* Add the rows of a view of the forward; threads may add different views at once. */
static void add_rows(struct rows *r, const struct fm_expert_view *v)
{
    size_t I = r->I, n = (size_t)v->n, batch = (size_t)(v->batch - first_own(r));
    size_t at = atomic_fetch_add(&r->used[batch], n), row = I * sizeof(float);
    struct fm_mark mark = fm_scratch_mark();
    const float *h = fm_criterion_inner(v, (int)I);
    float *spare = batch < r->store.resident ? NULL : fm_scratch_floats(n * I);
    float *to = spare ? spare : (float *)fm_store_place(&r->store, batch, NULL) + at * I;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < I; j++)
            to[i * I + j] = v->weight[i] * h[i * I + j];
    struct fm_err err = {0};
    int none = FM_OK, rc = fm_store_put(&r->store, batch, at * row, n * row, to, &err);
    if (rc && atomic_compare_exchange_strong(&r->failed, &none, rc))
        r->err = err;
    r->place[batch * (size_t)r->E + (size_t)v->expert] = (struct place){at, v->n};
    fm_scratch_release(mark);
}

/* All are added.  FM_EIO if one was not written.  All ranks must call it. */
static int end_rows(struct rows *r, struct fm_err *err)
{
    if (atomic_load(&r->failed)) {
        *err = r->err;
        return err->code;
    }
    memset(r->own, 0, (size_t)r->E * sizeof *r->own);
    for (int i = 0; i < r->batches * r->E; i++)
        r->own[i % r->E] += r->place[i].n;
    return fm_comm_collect(comm_of(r), r->all, r->own, (size_t)r->E * sizeof *r->own, err);
}

static int64_t count_of(const struct rows *r, int rank, int expert)
{
    return expert < r->E ? r->all[(size_t)rank * (size_t)r->E + (size_t)expert] : 0;
}

/* After that: rows of an expert, of all ranks. */
static int64_t count_rows(const struct rows *r, int expert)
{
    int64_t n = 0;
    for (int k = 0; k < fm_comm_size(comm_of(r)); k++)
        n += count_of(r, k, expert);
    return n;
}

/* Rows of the `done`-th message of an expert from a rank. */
static size_t message_rows(const struct rows *r, int rank, int expert, size_t done)
{
    size_t n = (size_t)count_of(r, rank, expert);
    return n <= done ? 0 : n - done < r->piece ? n - done : r->piece;
}

/* Copy rows [from, from + n) of this rank's rows of an expert. */
static int copy_rows(const struct rows *r, float *to, int expert, size_t from, size_t n,
                     struct fm_err *err)
{
    size_t I = r->I, row = I * sizeof(float);
    for (int b = 0; n > 0; b++) {
        const struct place *p = &r->place[(size_t)b * (size_t)r->E + (size_t)expert];
        size_t has = (size_t)p->n;
        if (from >= has) {
            from -= has;
            continue;
        }
        size_t some = has - from < n ? has - from : n;
        void *data;
        int rc =
            fm_store_get(&r->store, (size_t)b, (p->at + from) * row, some * row, &data, to, err);
        if (rc)
            return rc;
        if (data != to)
            memcpy(to, data, some * row);
        to += some * I;
        n -= some;
        from = 0;
    }
    return FM_OK;
}

/* Send the done-th message of a rank to the owners of the experts; *rows is the one for this rank.
 */
static int send_piece(struct rows *r, int from, int first, size_t done, const float **rows,
                      struct fm_err *err)
{
    struct fm_comm *comm = comm_of(r);
    int ranks = fm_comm_size(comm), me = fm_comm_rank(comm);
    size_t row = r->I * sizeof(float);
    *rows = r->in;
    for (int k = 0; k < ranks; k++) {
        float *out = r->out + (size_t)k * r->piece * r->I;
        size_t n = from == me ? message_rows(r, me, first + k, done) : 0;
        if (n > 0 && copy_rows(r, out, first + k, done, n, err))
            return err->code;
        r->send[k] = (struct fm_wire_part){out, k == me ? 0 : n * row};
        n = k == from && k != me ? message_rows(r, from, first + me, done) : 0;
        r->recv[k] = (struct fm_wire_part){r->in, n * row};
        *rows = k == me && from == me ? out : *rows;
    }
    return comm ? fm_comm_exchange(comm, r->send, r->recv, err) : FM_OK;
}

/* ---- the run ---- */

/* `own` of a run. */
struct solver {
    struct fm_recoverer *r;
    struct fm_adapter adapter;
    /* Of the step. */
    const struct fm_config *config;
    const struct fm_ops *ops;
    struct fm_comm *comm;
    struct rows rows;
    /* Of one expert. */
    double *v, *matrix, *x;      /* (I + 1), (I, I), (I, H) */
    float *moments, *w, *change; /* (I, I), (I, H), (I, H) */
    bool summed;                 /* the moments have the rows of a chunk */
};

static void choose_masks(struct fm_recoverer *r)
{
    struct fm_recover_served *s = &r->served;
    *s = (struct fm_recover_served){.masks = 1, .mask = {r->mask}, .weight = {1}};
    if (r->options->strategy == FM_RECOVER_SINGLE)
        return;
    *s = (struct fm_recover_served){0};
    for (int i = 0; i < FM_LORAFILE_SERVED; i++) {
        int mask = fm_masks_nearest(&r->budgets.masks, &family[i].budget);
        if (s->masks == 0 || s->mask[s->masks - 1] != mask)
            s->mask[s->masks++] = mask;
        s->weight[s->masks - 1] += family[i].weight;
    }
    r->mask = -1;
}

static void open_masks(struct fm_recoverer *r)
{
    r->runner.steps = r->task.config->M;
    if (r->task.in.members)
        choose_masks(r);
    r->served.least = INT64_MAX;
}

/* Projections have the stored dtype. */
static double bytes_of(const struct fm_recoverer *r, double kept)
{
    const struct fm_config *c = r->task.config;
    (void)kept;
    return (double)c->E * c->I * c->H * fm_dtype_bits(fm_model_dtype(r->task.model)) / 8;
}

static int begin_layer(void *self, int m, struct fm_err *err)
{
    (void)m, (void)err;
    struct solver *s = self;
    begin_rows(&s->rows);
    return FM_OK;
}

static void take_rows(void *self, const struct fm_expert_view *v)
{
    struct solver *s = self;
    if (v->layer >= s->r->runner.taken)
        add_rows(&s->rows, v);
}

/* Add rows (n, I) to the moments of the expert. */
static void add_moments(struct solver *s, const float *rows, int n)
{
    int I = s->config->I;
    s->ops->f32->gemm(true, false, I, I, n, 1, fm_f32(rows), I, fm_f32(rows), I, s->summed,
                      s->moments, I);
    s->summed = true;
}

static void end_chunk(struct solver *s)
{
    if (s->rows.filled > 0)
        add_moments(s, s->rows.chunk, s->rows.filled);
    s->rows.filled = 0;
}

static void append(struct solver *s, const float *rows, size_t n)
{
    struct rows *r = &s->rows;
    while (n > 0) {
        size_t room = CHUNK - (size_t)r->filled, some = n < room ? n : room;
        memcpy(r->chunk + (size_t)r->filled * r->I, rows, some * r->I * sizeof *rows);
        r->filled += (int)some;
        rows += some * r->I;
        n -= some;
        if (r->filled == CHUNK)
            end_chunk(s);
    }
}

/* Sum the moments of expert first + this rank, if there is such an expert, chunk by chunk.  All
 * ranks must call it. */
static int sum_moments(struct solver *s, int first, struct fm_err *err)
{
    struct rows *r = &s->rows;
    int ranks = fm_comm_size(s->comm), me = fm_comm_rank(s->comm);
    const float *rows;
    s->summed = false;
    for (int from = 0; from < ranks; from++) {
        size_t most = 0;
        for (int k = 0; k < ranks; k++) {
            size_t n = (size_t)count_of(r, from, first + k);
            most = n > most ? n : most;
        }
        for (size_t done = 0; done < most; done += r->piece) {
            int rc = send_piece(r, from, first, done, &rows, err);
            if (rc)
                return rc;
            append(s, rows, message_rows(r, from, first + me, done));
        }
    }
    end_chunk(s);
    return FM_OK;
}

/* Set v for expert e of layer m; return the number of channels that a mask keeps, 0 if each mask
 * keeps all of them. */
static int weigh(const struct solver *s, int m, int e)
{
    size_t I = (size_t)s->config->I, at = (size_t)m * (size_t)s->config->E + (size_t)e;
    int kept = 0;
    bool loses = false;
    memset(s->v, 0, (I + 1) * sizeof *s->v);
    for (int b = 0; b < s->r->served.masks; b++) {
        int k = (int)fm_masks_widths(&s->r->budgets.masks, s->r->served.mask[b])[at];
        kept = k > kept ? k : kept;
        loses |= k < (int)I;
        for (int i = 0; i < k; i++)
            s->v[i] += s->r->served.weight[b];
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
    const struct fm_adapter *a = &s->adapter;
    size_t count = (size_t)s->config->I * (size_t)s->config->H;
    const struct fm_layer *layer;
    int rc = fm_model_layer(s->r->task.model, s->config->moe[m], -1, &layer, err);
    if (rc)
        return rc;
    struct fm_in from = fm_element(layer->down, (size_t)layer->row0[e] * (size_t)a->H);
    int64_t n = count_rows(&s->rows, e);
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
    const struct fm_adapter *a = &s->adapter;
    int ranks = fm_comm_size(s->comm), me = fm_comm_rank(s->comm), E = s->config->E;
    size_t bytes = (size_t)a->widths[0] * (size_t)a->H * (size_t)(fm_dtype_bits(a->dtype) / 8);
    bool mine = first + me < E;
    if (!s->comm)
        return FM_OK;
    for (int r = 0; r < ranks; r++) {
        bool theirs = r != me && first + r < E;
        s->rows.send[r] = (struct fm_wire_part){mine ? fm_adapter_down(a, m, first + me) : NULL,
                                                mine && r != me ? bytes : 0};
        s->rows.recv[r] = (struct fm_wire_part){theirs ? fm_adapter_down(a, m, first + r) : NULL,
                                                theirs ? bytes : 0};
    }
    return fm_comm_exchange(s->comm, s->rows.send, s->rows.recv, err);
}

static int solve_layer(struct solver *s, int m, struct fm_err *err)
{
    int ranks = fm_comm_size(s->comm), E = s->config->E, rc = end_rows(&s->rows, err);
    for (int first = 0; !rc && first < E; first += ranks) {
        int own = first + fm_comm_rank(s->comm);
        rc = sum_moments(s, first, err);
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
    if (m < s->r->runner.taken)
        return FM_OK;
    int rc = solve_layer(s, m, err);
    if (!rc) /* if the run is about to end, tasks were skipped */
        rc = fm_task_stopped(&s->r->task, err);
    if (rc)
        return rc;
    struct fm_recover_served *served = &s->r->served;
    for (int e = 0; e < s->config->E; e++) {
        int64_t n = count_rows(&s->rows, e);
        served->least = n < served->least ? n : served->least;
        served->most = n > served->most ? n : served->most;
    }
    s->r->runner.taken = m + 1;
    return fm_runner_due(&s->r->runner, err);
}

static int take_memory(struct solver *s, struct fm_err *err)
{
    size_t I = (size_t)s->config->I, H = (size_t)s->config->H;
    s->v = fm_alloc(I + 1, sizeof *s->v, "weights of masks", err);
    s->moments = fm_alloc_large(I * I * sizeof(float), "moments", err);
    s->matrix = fm_alloc_large(I * I * sizeof(double), "equations", err);
    s->w = fm_alloc_large(I * H * sizeof(float), "a projection", err);
    s->change = fm_alloc_large(I * H * sizeof(float), "a projection", err);
    s->x = fm_alloc_large(I * H * sizeof(double), "a projection", err);
    return s->v && s->moments && s->matrix && s->w && s->change && s->x ? FM_OK : err->code;
}

static struct fm_recovery_memory memory(const struct fm_recoverer *r)
{
    const struct fm_task *task = &r->task;
    const struct fm_config *c = task->config;
    struct fm_comm *comm = task->run->machine.comm;
    uint64_t I = (uint64_t)c->I, H = (uint64_t)c->H, all = fm_recoverer_size(r).all;
    uint64_t fixed = I * I * 12 + I * H * 16 + bytes_beside(c, comm);
    return (struct fm_recovery_memory){
        .fixed = all + (all > fixed ? all : fixed), /* at the end, also as a member */
        .record = record_bytes(c, task->calib.T),
        .records = (uint64_t)count_records(comm, task->calib.count, task->calib.T, task->cut)};
}

/* The sweep, and the products: moments, right-hand sides and equations. */
static void plan(struct fm_estimate *estimate, const struct fm_recoverer *r, uint64_t bytes)
{
    const struct fm_task *task = &r->task;
    const struct fm_config *c = task->config;
    double I = c->I, tokens = (double)task->calib.count * task->calib.T;
    struct fm_estimate_sweep sweep = {
        .count = 1, .rows = (uint64_t)tokens, .T = task->calib.T, .lanes = 1, .kept = 1};
    fm_estimate_add(estimate, task->model, &sweep, bytes);
    double products = 2 * tokens * c->K * I * I + c->E * I * I * (I / 3 + 4.0 * c->H);
    estimate->flops += c->M * products;
    estimate->kind[estimate->kinds - 1].flops += c->M * products;
}

static void params(const struct fm_recoverer *r, struct fm_text *text)
{
    (void)r;
    fm_text_printf(text, " ridge %.17g", (double)RIDGE);
}

static int begin(struct fm_recoverer *r, struct fm_err *err)
{
    const struct fm_config *c = r->task.config;
    struct solver *s = r->own = fm_alloc(1, sizeof *s, "the method", err);
    if (!s)
        return FM_ENOMEM;
    *s =
        (struct solver){.r = r, .config = c, .ops = r->task.ops, .comm = r->task.run->machine.comm};
    r->adapter = &s->adapter;
    return fm_adapter_init_down(r->adapter, c->M, c->E, c->H, c->I, fm_model_dtype(r->task.model),
                                err);
}

static void save(struct fm_journal_item *item, size_t *items, struct fm_recoverer *r)
{
    fm_runner_item(item, items, "least", FM_I64, 1, &r->served.least);
    fm_runner_item(item, items, "most", FM_I64, 1, &r->served.most);
}

static int sweep_once(struct solver *s, struct fm_sweep *sweep, struct fm_err *err)
{
    const struct fm_calib *calib = &s->r->task.calib;
    const struct fm_lane lane = {.teacher = -1, .ce = 1};
    const struct fm_visitor visitor = {.self = s,
                                       .forward = true,
                                       .layer_begin = begin_layer,
                                       .expert = take_rows,
                                       .layer_end = end_layer};
    int32_t *ids = fm_alloc((size_t)calib->count, (size_t)calib->T * sizeof *ids, "tokens", err);
    int rc = ids ? fm_calib_read(calib, 0, calib->count, ids, err) : FM_ENOMEM;
    if (!rc)
        rc = fm_task_run(&s->r->task, sweep, ids, calib->count, 1, &lane, 1, &visitor, NULL, err);
    free(ids);
    return rc;
}

/* Solve all layers that are not solved yet. */
static int step(struct fm_recoverer *r, struct fm_err *err)
{
    struct fm_task *task = &r->task;
    struct fm_sweep *sweep = NULL;
    struct solver *s = r->own;
    task->units = (double)r->runner.steps;
    int rc = take_memory(s, err);
    if (!rc)
        rc = fm_task_sweep(&sweep, task, task->calib.count, task->calib.T, 1, task->memory, err);
    if (!rc)
        rc = init_rows(&s->rows, sweep, task->ops, task->config, task->calib.T, r->memory, err);
    rc = fm_comm_agree(s->comm, rc, err);
    if (!rc)
        rc = sweep_once(s, sweep, err);
    release_rows(&s->rows);
    free(s->v);
    free(s->moments);
    free(s->matrix);
    free(s->w);
    free(s->change);
    free(s->x);
    fm_sweep_free(sweep);
    task->units = 0;
    return rc;
}

static void record(cJSON *options, const struct fm_recoverer *r)
{
    (void)r;
    fm_json_add_double(options, "ridge", RIDGE);
}

static void record_result(cJSON *result, const struct fm_recoverer *r)
{
    fm_json_add_uint(result, "rows_least", (uint64_t)r->served.least);
    fm_json_add_uint(result, "rows_most", (uint64_t)r->served.most);
}

static void release(struct fm_recoverer *r)
{
    struct solver *s = r->own;
    fm_adapter_release(&s->adapter);
}

static const struct fm_recovery_run solving = {
    .open = open_masks,
    .memory = memory,
    .plan = plan,
    .params = params,
    .begin = begin,
    .save = save,
    .step = step,
    .record = record,
    .result = record_result,
    .release = release,
    .failed = "with the solved projections",
};

const struct fm_recovery fm_recovery_down = {.name = "down",
                                             .made = "solved projections",
                                             .merges = true,
                                             .run = &solving,
                                             .bytes = bytes_of};
