/* An export that is planned, written: as a directory, or as a tar stream of it. */
#include "lib/export/exporter.h"

#include <stdlib.h>
#include <string.h>

#include "formats/bundle/archive.h"
#include "formats/file/file.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"

/* ---- pieces of one file ---- */

struct piece {
    const struct fm_export_tensor *tensor;
    uint64_t from, size;
};

/* The pieces of a file in order; *count of them. */
static int cut(struct piece **piece, int *count, const struct fm_exporter *x, size_t file,
               struct fm_err *err)
{
    size_t n = 0;
    *piece = NULL;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (size_t i = 0; i < x->tensors; i++) {
            const struct fm_export_tensor *t = &x->tensor[i];
            uint64_t most = fm_exporter_piece(x, t, FM_EXPORT_PIECE);
            for (uint64_t at = 0; t->file == file && at < t->t.size; at += most, n++)
                if (pass == 1)
                    (*piece)[n] =
                        (struct piece){t, at, t->t.size - at < most ? t->t.size - at : most};
        }
        if (pass == 0)
            *piece = fm_alloc(n, sizeof **piece, "the pieces of a file", err);
        if (!*piece)
            return err->code;
    }
    *count = (int)n;
    return FM_OK;
}

/* ---- a directory ---- */

struct dirwork {
    struct fm_exporter *x;
    struct fm_outdir dir;
};

struct filework {
    struct fm_exporter *x;
    struct fm_output out;
    struct piece *piece;
};

static void write_piece(void *arg, int i)
{
    struct filework *w = arg;
    struct fm_exporter *x = w->x;
    const struct piece *p = &w->piece[i];
    struct fm_err err = {0};
    if (!fm_crew_going(&x->crew))
        return;
    struct fm_mark mark = fm_scratch_mark();
    void *bytes = fm_scratch((size_t)p->size);
    int rc = fm_exporter_fill(x, p->tensor, p->from, p->size, bytes, &err);
    if (rc == FM_OK)
        rc = fm_output_write_at(&w->out, p->tensor->t.offset + p->from, bytes, (size_t)p->size,
                                &err);
    fm_scratch_release(mark);
    if (rc == FM_OK)
        fm_crew_add(&x->crew, p->size);
    else
        fm_crew_fail(&x->crew, &err);
}

static void write_file(void *arg, int i)
{
    struct dirwork *d = arg;
    struct fm_exporter *x = d->x;
    const struct fm_export_file *f = &x->file[i];
    struct filework w = {.x = x};
    struct fm_err err = {0};
    const char *head = NULL;
    int pieces = 0;
    if (!fm_crew_going(&x->crew))
        return;
    int rc = fm_outdir_file(&d->dir, &w.out, f->name, &err);
    bool open = rc == FM_OK;
    if (rc == FM_OK)
        rc = cut(&w.piece, &pieces, x, f->weights ? (size_t)i : SIZE_MAX, &err);
    if (rc == FM_OK)
        rc = fm_output_reserve(&w.out, f->bytes, &err);
    if (rc == FM_OK)
        rc = fm_exporter_head(x, (size_t)i, &head, &err);
    if (rc == FM_OK)
        rc = fm_output_write_at(&w.out, 0, head, (size_t)f->head_bytes, &err);
    if (rc == FM_OK) {
        fm_pool_for(pieces, write_piece, &w);
        if (fm_crew_going(&x->crew))
            rc = fm_output_commit(&w.out, &err);
    }
    if (open)
        fm_output_abandon(&w.out);
    free(w.piece);
    if (rc != FM_OK)
        fm_crew_fail(&x->crew, &err);
}

static int write_directory(struct fm_exporter *x, struct fm_err *err)
{
    struct dirwork d = {.x = x};
    int rc = fm_outdir_open(&d.dir, x->run->output, x->run->force, err);
    if (rc != FM_OK)
        return rc;
    fm_crew_init(&x->crew, x->run, "export", fm_exporter_weight_bytes(x));
    fm_pool_for((int)x->files, write_file, &d);
    rc = fm_crew_end(&x->crew, err);
    if (rc == FM_OK)
        rc = fm_file_unchanged(&x->bundle.file, err);
    if (rc == FM_OK)
        rc = fm_outdir_commit(&d.dir, err);
    fm_outdir_abandon(&d.dir);
    return rc;
}

/* ---- a tar stream ---- */

