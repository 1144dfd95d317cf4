/*
 * Writes a planned export.  A file is cut into pieces, and pieces that are made from the same
 * channels of an expert's part form a group.  Threads fill groups from the bundle in parallel.
 *
 *     the file     | header | p0: gate of e0 | p1: gate of e1 | ... | p8: up of e0 | p9: ...
 *     a directory  groups {p0 p8} {p1 p9} ... in the order of the bundle, which is then read
 *                  sequentially; each piece is written at its offset
 *     a stream     rounds of one expert per thread {p0 p1} {p2 p3} ... in the order of the file;
 *                  pieces of a round are kept until all of them are made
 *
 * The digests of a stream's files are computed as the stream is written.  A directory's files are
 * not written in order, so each is read once after it has been written, mostly from the page cache.
 * fm-export.json, which has the digests of all other files, is written last.
 */
#include "lib/export/exportwriter.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/archive.h"
#include "formats/file/file.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/export/card.h"
#include "lib/export/filetable.h"
#include "lib/export/piece.h"
#include "lib/export/texts.h"
#include "lib/run/taskgroup.h"

/* ---- the writer ---- */

struct writer {
    const struct fm_exportplan *plan;
    const struct fm_run_options *run;
    uint64_t scratch; /* of a thread that writes into a directory */
    struct fm_taskgroup tasks;
    struct fm_outdir dir;
    struct fm_hasher *whole; /* of the file in the stream; NULL: a directory */
    struct fm_output out;    /* the stream */
    struct fm_filetable table;
};

/* A file while it is written. */
struct filework {
    struct writer *w;
    const struct fm_planned_file *planned;
    struct fm_output out; /* in a directory */
    struct fm_piece *piece;
};

/* Write bytes of a file; those of a stream are given in order. */
static int put(struct filework *f, uint64_t at, const void *bytes, size_t size, struct fm_err *err)
{
    struct writer *w = f->w;
    if (!w->whole)
        return fm_output_write_at(&f->out, at, bytes, size, err);
    fm_hasher_add(w->whole, bytes, size);
    return fm_output_write(&w->out, bytes, size, err);
}

static int put_weights(void *self, uint64_t at, const void *bytes, size_t size, struct fm_err *err)
{
    struct filework *f = self;
    int rc = put(f, at, bytes, size, err);
    if (!rc)
        fm_taskgroup_add(&f->w->tasks, size);
    return rc;
}

/* ---- texts ---- */

/* The digest of a text in the table: of the card only the part between its marks, because its owner
 * may edit the rest. */
static struct fm_digest digest_of_text(const char *name, const char *text, size_t size)
{
    struct fm_digest digest = {0};
    struct fm_err none = {0};
    if (strcmp(name, FM_EXPORT_CARD) != 0)
        return fm_digest_of(text, size);
    int rc = fm_card_digest(&digest, text, size, &none);
    assert(!rc); /* fm_card_plan wrote the marks */
    return digest;
}

/* fm-export.json, the last file of the plan, with the digests of the others; malloced. */
static int last_text(const struct writer *w, char **text, size_t *size, struct fm_err *err)
{
    const struct fm_planned_file *f = &w->plan->file[w->plan->files - 1];
    assert(strcmp(f->name, FM_EXPORT_JSON) == 0);
    *text = fm_strdup(f->header, err);
    int rc = *text ? fm_filetable_write(&w->table, text, size, err) : err->code;
    assert(rc || *size == f->bytes);
    return rc;
}

/* ---- pieces of one file ---- */

/* Bytes of a piece.  In a stream, pieces of an expert are made from the same channels only if they
 * are all of these channels. */
static uint64_t limit_of(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                         bool stream)
{
    const struct fm_planned_block *b = &p->block[t->block];
    bool shared = t->kind == FM_PLANNED_EXPERTS &&
                  fm_expert_cut(p->from->config.expert, b->part).of != b->part;
    return stream && shared ? UINT64_MAX : FM_PIECE_BYTES;
}

/* Split a file into *count pieces.  Those of a stream are in order of the file; those of a
 * directory are in order of the bundle, which is then read sequentially. */
