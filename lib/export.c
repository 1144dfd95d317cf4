#include "lib/export.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/archive.h"
#include "formats/file.h"
#include "formats/json.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/exporter.h"
#include "lib/stage.h"

/* Large enough for a disk and for the system call's cost, small enough for the second cache. */
#define PIECE_BYTES ((uint64_t)4 << 20)

static const char *const layout_name[FM_LAYOUTS] = {"native", "ragged", "padded", "uniform"};

const char *fm_layout_name(enum fm_layout layout)
{
    return (unsigned)layout < FM_LAYOUTS ? layout_name[layout] : NULL;
}

int fm_layout_from_name(const char *name)
{
    for (int i = 0; i < FM_LAYOUTS; i++)
        if (strcmp(name, layout_name[i]) == 0)
            return i;
    return -1;
}

/* ---- which member ---- */

/* What fm-train was told; its default where the stream does not say. */
static double budget_step(const struct fm_exporter *x)
{
    const cJSON *train = fm_stage_history_of(&x->bundle, "fm-train");
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(train, "options");
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(options, "budget_step");
    struct fm_decimal d;
    struct fm_err unread = {0};
    if (cJSON_IsString(step) &&
        fm_decimal_parse(&d, step->valuestring, "budget_step", &unread) == FM_OK)
        return (double)d.num / (double)d.den;
    return 0.01;
}

static int choose_budget(struct fm_exporter *x, int *index, struct fm_err *err)
{
    double want = x->options->budget, step = budget_step(x);
    const struct fm_budget *b = x->budgets.budget;
    int n = x->budgets.family.count, best = 0;
    for (int i = 1; i < n; i++)
        if (fabs(b[i].budget - want) < fabs(b[best].budget - want))
            best = i;
    *index = best;
    /* Budgets are quotients of integers and `want` was typed: equal up to rounding is equal. */
    if (fabs(b[best].budget - want) <= step + 1e-9)
        return FM_OK;
    int above = best < n - 1 && b[best].budget < want ? best + 1 : best;
    int below = best > 0 && b[best].budget > want ? best - 1 : best;
    if (above == below)
        return fm_fail(err, FM_EUSAGE,
                       "no budget within %g of %g: the nearest is %.6f, at an end of the family "
                       "(%d budgets, %.6f to %.6f)",
                       step, want, b[best].budget, n, b[0].budget, b[n - 1].budget);
    return fm_fail(err, FM_EUSAGE, "no budget within %g of %g: the neighbours are %.6f and %.6f",
                   step, want, b[below].budget, b[above].budget);
}

/* Budgets come with rising number of removed channels, so the first that fits is the largest. */
static int choose_fit(struct fm_exporter *x, int *index, struct fm_err *err)
{
    uint64_t least = UINT64_MAX;
    for (*index = 0; *index < x->budgets.family.count; ++*index) {
        int rc = fm_exporter_plan(x, *index, err);
        if (rc != FM_OK)
            return rc;
        uint64_t bytes = fm_exporter_weight_bytes(x);
        if (bytes <= x->options->fit)
            return FM_OK;
        least = bytes < least ? bytes : least;
    }
    return fm_fail(err, FM_EUSAGE,
                   "no member fits in %llu bytes: the smallest takes %llu in layout %s",
                   (unsigned long long)x->options->fit, (unsigned long long)least,
                   fm_layout_name(x->options->layout));
}

static uint64_t piece_memory(const struct fm_exporter *x)
{
    uint64_t most = 0;
    for (size_t i = 0; i < x->tensors; i++) {
        uint64_t piece = fm_exporter_piece(x, &x->tensor[i], PIECE_BYTES);
        piece = piece < x->tensor[i].t.size ? piece : x->tensor[i].t.size;
        piece *= x->tensor[i].fill == FM_FILL_COPY || x->tensor[i].fill == FM_FILL_FLAT ? 1 : 3;
        most = piece > most ? piece : most;
    }
    return most * (uint64_t)fm_pool_threads();
}