struct wave {
    struct fm_exporter *x;
    const struct piece *piece;
    char **bytes;
};

static void fill_piece(void *arg, int i)
{
    struct wave *w = arg;
    struct fm_err err = {0};
    if (!fm_crew_going(&w->x->crew))
        return;
    const struct piece *p = &w->piece[i];
    if (fm_exporter_fill(w->x, p->tensor, p->from, p->size, w->bytes[i], &err) != FM_OK)
        fm_crew_fail(&w->x->crew, &err);
}

/* Pieces are filled side by side and written in order. */
static int stream_pieces(struct fm_exporter *x, struct fm_output *out, const struct piece *piece,
                         int pieces, struct fm_err *err)
{
    int most = fm_pool_threads(), rc = FM_OK;
    struct fm_mark mark = fm_scratch_mark();
    char **bytes = fm_scratch((size_t)most * sizeof *bytes);
    for (int first = 0; first < pieces && rc == FM_OK && fm_crew_going(&x->crew); first += most) {
        int n = pieces - first < most ? pieces - first : most;
        struct fm_mark inner = fm_scratch_mark();
        for (int i = 0; i < n; i++)
            bytes[i] = fm_scratch((size_t)piece[first + i].size);
        struct wave w = {x, piece + first, bytes};
        fm_pool_for(n, fill_piece, &w);
        for (int i = 0; i < n && rc == FM_OK && fm_crew_going(&x->crew); i++) {
            rc = fm_output_write(out, bytes[i], (size_t)piece[first + i].size, err);
            fm_crew_add(&x->crew, piece[first + i].size);
        }
        fm_scratch_release(inner);
    }
    fm_scratch_release(mark);
    return rc;
}

static int stream_file(struct fm_exporter *x, struct fm_output *out, size_t i, struct fm_err *err)
{
    static const char zeros[FM_ARCHIVE_END_BYTES];
    const struct fm_export_file *f = &x->file[i];
    char header[FM_ARCHIVE_HEADER_MAX];
    const char *head = NULL;
    size_t header_bytes = 0;
    struct piece *piece = NULL;
    int pieces = 0;
    if (!fm_archive_name_ok(f->name))
        return fm_fail(err, FM_ECONFIG, "file name '%s' cannot be written to a tar stream",
                       f->name);
    int rc = fm_archive_header(header, &header_bytes, f->name, f->bytes, err);
    if (rc == FM_OK)
        rc = cut(&piece, &pieces, x, f->weights ? i : SIZE_MAX, err);
    if (rc == FM_OK)
        rc = fm_output_write(out, header, header_bytes, err);
    if (rc == FM_OK)
        rc = fm_exporter_head(x, i, &head, err);
    if (rc == FM_OK)
        rc = fm_output_write(out, head, (size_t)f->head_bytes, err);
    if (rc == FM_OK)
        rc = stream_pieces(x, out, piece, pieces, err);
    if (rc == FM_OK)
        rc = fm_output_write(out, zeros, (size_t)(fm_archive_padded(f->bytes) - f->bytes), err);
    free(piece);
    return rc;
}

static int write_stream(struct fm_exporter *x, struct fm_err *err)
{
    static const char zeros[FM_ARCHIVE_END_BYTES];
    struct fm_output out;
    int rc = fm_output_open(&out, "-", true, false, err);
    if (rc != FM_OK)
        return rc;
    fm_crew_init(&x->crew, x->run, "export", fm_exporter_weight_bytes(x));
    /* What is small and says what the rest is comes first. */
    for (int weights = 0; weights < 2; weights++)
        for (size_t i = 0; i < x->files && rc == FM_OK && fm_crew_going(&x->crew); i++)
            if (x->file[i].weights == (weights == 1))
                rc = stream_file(x, &out, i, err);
    int crew = fm_crew_end(&x->crew, rc == FM_OK ? err : &(struct fm_err){0});
    rc = rc == FM_OK ? crew : rc;
    if (rc == FM_OK)
        rc = fm_output_write(&out, zeros, sizeof zeros, err);
    if (rc == FM_OK)
        rc = fm_output_commit(&out, err);
    fm_output_abandon(&out);
    return rc;
}

int fm_exporter_write(struct fm_exporter *x, struct fm_err *err)
{
    return strcmp(x->run->output, "-") == 0 ? write_stream(x, err) : write_directory(x, err);
}