static int split_file(struct fm_piece **piece, int *count, const struct fm_exportplan *p,
                      const struct fm_planned_file *f, bool stream, struct fm_err *err)
{
    size_t n = 0, room = 0;
    for (size_t i = f->tensor; i < f->tensor + f->tensors; i++) {
        const struct fm_planned_tensor *t = &p->tensor[i];
        for (uint64_t at = 0; at < t->t.size; at += (*piece)[n++].size) {
            if (FM_GROW(*piece, room, n + 1, "the pieces of a file", err))
                return err->code;
            (*piece)[n] = fm_piece_next(p, t, at, limit_of(p, t, stream));
            assert((*piece)[n].size > 0 && (*piece)[n].size <= t->t.size - at);
        }
    }
    *count = (int)n;
    if (!stream)
        fm_piece_group(*piece, n);
    return FM_OK;
}

/* Memory for the plan, with two copies of its tensors that are sorted into files, and headers in
 * buffers that grow by doubling. */
static uint64_t plan_memory(const struct fm_exportplan *p)
{
    uint64_t bytes = p->tensor_room * sizeof *p->tensor + p->block_room * sizeof *p->block +
                     p->tensors * 2 * sizeof(struct fm_tensor);
    for (size_t i = 0; i < p->tensors; i++)
        bytes += strlen(p->tensor[i].t.name) + 2 * sizeof(void *);
    for (size_t i = 0; i < p->files; i++)
        bytes += 2 * p->file[i].header_bytes;
    return bytes;
}

/* Whether both pieces are of the same expert. */
static bool same_expert(const struct fm_piece *a, const struct fm_piece *b)
{
    return a->block && b->block && a->block->m == b->block->m && a->block->e == b->block->e;
}

/* Scratch of a thread for the largest group; in a stream, with all pieces of an expert. */
static uint64_t group_memory(const struct fm_exportplan *p, bool stream)
{
    uint64_t most = 0, all = 0;
    struct fm_piece before = {0};
    for (size_t i = 0; i < p->tensors; i++) {
        const struct fm_planned_tensor *t = &p->tensor[i];
        for (uint64_t at = 0; at < t->t.size; at += before.size) {
            const struct fm_piece x = fm_piece_next(p, t, at, limit_of(p, t, stream));
            all = (same_expert(&x, &before) ? all : 0) + x.size;
            uint64_t bytes = fm_piece_memory(p, &x) + (stream ? all : 0);
            most = bytes > most ? bytes : most;
            before = x;
        }
    }
    return most;
}

uint64_t fm_exportwriter_memory(const struct fm_exportplan *p, bool stream)
{
    return FM_PROCESS_BYTES + group_memory(p, stream) * (uint64_t)fm_pool_threads() +
           plan_memory(p);
}

/* ---- the bytes of a file ---- */

static int put_copy(struct filework *f, const struct fm_piece *x, struct fm_err *err)
{
    const struct fm_piece_sink to = {&f->w->tasks, put_weights, f, x->tensor->t.offset};
    return fm_piece_copy(f->w->plan, x->tensor->from, &to, err);
}

/* Make a piece.  That of a stream is kept. */
static int put_made(struct filework *f, struct fm_channels *c, const struct fm_piece *x,
                    struct fm_err *err)
{
    const struct fm_exportplan *p = f->w->plan;
    const void *bytes;
    int rc = fm_piece_read(c, p, x, err);
    struct fm_mark mark = fm_scratch_mark();
    if (!rc)
        rc = fm_piece_bytes(&bytes, c, p, x, err);
    if (!rc && x->to)
        memcpy(x->to, bytes, (size_t)x->size);
    else if (!rc)
        rc = put_weights(f, x->tensor->t.offset + x->from, bytes, (size_t)x->size, err);
    fm_scratch_release(mark);
    return rc;
}

static bool is_copy(const struct fm_piece *x)
{
    return x->tensor->kind == FM_PLANNED_COPY;
}

