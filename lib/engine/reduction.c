/*
 * The contributions of a rank are stored in the order in which they were committed.  Ranks have
 * consecutive micro-batches, so the contributions of all ranks, rank after rank, are in the order
 * of the whole sweep.  They are sent in messages of about MESSAGE_BYTES, each with some of the
 * values of every contribution, so that receiving needs little memory however many ranks there are.
 */
#include "lib/engine/reduction.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/comm/comm.h"

#define MESSAGE_BYTES ((size_t)32 << 20) /* to all other ranks, or from them */
#define GRAIN 16

static size_t bytes_of(const struct fm_reduction *f, size_t values)
{
    return values * (size_t)(fm_dtype_bits(f->dtype) / 8);
}

static struct fm_comm *comm_of(const struct fm_reduction *f)
{
    return fm_sweep_comm(f->sweep);
}

/* Contributions of a rank to all sums in the current run; and the largest number in any run. */
static size_t kept_by(const struct fm_reduction *f, int rank)
{
    return (size_t)fm_sweep_own(f->sweep, rank) * (size_t)f->lanes;
}

static size_t kept_most(const struct fm_reduction *f)
{
    return (size_t)fm_sweep_own_most(f->sweep) * (size_t)f->lanes;
}

/* Columns of one message, at most those that a rank owns; the result is the same on all ranks. */
static size_t columns(const struct fm_reduction *f)
{
    struct fm_comm *comm = comm_of(f);
    size_t first, widest, ranks = (size_t)fm_comm_size(comm);
    fm_comm_slice(comm, 0, f->values, &first, &widest);
    size_t column = bytes_of(f, 1) * kept_most(f) * ranks, n = MESSAGE_BYTES / column;
    n = n < widest ? n : widest;
    return n < GRAIN ? GRAIN : n - n % GRAIN;
}

static int take_messages(struct fm_reduction *f, struct fm_err *err)
{
    size_t ranks = (size_t)fm_comm_size(comm_of(f)), most = kept_most(f);
    size_t message = columns(f) * bytes_of(f, 1) * most * ranks;
    f->kept = fm_alloc(most, bytes_of(f, f->values), "contributions of micro-batches", err);
    f->out = f->kept ? fm_alloc(1, message, "a message", err) : NULL;
    f->in = f->out ? fm_alloc(1, message, "a message", err) : NULL;
    f->send = f->in ? fm_alloc(ranks, sizeof *f->send, "messages", err) : NULL;
    f->recv = f->send ? fm_alloc(ranks, sizeof *f->recv, "messages", err) : NULL;
    return f->recv ? FM_OK : FM_ENOMEM;
}

int fm_reduction_init(struct fm_reduction *f, const struct fm_sweep *sweep,
                      const struct fm_ops *ops, enum fm_dtype dtype, int sums, size_t values,
                      int lanes, struct fm_err *err)
{
    *f = (struct fm_reduction){.sweep = sweep,
                               .ops = ops,
                               .dtype = dtype,
                               .sums = sums,
                               .lanes = lanes,
                               .values = values,
                               .share = 1};
    size_t bytes = (size_t)sums * bytes_of(f, values);
    f->sum = fm_alloc_large(bytes, "sums over micro-batches", err);
    if (!f->sum)
        return err->code;
    ops->zero(f->sum, bytes);
    return comm_of(f) ? take_messages(f, err) : FM_OK;
}

void fm_reduction_release(struct fm_reduction *f)
{
    free(f->sum);
    free(f->kept);
    free(f->out);
    free(f->in);
    free(f->send);
    free(f->recv);
    *f = (struct fm_reduction){0};
}

void fm_reduction_begin(struct fm_reduction *f, double share)
{
    f->share = share;
    f->turn = 0;
}

void fm_reduction_layer(struct fm_reduction *f)
{
    f->turn = 0;
}

static char *sum_at(const struct fm_reduction *f, size_t contribution, size_t at)
{
    size_t sum = contribution % (size_t)f->sums;
    return (char *)f->sum + bytes_of(f, sum * f->values + at);
}

void fm_reduction_add(struct fm_reduction *f, void *slot, size_t at, size_t n)
{
    size_t turn = (size_t)f->turn++;
    if (!comm_of(f)) {
        f->ops->accumulate((struct fm_out){sum_at(f, turn, at), f->dtype},
                           (struct fm_out){slot, f->dtype}, f->share, (int64_t)n);
        return;
    }
    memcpy(f->kept + bytes_of(f, turn * f->values + at), slot, bytes_of(f, n));
    f->ops->zero(slot, bytes_of(f, n));
}

/* Columns [*from, *from + result) of the n: the current piece of a rank's slice. */
static size_t piece_of(const struct fm_reduction *f, int rank, size_t n, size_t done, size_t *from)
{
    size_t first, count, wide = columns(f);
    fm_comm_slice(comm_of(f), rank, n, &first, &count);
    *from = first + done;
    size_t left = count > done ? count - done : 0;
    return left < wide ? left : wide;
}

/* Send the other ranks their pieces of our contributions, and receive our piece of theirs. */
static int swap(struct fm_reduction *f, size_t n, size_t done, struct fm_err *err)
{
    struct fm_comm *comm = comm_of(f);
    int ranks = fm_comm_size(comm), me = fm_comm_rank(comm);
    size_t from, own = piece_of(f, me, n, done, &from);
    char *out = f->out, *in = f->in;
    for (int r = 0; r < ranks; r++) {
        size_t width = bytes_of(f, piece_of(f, r, n, done, &from));
        f->send[r] = (struct fm_wire_part){out, width * kept_by(f, me)};
        for (size_t i = 0; i < kept_by(f, me); i++, out += width)
            memcpy(out, f->kept + bytes_of(f, i * f->values + from), width);
        f->recv[r] = (struct fm_wire_part){in, bytes_of(f, own) * kept_by(f, r)};
        in += f->recv[r].size;
    }
    return fm_comm_exchange(comm, f->send, f->recv, err);
}

/* Add our piece of every contribution, in order, to our slice of the sums. */
static void add_piece(struct fm_reduction *f, size_t n, size_t done)
{
    struct fm_comm *comm = comm_of(f);
    size_t from, own = piece_of(f, fm_comm_rank(comm), n, done, &from);
    char *in = f->in;
    for (int r = 0; own > 0 && r < fm_comm_size(comm); r++) {
        for (size_t i = 0; i < kept_by(f, r); i++, in += bytes_of(f, own))
            f->ops->accumulate((struct fm_out){sum_at(f, i, from), f->dtype},
                               (struct fm_out){in, f->dtype}, f->share, (int64_t)own);
    }
}

int fm_reduction_end(struct fm_reduction *f, size_t n, struct fm_err *err)
{
    struct fm_comm *comm = comm_of(f);
    size_t first, widest, wide;
    if (!comm)
        return FM_OK;
    wide = columns(f);
    fm_comm_slice(comm, 0, n, &first, &widest); /* the first slice is the widest */
    for (size_t done = 0; done < widest; done += wide) {
        int rc = swap(f, n, done, err);
        if (rc)
            return rc;
        add_piece(f, n, done);
    }
    return FM_OK;
}

int fm_reduction_whole(struct fm_reduction *f, size_t n, struct fm_err *err)
{
    int rc = FM_OK;
    for (int s = 0; s < f->sums && !rc; s++)
        rc = fm_comm_spread(comm_of(f), sum_at(f, (size_t)s, 0), bytes_of(f, 1), n, err);
    return rc;
}