static int plan(struct fm_exporter *x, struct fm_export_report *r, struct fm_err *err)
{
    const struct fm_export_options *o = x->options;
    int index = 0, rc = fm_exporter_open(x, err);
    assert((o->budget >= 0) != (o->fit > 0));
    if (rc == FM_OK)
        rc = o->fit ? choose_fit(x, &index, err) : choose_budget(x, &index, err);
    if (rc == FM_OK)
        rc = fm_exporter_plan(x, index, err);
    if (rc == FM_OK)
        rc = fm_exporter_texts(x, err);
    if (rc != FM_OK)
        return rc;
    *r = (struct fm_export_report){.layout = o->layout,
                                   .index = index,
                                   .budget = x->budgets.budget[index].budget,
                                   .bytes_weights = fm_exporter_weight_bytes(x),
                                   .bytes_memory = piece_memory(x),
                                   .files = (int)x->files};
    r->width_uniform = o->layout == FM_LAYOUT_UNIFORM ? (uint32_t)x->rows : 0;
    for (size_t i = 0; i < x->files; i++)
        r->bytes_out += x->file[i].bytes;
    if (strcmp(x->run->output, "-") == 0)
        return FM_OK;
    rc = fm_file_free_space(x->run->output, &r->bytes_free, err);
    if (rc == FM_OK && r->bytes_free < r->bytes_out)
        rc = fm_fail(err, FM_ECREATE, "%s: the export takes %llu bytes, %llu are free there",
                     x->run->output, (unsigned long long)r->bytes_out,
                     (unsigned long long)r->bytes_free);
    return rc;
}

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
            uint64_t most = fm_exporter_piece(x, t, PIECE_BYTES);
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
        rc = fm_output_write_at(&w.out, 0, f->head, (size_t)f->head_bytes, &err);
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

static int write_directory(struct fm_exporter *x, uint64_t total, struct fm_err *err)
{
    struct dirwork d = {.x = x};
    int rc = fm_outdir_open(&d.dir, x->run->output, x->run->force, err);
    if (rc != FM_OK)
        return rc;
    fm_crew_init(&x->crew, x->run, "export", total);
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
        rc = fm_output_write(out, f->head, (size_t)f->head_bytes, err);
    if (rc == FM_OK)
        rc = stream_pieces(x, out, piece, pieces, err);
    if (rc == FM_OK)
        rc = fm_output_write(out, zeros, (size_t)(fm_archive_padded(f->bytes) - f->bytes), err);
    free(piece);
    return rc;
}

static int write_stream(struct fm_exporter *x, uint64_t total, struct fm_err *err)
{
    static const char zeros[FM_ARCHIVE_END_BYTES];
    struct fm_output out;
    int rc = fm_output_open(&out, "-", true, false, err);
    if (rc != FM_OK)
        return rc;
    fm_crew_init(&x->crew, x->run, "export", total);
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

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int fm_export(const struct fm_run_options *run, const struct fm_export_options *options,
              struct fm_export_report *report, struct fm_err *err)
{
    double start = seconds_now();
    struct fm_exporter x = {.run = run, .options = options};
    *report = (struct fm_export_report){0};
    int rc = plan(&x, report, err);
    if (rc == FM_OK)
        rc = strcmp(run->output, "-") == 0 ? write_stream(&x, report->bytes_weights, err)
                                           : write_directory(&x, report->bytes_weights, err);
    fm_exporter_release(&x);
    report->seconds = seconds_now() - start;
    return rc;
}

int fm_export_plan(const struct fm_run_options *run, const struct fm_export_options *options,
                   struct fm_export_report *report, struct fm_err *err)
{
    struct fm_exporter x = {.run = run, .options = options};
    *report = (struct fm_export_report){0};
    int rc = plan(&x, report, err);
    fm_exporter_release(&x);
    return rc;
}