/* Make all pieces of the group that begins with piece i. */
static void fill_group(void *arg, int i)
{
    struct filework *f = arg;
    const struct fm_piece *x = &f->piece[i];
    struct fm_channels c = {0};
    struct fm_err err = {0};
    int rc = FM_OK;
    if (!x->group || !fm_taskgroup_going(&f->w->tasks))
        return;
    if (!x->to)
        fm_scratch_reserve(f->w->scratch);
    struct fm_mark mark = fm_scratch_mark();
    for (int k = 0; k < x->group && !rc; k++)
        rc = is_copy(x) ? put_copy(f, x, &err) : put_made(f, &c, &x[k], &err);
    fm_scratch_release(mark);
    if (rc)
        fm_taskgroup_fail(&f->w->tasks, &err);
}

/* Pieces are made in rounds of one expert per thread, by groups, and written in order.  Those of a
 * group are not neighbours if the down projection is between gate and up. */
static int stream_pieces(struct filework *f, int pieces, struct fm_err *err)
{
    struct fm_piece *piece = f->piece;
    int most = fm_pool_threads(), rc = FM_OK;
    for (int first = 0, n; first < pieces && !rc && fm_taskgroup_going(&f->w->tasks); first += n) {
        struct fm_piece *x = piece + first;
        if (is_copy(x)) {
            n = 1;
            rc = put_copy(f, x, err);
            continue;
        }
        int experts = 1;
        for (n = 1; first + n < pieces && !is_copy(&x[n]); n++)
            if (!same_expert(&x[n - 1], &x[n]) && ++experts > most)
                break;
        struct fm_mark mark = fm_scratch_mark();
        struct fm_piece *made = fm_scratch((size_t)n * sizeof *made);
        for (int i = 0; i < n; i++)
            x[i].to = fm_scratch((size_t)x[i].size);
        memcpy(made, x, (size_t)n * sizeof *made);
        fm_piece_group(made, (size_t)n);
        struct filework round = {.w = f->w, .piece = made};
        fm_pool_for(n, fill_group, &round);
        for (int i = 0; i < n && !rc && fm_taskgroup_going(&f->w->tasks); i++)
            rc = put_weights(f, 0, x[i].to, (size_t)x[i].size, err);
        fm_scratch_release(mark);
    }
    return rc;
}

/* ---- files ---- */

static struct fm_filetable_entry *entry_of(const struct filework *f)
{
    struct fm_filetable_entry *entry = fm_filetable_find(&f->w->table, f->planned->name);
    assert(entry); /* fm_texts_files listed all files but the last */
    return entry;
}

static int begin_file(struct filework *f, struct fm_err *err)
{
    const struct fm_planned_file *planned = f->planned;
    char member[FM_ARCHIVE_HEADER_MAX];
    size_t size = 0;
    if (!f->w->whole) {
        int rc = fm_outdir_file(&f->w->dir, &f->out, planned->name, err);
        return rc ? rc : fm_output_reserve(&f->out, planned->bytes, err);
    }
    if (!fm_archive_name_ok(planned->name))
        return fm_fail(err, FM_ECONFIG, "file name '%s' cannot be written to a tar stream",
                       planned->name);
    fm_hasher_reset(f->w->whole);
    int rc = fm_archive_header(member, &size, planned->name, planned->bytes, err);
    return rc ? rc : fm_output_write(&f->w->out, member, size, err);
}

/* Write the bytes before the tensors; for a text, the whole file. */
static int put_head(struct filework *f, struct fm_err *err)
{
    const struct fm_exportplan *p = f->w->plan;
    size_t i = (size_t)(f->planned - p->file), size = (size_t)f->planned->header_bytes;
    const char *header = NULL;
    char *owned = NULL;
    bool last = i + 1 == p->files;
    int rc =
        last ? last_text(f->w, &owned, &size, err) : fm_planned_header(p, i, &header, &owned, err);
    header = last ? owned : header;
    if (!rc)
        rc = put(f, 0, header, size, err);
    if (!rc && !f->planned->weights && !last)
        entry_of(f)->digest = digest_of_text(f->planned->name, header, size);
    free(owned);
    return rc;
}

/* The bytes of a weight file that has been written to a directory are still in the page cache,
 * most of them. */
