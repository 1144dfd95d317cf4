/*
 * Keep the rows of the experts of a layer, one record for each micro-batch, and send them to the
 * ranks that own the experts.
 *
 *     record of micro-batch b:   [rows of e2 | rows of e0 | rows of e1 | unused ]
 *     place[b][e] = { first row, number of rows }, in the order in which threads added them
 *
 * A row's position in a record depends on the threads, so records are never read as a whole: rows
 * of an expert are taken in order of micro-batch, and in a micro-batch in order of token.
 */
#include "lib/learn/rows.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/learn/criterion.h"

#define MESSAGE_BYTES ((size_t)32 << 20) /* to all other ranks */

static struct fm_comm *comm_of(const struct fm_rows *r)
{
    return fm_sweep_comm(r->sweep);
}

/* Rows of one message to each rank. */
static size_t piece_of(struct fm_comm *comm, size_t I)
{
    size_t n = MESSAGE_BYTES / ((size_t)fm_comm_size(comm) * I * sizeof(float));
    return n < 1 ? 1 : n < FM_ROWS_CHUNK ? n : FM_ROWS_CHUNK;
}

uint64_t fm_rows_record(const struct fm_config *c, int T)
{
    return (uint64_t)T * (uint64_t)c->K * (uint64_t)c->I * sizeof(float) + FM_ALIGN;
}

int fm_rows_records(struct fm_comm *comm, int batches, int T, int cut)
{
    int first, most, together = fm_sweep_together(batches, T, cut);
    fm_comm_share(comm, 0, fm_sweep_leaves(batches, T, cut), &first, &most);
    return most * together < batches ? most * together : batches;
}

uint64_t fm_rows_beside(const struct fm_config *c, struct fm_comm *comm)
{
    uint64_t messages = (uint64_t)fm_comm_size(comm) + 1;
    uint64_t rows = FM_ROWS_CHUNK + messages * piece_of(comm, (size_t)c->I);
    return rows * (uint64_t)c->I * sizeof(float);
}

static int take_memory(struct fm_rows *r, struct fm_err *err)
{
    size_t batches = (size_t)r->batches, E = (size_t)r->E, row = r->I * sizeof(float);
    size_t ranks = (size_t)fm_comm_size(comm_of(r));
    r->place = fm_alloc(batches * E, sizeof *r->place, "rows", err);
    r->used = fm_alloc(batches, sizeof *r->used, "rows", err);
    r->own = fm_alloc(E, sizeof *r->own, "rows", err);
    r->all = fm_alloc(ranks * E, sizeof *r->all, "rows", err);
    r->chunk = fm_alloc_large(FM_ROWS_CHUNK * row, "rows", err);
    r->out = fm_alloc_large(ranks * r->piece * row, "a message", err);
    r->in = fm_alloc_large(r->piece * row, "a message", err);
    r->send = fm_alloc(ranks, sizeof *r->send, "messages", err);
    r->recv = fm_alloc(ranks, sizeof *r->recv, "messages", err);
    return r->place && r->used && r->own && r->all && r->chunk && r->out && r->in && r->send &&
                   r->recv
               ? FM_OK
               : err->code;
}

int fm_rows_init(struct fm_rows *r, const struct fm_sweep *sweep, const struct fm_ops *ops,
                 const struct fm_config *c, int T, uint64_t memory, struct fm_err *err)
{
    *r = (struct fm_rows){.sweep = sweep,
                          .E = c->E,
                          .batches = fm_sweep_own_most(sweep),
                          .I = (size_t)c->I,
                          .piece = piece_of(fm_sweep_comm(sweep), (size_t)c->I),
                          .store = {.fd = -1}};
    int rc = take_memory(r, err);
    return rc ? rc
              : fm_store_init(&r->store, ops, (size_t)fm_rows_record(c, T), (size_t)r->batches,
                              memory, err);
}

void fm_rows_release(struct fm_rows *r)
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
    *r = (struct fm_rows){.store = {.fd = -1}};
}

void fm_rows_begin(struct fm_rows *r)
{
    memset(r->place, 0, (size_t)r->batches * (size_t)r->E * sizeof *r->place);
    for (int b = 0; b < r->batches; b++)
        atomic_store(&r->used[b], 0);
}

/* The first micro-batch of this rank. */
static int first_own(const struct fm_rows *r)
{
    int first = 0;
    for (int k = 0; k < fm_comm_rank(comm_of(r)); k++)
        first += fm_sweep_own(r->sweep, k);
    return first;
}

void fm_rows_add(struct fm_rows *r, const struct fm_expert_view *v)
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
    r->place[batch * (size_t)r->E + (size_t)v->expert] = (struct fm_rows_place){at, v->n};
    fm_scratch_release(mark);
}

int fm_rows_end(struct fm_rows *r, struct fm_err *err)
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

static int64_t count_of(const struct fm_rows *r, int rank, int expert)
{
    return expert < r->E ? r->all[(size_t)rank * (size_t)r->E + (size_t)expert] : 0;
}

int64_t fm_rows_count(const struct fm_rows *r, int expert)
{
    int64_t n = 0;
    for (int k = 0; k < fm_comm_size(comm_of(r)); k++)
        n += count_of(r, k, expert);
    return n;
}

/* Rows of the `done`-th message of an expert from a rank. */
static size_t message_rows(const struct fm_rows *r, int rank, int expert, size_t done)
{
    size_t n = (size_t)count_of(r, rank, expert);
    return n <= done ? 0 : n - done < r->piece ? n - done : r->piece;
}

/* Copy rows [from, from + n) of this rank's rows of an expert. */
static int copy_rows(const struct fm_rows *r, float *to, int expert, size_t from, size_t n,
                     struct fm_err *err)
{
    size_t I = r->I, row = I * sizeof(float);
    for (int b = 0; n > 0; b++) {
        const struct fm_rows_place *p = &r->place[(size_t)b * (size_t)r->E + (size_t)expert];
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

static void end_chunk(struct fm_rows *r, fm_rows_taker *take, void *self)
{
    if (r->filled > 0)
        take(self, r->chunk, r->filled);
    r->filled = 0;
}

static void append(struct fm_rows *r, const float *rows, size_t n, fm_rows_taker *take, void *self)
{
    while (n > 0) {
        size_t room = FM_ROWS_CHUNK - (size_t)r->filled, some = n < room ? n : room;
        memcpy(r->chunk + (size_t)r->filled * r->I, rows, some * r->I * sizeof *rows);
        r->filled += (int)some;
        rows += some * r->I;
        n -= some;
        if (r->filled == FM_ROWS_CHUNK)
            end_chunk(r, take, self);
    }
}

/* Send the done-th message of a rank to the owners of the experts; *rows is the one for this rank.
 */
static int send_piece(struct fm_rows *r, int from, int first, size_t done, const float **rows,
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

int fm_rows_send(struct fm_rows *r, int first, fm_rows_taker *take, void *self, struct fm_err *err)
{
    int ranks = fm_comm_size(comm_of(r)), me = fm_comm_rank(comm_of(r));
    const float *rows;
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
            append(r, rows, message_rows(r, from, first + me, done), take, self);
        }
    }
    end_chunk(r, take, self);
    return FM_OK;
}
