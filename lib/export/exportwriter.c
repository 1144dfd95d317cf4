/*
 * Writes a planned export.  A file is cut into pieces that threads fill from the bundle in
 * parallel.  In a directory each piece is written at its offset, in the order of the bundle, so
 * that the bundle is read sequentially; in a stream they are written in the order of the file, in
 * rounds of one group of pieces per thread.  The digests of a stream's files are computed as the
 * stream is written.  A directory's files are not written in order, so each is read once after it
 * has been written, mostly from the page cache.  fm-export.json, which has the digests of all other
 * files, is written last.
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
#include "lib/export/fill.h"
#include "lib/export/ownexport.h"
#include "lib/export/texts.h"
#include "lib/run/taskgroup.h"

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
    struct piece *piece;
    char **bytes; /* in a stream: of each piece of a round */
};

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

/* fm-export.json, the last file of the plan, with the table of files; malloced. */
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

/* Consecutive pieces of one expert form a group, which one task fills, because some are made
 * from the same bytes of the bundle. */
struct piece {
    const struct fm_planned_tensor *tensor;
    uint64_t from, size;
    uint64_t source; /* offset of its source in the bundle */
    int group;       /* number of pieces of the group from this one on; 0: not its first */
};

static int compare_sources(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Mark the first piece of each group.  A piece joins the group of the expert in which the
 * previous piece ends, unless both are of the same tensor and it shares no bytes with others. */
static void group(const struct fm_exportplan *p, struct piece *piece, int n)
{
    int64_t expert = -1;
    for (int i = 0, first = 0; i < n; i++) {
        const struct piece *at = &piece[i];
        bool goes_on = expert >= 0 && fm_fill_expert(p, at->tensor, at->from) == expert &&
                       (at->tensor != at[-1].tensor || fm_fill_shares(p, at->tensor));
        first = goes_on ? first : i;
        piece[first].group++;
        expert = fm_fill_expert(p, at->tensor, at->from + at->size - 1);
    }
}

/* Hold the bytes that the pieces of a group share; the caller releases the scratch. */
static void hold(struct fm_fill_held *held, const struct fm_exportplan *p,
                 const struct piece *piece)
{
    *held = (struct fm_fill_held){0};
    for (int i = 0; i < piece->group; i++)
        fm_fill_hold_add(held, p, piece[i].tensor);
    fm_fill_hold(held);
}

/* Cut a file into *count pieces.  Those of a stream are in order of the file; those of a directory
 * are in order of the bundle, which is then read sequentially.  A copy is one piece, because it has
 * one digest. */
static int cut(struct piece **piece, int *count, const struct fm_exportplan *p,
               const struct fm_planned_file *f, bool stream, struct fm_err *err)
{
    size_t n = 0, room = 0;
    for (size_t i = f->tensor; i < f->tensor + f->tensors; i++) {
        const struct fm_planned_tensor *t = &p->tensor[i];
        for (uint64_t at = 0, next; at < t->t.size; at = next) {
            next = fm_planned_copy(t) ? t->t.size : fm_fill_cut(p, t, at, FM_FILL_PIECE);
            if (FM_GROW(*piece, room, n + 1, "the pieces of a file", err))
                return err->code;
            (*piece)[n++] = (struct piece){t, at, next - at, fm_fill_source(p, t, at), 0};
        }
    }
    *count = (int)n;
    if (!stream && n > 0)
        qsort(*piece, n, sizeof **piece, compare_sources);
    group(p, *piece, *count);
    return FM_OK;
}

/* Upper bound of the additional memory for the source of a piece.  Decoded: its codes, the tensor's
 * scales, and a buffer for comparing both with their checksums.  Rounded: the values of a part of
 * the expert, twice if they are transposed, and the rows that share scales, as float32.  Other
 * blocks that are not a range of the bundle are made, one after another, from copies of at most
 * twice their size. */
static uint64_t filling_memory(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                               uint64_t piece)
{
    const struct fm_tensor *scale = t->decoded ? t->from->at.scale : NULL;
    uint64_t most = 0, H = (uint64_t)p->from->config.H;
    if (t->from && !fm_planned_copy(t))
        return piece +
               (scale ? piece + scale->size + fm_tensor_count(scale) * sizeof(float) + FM_FILL_PIECE
                      : 0);
    for (size_t i = t->block; i < t->block + t->blocks; i++) {
        struct fm_planned_block b = p->block[i];
        uint64_t k = fm_exportplan_stored(p, &b), bytes = 0;
        bool alone = fm_fill_alone(p, &b);
        const struct fm_forms f = alone ? (struct fm_forms){0} : fm_exportplan_forms(p, &b, 0, k);
        if (alone && p->options.quantise) {
            b.plane = -1;
            b.part = fm_expert_cut(p->from->config.expert, b.part).of;
            bytes = piece +
                    fm_exportplan_unit_bytes(p, &b, k) * (b.part == FM_PART_DOWN_T ? 2 : 1) +
                    (k + H) * (uint64_t)p->rounded.scheme.block_rows * sizeof(float);
        } else if (!alone && !fm_forms_same(&f)) {
            bytes = 2 * (b.bytes < piece ? b.bytes : piece);
        }
        most = bytes > most ? bytes : most;
    }
    return most;
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

/* Scratch of a thread for the largest group: what its pieces share, the source of its largest
 * piece, and that piece; in a stream all pieces. */
static uint64_t group_memory(const struct fm_exportplan *p, bool stream)
{
    struct fm_fill_held held = {0};
    uint64_t most = 0, all = 0, filling = 0;
    int64_t expert = -1;
    for (size_t i = 0; i < p->tensors; i++) {
        const struct fm_planned_tensor *t = &p->tensor[i];
        if (t->t.size == 0)
            continue;
        uint64_t piece = fm_fill_piece_max(p, t, FM_FILL_PIECE), shared = 0;
        int64_t first = fm_fill_expert(p, t, 0), last = fm_fill_expert(p, t, t->t.size - 1);
        if (first < 0 || first != expert) {
            held = (struct fm_fill_held){0};
            all = filling = 0;
        }
        fm_fill_hold_add(&held, p, t);
        for (int k = 0; k < FM_PACKED_PARTS_MAX; k++)
            shared += held.part[k].room;
        if (first >= 0 && first == last)
            all += t->t.size;
        else /* a group may have several pieces of the tensor: add them up */
            all += piece + shared;
        uint64_t beside = filling_memory(p, t, piece) + (stream ? 0 : piece);
        filling = beside > filling ? beside : filling;
        uint64_t need = filling + shared + (stream ? all : 0);
        most = need > most ? need : most;
        expert = last;
    }
    return most;
}

/* Memory for the plan and for a group of every thread. */
uint64_t fm_exportwriter_memory(const struct fm_exportplan *p, bool stream)
{
    return FM_PROCESS_BYTES + group_memory(p, stream) * (uint64_t)fm_pool_threads() +
           plan_memory(p);
}

/* ---- the bytes of a file ---- */

/* Write bytes of a file; those of a stream are given in order. */
static int put(struct filework *f, uint64_t at, const void *bytes, size_t size, struct fm_err *err)
{
    if (!f->w->whole)
        return fm_output_write_at(&f->out, at, bytes, size, err);
    fm_hasher_add(f->w->whole, bytes, size);
    return fm_output_write(&f->w->out, bytes, size, err);
}

static int put_piece(struct filework *f, const struct piece *p, const char *bytes,
                     struct fm_err *err)
{
    int rc = put(f, p->tensor->t.offset + p->from, bytes, (size_t)p->size, err);
    if (!rc)
        fm_taskgroup_add(&f->w->tasks, p->size);
    return rc;
}

/* Write a tensor that is copied, in order, and check its digest. */
static int put_copy(struct filework *f, const struct piece *p, struct fm_err *err)
{
    const struct fm_planned_tensor *t = p->tensor;
    struct fm_hasher *hasher = fm_hasher_new();
    int rc = hasher ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    for (uint64_t at = 0, next; at < t->t.size && !rc && fm_taskgroup_going(&f->w->tasks);
         at = next) {
        next = fm_fill_cut(f->w->plan, t, at, FM_FILL_PIECE);
        struct fm_mark mark = fm_scratch_mark();
        const struct piece some = {.tensor = t, .from = at, .size = next - at};
        char *bytes = fm_scratch((size_t)some.size);
        rc = fm_fill_bytes(f->w->plan, t, at, some.size, bytes, err);
        fm_hasher_add(hasher, bytes, (size_t)some.size);
        if (!rc)
            rc = put_piece(f, &some, bytes, err);
        fm_scratch_release(mark);
    }
    if (!rc && fm_taskgroup_going(&f->w->tasks)) {
        struct fm_digest digest = fm_hasher_done(hasher);
        rc = fm_fill_check(f->w->plan, t, &digest, err);
    }
    fm_hasher_free(hasher);
    return rc;
}

/* Fill a piece and write it; in a stream, keep it in `bytes`. */
static int fill_piece(struct filework *f, const struct piece *p, char *bytes, struct fm_err *err)
{
    struct fm_mark mark = fm_scratch_mark();
    char *to = bytes ? bytes : fm_scratch((size_t)p->size);
    int rc = fm_fill_bytes(f->w->plan, p->tensor, p->from, p->size, to, err);
    if (!rc && !bytes)
        rc = put_piece(f, p, to, err);
    fm_scratch_release(mark);
    return rc;
}

/* Fill the pieces of a group, of which i is the first. */
static void fill_group(void *arg, int i)
{
    struct filework *f = arg;
    const struct piece *p = &f->piece[i];
    struct fm_err err = {0};
    struct fm_fill_held held;
    int rc = FM_OK;
    if (!p->group || !fm_taskgroup_going(&f->w->tasks))
        return;
    if (!f->bytes)
        fm_scratch_reserve(f->w->scratch);
    struct fm_mark mark = fm_scratch_mark();
    hold(&held, f->w->plan, p);
    for (int k = 0; k < p->group && !rc; k++)
        rc = fm_planned_copy(p->tensor)
                 ? put_copy(f, p, &err)
                 : fill_piece(f, &p[k], f->bytes ? f->bytes[i + k] : NULL, &err);
    fm_fill_drop(&held);
    fm_scratch_release(mark);
    if (rc)
        fm_taskgroup_fail(&f->w->tasks, &err);
}

/* Groups are filled in parallel, one per thread, and written in order. */
static int stream_pieces(struct filework *f, int pieces, struct fm_err *err)
{
    struct piece *piece = f->piece;
    int most = fm_pool_threads(), rc = FM_OK;
    for (int first = 0, n; first < pieces && !rc && fm_taskgroup_going(&f->w->tasks); first += n) {
        if (fm_planned_copy(piece[first].tensor)) {
            n = 1;
            rc = put_copy(f, &piece[first], err);
            continue;
        }
        struct fm_mark mark = fm_scratch_mark();
        n = 0;
        for (int groups = 0;
             groups < most && first + n < pieces && !fm_planned_copy(piece[first + n].tensor);
             groups++)
            n += piece[first + n].group;
        char **bytes = fm_scratch((size_t)n * sizeof *bytes);
        for (int i = 0; i < n; i++)
            bytes[i] = fm_scratch((size_t)piece[first + i].size);
        struct filework round = {.w = f->w, .piece = piece + first, .bytes = bytes};
        fm_pool_for(n, fill_group, &round);
        for (int i = 0; i < n && !rc && fm_taskgroup_going(&f->w->tasks); i++)
            rc = put_piece(f, &piece[first + i], bytes[i], err);
        fm_scratch_release(mark);
    }
    return rc;
}

/* ---- files ---- */

static struct fm_filetable_entry *entry_of(const struct filework *f)
{
    return fm_filetable_find(&f->w->table, f->planned->name);
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
    int rc = last ? last_text(f->w, &owned, &size, err)
                  : fm_exportplan_header(p, i, &header, &owned, err);
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
    if (begin_file(&f, &err) || cut(&f.piece, &pieces, w->plan, f.planned, w->whole, &err) ||
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
    fm_taskgroup_init(&w->tasks, w->run, "export", fm_exportplan_weight_bytes(w->plan));
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
    struct fm_ownexport old = {0};
    int rc = force ? fm_ownexport_open(&old, path, err) : FM_OK;
    if (!rc && !(rc = fm_outdir_open(&w->dir, path, force ? &old.listed : NULL, err))) {
        if (write_files(w, err) || fm_file_unchanged(&w->plan->from->bundle.file, err) ||
            fm_run_announce(w->run, err) || fm_outdir_commit(&w->dir, err))
            rc = err->code;
        fm_outdir_abandon(&w->dir);
    }
    fm_ownexport_close(&old);
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
    int rc = fm_texts_files(&w.table, plan, err);
    if (!rc)
        rc = strcmp(run->outputs.path, "-") == 0 ? write_stream(&w, err) : write_directory(&w, err);
    fm_filetable_release(&w.table);
    return rc;
}