static int end_file(struct filework *f, struct fm_err *err)
{
    static const char zeros[FM_ARCHIVE_END_BYTES];
    uint64_t size = f->planned->bytes;
    struct writer *w = f->w;
    if (w->whole) {
        if (f->planned->weights)
            entry_of(f)->digest = fm_hasher_done(w->whole);
        return fm_output_write(&w->out, zeros, (size_t)(fm_archive_padded(size) - size), err);
    }
    const struct fm_file written = {
        .fd = f->out.fd, .size = size, .path = (char *)f->planned->name};
    if (f->planned->weights &&
        fm_filetable_hash(&entry_of(f)->digest, &written, &w->tasks, false, err))
        return err->code;
    return fm_taskgroup_going(&w->tasks) ? fm_output_commit(&f->out, err) : FM_OK;
}

static void write_file(void *arg, int i)
{
    struct writer *w = arg;
    struct filework f = {.w = w, .planned = &w->plan->file[i]};
    struct fm_err err = {0};
    int pieces = 0, rc = FM_OK;
    if (!fm_taskgroup_going(&w->tasks))
        return;
    if (begin_file(&f, &err) || split_file(&f.piece, &pieces, w->plan, f.planned, w->whole, &err) ||
        put_head(&f, &err))
        rc = err.code;
    if (!rc && w->whole)
        rc = stream_pieces(&f, pieces, &err);
    else if (!rc)
        fm_pool_for(pieces, fill_group, &f);
    if (!rc && fm_taskgroup_going(&w->tasks))
        rc = end_file(&f, &err);
    fm_output_abandon(&f.out);
    free(f.piece);
    if (rc)
        fm_taskgroup_fail(&w->tasks, &err);
}

/* The files of a directory are written at the same time.  In a stream, small files that describe
 * the rest come first, except for fm-export.json. */
static int write_files(struct writer *w, struct fm_err *err)
{
    int last = (int)w->plan->files - 1;
    fm_taskgroup_init(&w->tasks, w->run, "export", fm_planned_weight_bytes(w->plan));
    if (!w->whole)
        fm_pool_for(last, write_file, w);
    for (int weights = 0; w->whole && weights < 2; weights++)
        for (int i = 0; i < last; i++)
            if (w->plan->file[i].weights == (weights == 1))
                write_file(w, i);
    write_file(w, last);
    return fm_taskgroup_end(&w->tasks, err);
}

static int write_directory(struct writer *w, struct fm_err *err)
{
    const char *path = w->run->outputs.path;
    bool force = w->run->outputs.force;
    struct fm_filetable_own old = {0};
    int rc = force ? fm_filetable_own_open(&old, path, err) : FM_OK;
    if (!rc && !(rc = fm_outdir_open(&w->dir, path, force ? &old.listed : NULL, err))) {
        if (write_files(w, err) || fm_file_unchanged(&w->plan->from->bundle.file, err) ||
            fm_run_announce(w->run, err) || fm_outdir_commit(&w->dir, err))
            rc = err->code;
        fm_outdir_abandon(&w->dir);
    }
    fm_filetable_own_close(&old);
    return rc;
}

static int write_stream(struct writer *w, struct fm_err *err)
{
    static const char zeros[FM_ARCHIVE_END_BYTES];
    w->whole = fm_hasher_new();
    int rc = w->whole ? fm_output_open(&w->out, "-", true, false, err)
                      : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    if (!rc && (write_files(w, err) || fm_output_write(&w->out, zeros, sizeof zeros, err) ||
                fm_output_commit(&w->out, err) || fm_run_announce(w->run, err)))
        rc = err->code;
    fm_output_abandon(&w->out);
    fm_hasher_free(w->whole);
    return rc;
}

int fm_exportwriter_write(const struct fm_exportplan *plan, const struct fm_run_options *run,
                          struct fm_err *err)
{
    struct writer w = {.plan = plan, .run = run, .scratch = group_memory(plan, false)};
    assert(plan->weight_files > 0 && !plan->from->foreseen);
    int rc = fm_texts_files(&w.table, plan, err);
    if (!rc)
        rc = strcmp(run->outputs.path, "-") == 0 ? write_stream(&w, err) : write_directory(&w, err);
    fm_filetable_release(&w.table);
    return rc;
}
