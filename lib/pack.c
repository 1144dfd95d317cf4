#include "lib/pack.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/bundle.h"
#include "formats/hfdir.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/adapter.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/budgets.h"
#include "lib/checkpoint.h"
#include "lib/crew.h"
#include "lib/layout.h"
#include "lib/lorafile.h"
#include "lib/ranking.h"
#include "lib/segments.h"
#include "lib/stage.h"

/* Tensors that are not experts' are copied in pieces of this size. */
#define PIECE_BYTES ((size_t)4 << 20)

/* A member under weights/: its header, and its tensors in file order. */
struct volume {
    char name[64];
    char *header;
    uint64_t header_bytes, file_bytes;
    struct fm_tensor *tensor;
    size_t tensors;
    int layer; /* -1: the rest */
    size_t part;
};

struct pack {
    const struct fm_run_options *run;
    struct fm_pack_report *report;
    struct fm_bundle in;
    struct fm_checkpoint cp;
    struct fm_ranking ranking;
    struct fm_budgets budgets;
    struct fm_adapter adapter;
    const struct fm_ops *ops; /* NULL: no adapter */
    struct fm_segments seg;
    struct volume *volume; /* layers, then the rest */
    int volumes;
    struct fm_stage_parts parts;
    void *segments; /* the member, once its digests are known */
    size_t segments_bytes;
    struct fm_bundle_writer *writer; /* NULL: the pass that only takes digests */
    int wave;                        /* experts of one volume in work at once */
    struct fm_crew crew;
};

/* ---- plans ---- */

static int check_sizes(const struct pack *p, struct fm_err *err)
{
    const struct fm_config *c = &p->cp.config;
    const struct fm_family *f = &p->budgets.family;
    if (p->ranking.M != c->M || p->ranking.E != c->E || p->ranking.I != c->I || f->M != c->M ||
        f->E != c->E || f->I != c->I)
        return fm_fail(err, FM_ECONFIG, "%s: ranking and masks are for another shape than %s",
                       p->in.file.path, p->run->model);
    if (p->ops && (p->adapter.M != c->M || p->adapter.E != c->E || p->adapter.H != c->H))
        return fm_fail(err, FM_ECONFIG, "%s: the adapter is for another shape than %s",
                       p->in.file.path, p->run->model);
    return FM_OK;
}

static int open_inputs(struct pack *p, struct fm_err *err)
{
    const char *input = p->run->input ? p->run->input : "-";
    int rc = fm_stage_open(&p->in, input, FM_MEMBER_MASKS, err);
    if (rc == FM_OK)
        rc = fm_checkpoint_open(&p->cp, p->run->model, err);
    if (rc == FM_OK)
        rc = fm_stage_model_check(&p->in, &p->cp.dir, err);
    if (rc == FM_OK)
        rc = fm_ranking_open(&p->ranking, &p->in, err);
    if (rc == FM_OK)
        rc = fm_budgets_open(&p->budgets, &p->in, err);
    if (rc == FM_OK && fm_bundle_find(&p->in, FM_MEMBER_ADAPTER)) {
        rc = fm_lorafile_open(&p->adapter, &p->in, err);
        if (rc == FM_OK)
            rc = fm_run_ops(&p->ops, p->run, err);
    }
    if (rc == FM_OK)
        rc = check_sizes(p, err);
    return rc == FM_OK && p->ops ? fm_lorafile_check(&p->adapter, &p->in, &p->budgets.family, err)
                                 : rc;
}

/* Boundaries at every action width and at the uniform width of every budget. */
static int plan_segments(struct pack *p, struct fm_err *err)
{
    const struct fm_config *c = &p->cp.config;
    const struct fm_actions *a = &p->budgets.actions;
    const struct fm_family *f = &p->budgets.family;
    size_t n = 0;
    uint32_t *width = fm_alloc((size_t)a->count + (size_t)f->count, sizeof *width, "widths", err);
    struct fm_tensor *rest = fm_alloc(p->cp.rests, sizeof *rest, "the list of tensors", err);
    int rc = width && rest ? FM_OK : err->code;
    if (rc == FM_OK) {
        for (int i = 0; i < a->count; i++)
            width[n++] = a->width[i];
        for (int i = 0; i < f->count; i++)
            width[n++] =
                fm_actions_uniform_export(f->mask[i].removed, c->M, c->E, c->I, a->multiple);
        for (size_t i = 0; i < p->cp.rests; i++)
            rest[i] = *p->cp.rest[i].tensor;
        rc = fm_segments_init(&p->seg, c, p->cp.dtype, width, n, rest, p->cp.rests, err);
    }
    /* Its size is that of the finished member: all digests are still zero. */
    if (rc == FM_OK)
        rc = fm_segments_write(&p->seg, &p->segments, &p->segments_bytes, err);
    free(width);
    free(rest);
    return rc;
}

static int plan_layer(struct pack *p, struct volume *v, struct fm_err *err)
{
    const struct fm_config *c = &p->cp.config;
    static const char *const name[FM_SEGMENT_PARTS] = {"gate_up", "down"};
    int l = c->moe[v->layer];
    snprintf(v->name, sizeof v->name, FM_MEMBER_WEIGHTS "layers-%05d.safetensors", l);
    v->tensors = FM_SEGMENT_PARTS;
    v->tensor = fm_alloc(FM_SEGMENT_PARTS, sizeof *v->tensor, "a layer's plan", err);
    for (int i = 0; v->tensor && i < FM_SEGMENT_PARTS; i++) {
        char text[64];
        snprintf(text, sizeof text, "layers.%d.%s", l, name[i]);
        uint64_t rows = (uint64_t)c->I * (i == FM_SEGMENT_GATE_UP ? 2 : 1);
        v->tensor[i] = (struct fm_tensor){.name = fm_strdup(text, err),
                                          .dtype = p->cp.dtype,
                                          .dims = 3,
                                          .shape = {(uint64_t)c->E, rows, (uint64_t)c->H}};
        if (!v->tensor[i].name)
            return err->code;
    }
    return v->tensor ? FM_OK : err->code;
}

static int plan_rest(struct pack *p, struct volume *v, struct fm_err *err)
{
    snprintf(v->name, sizeof v->name, FM_MEMBER_WEIGHTS "rest.safetensors");
    v->tensors = p->cp.rests;
    v->tensor = fm_alloc(v->tensors, sizeof *v->tensor, "the plan of other tensors", err);
    for (size_t i = 0; v->tensor && i < v->tensors; i++) {
        v->tensor[i] = *p->cp.rest[i].tensor;
        v->tensor[i].name = fm_strdup(p->cp.rest[i].tensor->name, err);
        if (!v->tensor[i].name)
            return err->code;
    }
    return v->tensor ? FM_OK : err->code;
}

static int plan_volumes(struct pack *p, struct fm_err *err)
{
    p->volumes = p->cp.config.M + 1;
    p->volume = fm_alloc((size_t)p->volumes, sizeof *p->volume, "the list of members", err);
    int rc = p->volume ? FM_OK : err->code;
    for (int i = 0; i < p->volumes && rc == FM_OK; i++) {
        struct volume *v = &p->volume[i];
        v->layer = i < p->cp.config.M ? i : -1;
        rc = v->layer >= 0 ? plan_layer(p, v, err) : plan_rest(p, v, err);
        if (rc == FM_OK)
            rc = fm_safetensors_plan(v->tensor, v->tensors, NULL, &v->header, &v->header_bytes,
                                     &v->file_bytes, err);
    }
    return rc;
}

/* Members in bundle order; the segments with their bytes where those are final. */
static int plan_parts(struct pack *p, bool final, struct fm_err *err)
{
    fm_stage_parts_release(&p->parts);
    int rc = fm_stage_parts_collect(&p->parts, FM_STAGE_PACK, &p->in, NULL, NULL, 0, err);
    struct fm_part part = {.name = FM_MEMBER_SEGMENTS,
                           .size = p->segments_bytes,
                           .data = final ? p->segments : NULL,
                           .aligned = true};
    if (rc == FM_OK)
        rc = fm_stage_parts_add(&p->parts, &part, err);
    for (int i = 0; i < p->volumes && rc == FM_OK; i++) {
        struct volume *v = &p->volume[i];
        v->part = p->parts.parts;
        part = (struct fm_part){.name = v->name, .size = v->file_bytes, .aligned = true};
        rc = fm_stage_parts_add(&p->parts, &part, err);
    }
    return rc;
}

static int make_manifest(struct pack *p, cJSON **manifest, struct fm_err *err)
{
    char dropped[FM_STAGE_DROPPED_BYTES] = "";
    int rc = fm_stage_manifest(manifest, FM_STAGE_PACK, &p->in, NULL, dropped, err);
    if (rc != FM_OK)
        return rc;
    cJSON *result = cJSON_CreateObject();
    fm_json_add_uint(result, "segments", (uint64_t)p->seg.S);
    fm_json_add_uint(result, "merged", p->report->merged);
    rc = fm_stage_history(*manifest, "fm-pack", cJSON_CreateObject(), NULL, result, err);
    if (rc != FM_OK) {
        cJSON_Delete(*manifest);
        *manifest = NULL;
    }
    return rc;
}

static bool to_pipe(const struct pack *p)
{
    return strcmp(p->run->output, "-") == 0;
}

/* Weights that the adapter reaches. */
static uint64_t count_merged(const struct pack *p)
{
    uint64_t channels = 0;
    for (int i = 0; p->ops && i < p->adapter.M * p->adapter.E; i++)
        channels += p->adapter.widths[i];
    return channels * 3 * (uint64_t)p->cp.config.H;
}

/* Source and destination of the largest item, its channels in float32 where an adapter is
 * merged, for every task at once. */
static uint64_t plan_memory(const struct pack *p)
{
    uint64_t channels = (uint64_t)p->cp.config.I * (uint64_t)p->cp.config.H;
    uint64_t element = (uint64_t)fm_dtype_bits(p->cp.dtype) / 8;
    uint64_t item = channels * (4 * element + (p->ops ? 12 : 0));
    return (uint64_t)fm_pool_threads() * (item + PIECE_BYTES) + p->segments_bytes;
}

static int fill_report(struct pack *p, struct fm_err *err)
{
    struct fm_pack_report *r = p->report;
    cJSON *manifest = NULL;
    r->layers = p->cp.config.M;
    r->experts = p->cp.config.E;
    r->budgets = p->budgets.family.count;
    r->segments = p->seg.S;
    r->adapter = p->ops != NULL;
    r->merged = count_merged(p);
    r->bytes_in = fm_stage_tensor_bytes(&p->cp.dir);
    r->bytes_memory = plan_memory(p);
    r->passes = to_pipe(p) ? 2 : 1;
    int rc = make_manifest(p, &manifest, err);
    if (rc == FM_OK)
        rc = fm_bundle_size(&r->bytes_out, manifest, p->parts.part, p->parts.parts, err);
    cJSON_Delete(manifest);
    if (rc != FM_OK || to_pipe(p))
        return rc;
    rc = fm_file_free_space(p->run->output, &r->bytes_free, err);
    if (rc == FM_OK && r->bytes_free < r->bytes_out)
        rc = fm_fail(err, FM_ECREATE, "%s: the bundle takes %llu bytes, %llu are free there",
                     p->run->output, (unsigned long long)r->bytes_out,
                     (unsigned long long)r->bytes_free);
    return rc;
}

static int plan(struct pack *p, struct fm_err *err)
{
    int rc = open_inputs(p, err);
    if (rc == FM_OK)
        rc = plan_segments(p, err);
    if (rc == FM_OK)
        rc = plan_volumes(p, err);
    if (rc == FM_OK)
        rc = plan_parts(p, false, err);
    return rc == FM_OK ? fill_report(p, err) : rc;
}

/* ---- weights ---- */

/* A whole tensor of the checkpoint, every value finite. */
static int read_matrix(const struct pack *p, const struct fm_where *place, void *dst,
                       struct fm_err *err)
{
    const struct fm_tensor *t = place->tensor;
    int rc = fm_file_read(place->file, t->offset, dst, t->size, err);
    size_t n = (size_t)fm_tensor_count(t);
    size_t bad = rc == FM_OK ? fm_dtype_nonfinite(dst, p->cp.dtype, n) : n;
    if (bad < n)
        rc = fm_fail(err, FM_EFORMAT, "%s: tensor '%s': element %zu is not a finite number",
                     place->file->path, t->name, bad);
    return rc;
}

/*
 * Add the adapter to one part of expert (l, e): channels under its mask to float32, merged,
 * rounded once.  The other part is not there, and stays as it is.
 */
static int merge(const struct pack *p, enum fm_segment_part part, int l, int e, void *rows,
                 struct fm_err *err)
{
    size_t k = p->adapter.widths[(size_t)l * (size_t)p->adapter.E + (size_t)e];
    size_t n = k * (size_t)p->cp.config.H * (part == FM_SEGMENT_GATE_UP ? 2 : 1);
    if (k == 0)
        return FM_OK;
    float *wide = fm_scratch(n * sizeof *wide);
    fm_dtype_to_f32(wide, rows, p->cp.dtype, n);
    fm_adapter_merge(&p->adapter, p->ops, part == FM_SEGMENT_GATE_UP ? wide : NULL,
                     part == FM_SEGMENT_DOWN ? wide : NULL, l, e);
    fm_dtype_from_f32(rows, wide, p->cp.dtype, n);
    size_t bad = fm_dtype_nonfinite(rows, p->cp.dtype, n);
    if (bad < n)
        return fm_fail(err, FM_EFORMAT,
                       "layer %d, expert %d: weight %zu is not a finite %s with the adapter merged",
                       l, e, bad, fm_dtype_name(p->cp.dtype));
    return FM_OK;
}

/* One part of one expert in the online layout, as stored. */
static int make_part(const struct pack *p, enum fm_segment_part part, int l, int e, void *rows,
                     struct fm_err *err)
{
    int I = p->cp.config.I, H = p->cp.config.H, element = fm_dtype_bits(p->cp.dtype) / 8;
    size_t matrix = (size_t)I * (size_t)H * (size_t)element;
    const int32_t *order =
        p->ranking.order + ((size_t)l * (size_t)p->cp.config.E + (size_t)e) * (size_t)I;
    int rc;
    if (part == FM_SEGMENT_DOWN) {
        void *down = fm_scratch(matrix);
        rc = read_matrix(p, fm_checkpoint_expert(&p->cp, l, e, FM_MATRIX_DOWN), down, err);
        if (rc == FM_OK)
            fm_layout_gather(rows, down, order, I, H, element);
    } else {
        char *gate = fm_scratch(matrix), *up = fm_scratch(matrix);
        rc = read_matrix(p, fm_checkpoint_expert(&p->cp, l, e, FM_MATRIX_GATE), gate, err);
        if (rc == FM_OK)
            rc = read_matrix(p, fm_checkpoint_expert(&p->cp, l, e, FM_MATRIX_UP), up, err);
        if (rc == FM_OK)
            fm_layout_interleave(rows, gate, up, order, I, H, element);
    }
    return rc == FM_OK && p->ops ? merge(p, part, l, e, rows, err) : rc;
}

/* A run of experts of one tensor, made at once and appended in order. */
struct wave {
    struct pack *p;
    int layer, first;
    enum fm_segment_part part;
    char *rows; /* one after another */
    size_t bytes;
};

static void make_expert(void *arg, int i)
{
    struct wave *w = arg;
    struct pack *p = w->p;
    struct fm_err err = {0};
    int e = w->first + i;
    if (!fm_crew_going(&p->crew))
        return;
    struct fm_mark mark = fm_scratch_mark();
    char *rows = w->rows + (size_t)i * w->bytes;
    if (make_part(p, w->part, w->layer, e, rows, &err) == FM_OK)
        fm_segments_digest(fm_segments_expert(&p->seg, w->layer, w->part, e), &p->seg, p->seg.S,
                           rows, w->bytes / (size_t)p->cp.config.I);
    else
        fm_crew_fail(&p->crew, &err);
    fm_scratch_release(mark);
    if (err.code == FM_OK)
        fm_crew_add(&p->crew, w->bytes);
}

static int append(struct pack *p, const struct volume *v, const void *src, size_t size,
                  struct fm_err *err)
{
    return p->writer ? fm_bundle_append(p->writer, v->part, src, size, err) : FM_OK;
}

/* All experts of one tensor of a layer. */
static int pass_tensor(struct pack *p, const struct volume *v, const struct fm_tensor *t,
                       struct fm_err *err)
{
    int E = p->cp.config.E;
    struct fm_mark mark = fm_scratch_mark();
    struct wave w = {.p = p, .layer = v->layer, .bytes = t->size / (size_t)E};
    w.part = strstr(t->name, ".down") ? FM_SEGMENT_DOWN : FM_SEGMENT_GATE_UP;
    w.rows = fm_scratch((size_t)p->wave * w.bytes);
    int rc = FM_OK;
    for (; w.first < E && rc == FM_OK && fm_crew_going(&p->crew); w.first += p->wave) {
        int n = E - w.first < p->wave ? E - w.first : p->wave;
        fm_pool_for(n, make_expert, &w);
        if (fm_crew_going(&p->crew))
            rc = append(p, v, w.rows, (size_t)n * w.bytes, err);
    }
    fm_scratch_release(mark);
    return rc;
}

static const struct fm_where *find_place(const struct pack *p, const char *name)
{
    const struct fm_where *place = NULL;
    size_t low = 0, high = p->cp.rests;
    while (low < high) {
        size_t mid = (low + high) / 2;
        place = &p->cp.rest[mid];
        int c = strcmp(name, place->tensor->name);
        if (c == 0)
            return place;
        if (c < 0)
            high = mid;
        else
            low = mid + 1;
    }
    assert(!"a planned tensor is in the checkpoint");
    return NULL;
}

/* One tensor that is no expert's, byte for byte. */
static int pass_other(struct pack *p, const struct volume *v, const struct fm_tensor *t,
                      struct fm_err *err)
{
    const struct fm_where *place = find_place(p, t->name);
    struct fm_hasher *hasher = fm_hasher_new();
    struct fm_mark mark = fm_scratch_mark();
    char *piece = fm_scratch(PIECE_BYTES);
    int rc = hasher ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    size_t element = (size_t)fm_dtype_bits(t->dtype) / 8;
    for (uint64_t at = 0; at < t->size && rc == FM_OK && fm_crew_going(&p->crew);) {
        size_t n = t->size - at < PIECE_BYTES ? (size_t)(t->size - at) : PIECE_BYTES;
        rc = fm_file_read(place->file, place->tensor->offset + at, piece, n, err);
        if (rc != FM_OK)
            break;
        if (fm_dtype_is_weight(t->dtype) &&
            fm_dtype_nonfinite(piece, t->dtype, n / element) < n / element)
            rc = fm_fail(err, FM_EFORMAT, "%s: tensor '%s' has a value that is not finite",
                         place->file->path, t->name);
        fm_hasher_add(hasher, piece, n);
        if (rc == FM_OK)
            rc = append(p, v, piece, n, err);
        fm_crew_add(&p->crew, n);
        at += n;
    }
    if (rc == FM_OK)
        fm_segments_find(&p->seg, t->name)->digest = fm_hasher_done(hasher);
    fm_scratch_release(mark);
    fm_hasher_free(hasher);
    return rc;
}

static void pass_volume(void *arg, int i)
{
    struct pack *p = arg;
    const struct volume *v = &p->volume[i];
    struct fm_err err = {0};
    int rc = fm_crew_going(&p->crew) ? append(p, v, v->header, v->header_bytes, &err) : FM_OK;
    for (size_t t = 0; t < v->tensors && rc == FM_OK && fm_crew_going(&p->crew); t++)
        rc = v->layer >= 0 ? pass_tensor(p, v, &v->tensor[t], &err)
                           : pass_other(p, v, &v->tensor[t], &err);
    if (rc != FM_OK)
        fm_crew_fail(&p->crew, &err);
}

/* All weights once.  To a file, members are made side by side; to a pipe, one after another and
 * the experts of each side by side. */
static int pass(struct pack *p, const char *stage, struct fm_err *err)
{
    bool in_order = p->writer && !fm_bundle_writer_seekable(p->writer);
    p->wave = in_order ? fm_pool_threads() : 1;
    fm_crew_init(&p->crew, p->run, stage, p->report->bytes_in);
    if (!in_order)
        fm_pool_for(p->volumes, pass_volume, p);
    for (int i = 0; in_order && i < p->volumes; i++)
        pass_volume(p, i);
    int rc = fm_crew_end(&p->crew, err);
    for (size_t s = 0; s < p->cp.dir.shards && rc == FM_OK; s++)
        rc = fm_file_unchanged(&p->cp.dir.shard[s].file, err);
    return rc;
}

static int finish_segments(struct pack *p, struct fm_err *err)
{
    size_t planned = p->segments_bytes;
    free(p->segments);
    p->segments = NULL;
    int rc = fm_segments_write(&p->seg, &p->segments, &p->segments_bytes, err);
    assert(rc != FM_OK || p->segments_bytes == planned);
    return rc;
}

static int begin(struct pack *p, struct fm_err *err)
{
    cJSON *manifest = NULL;
    int rc = fm_hfdir_spare(&p->cp.dir, p->run->output, err);
    if (rc == FM_OK)
        rc = fm_run_spare_inputs(p->run, err);
    if (rc == FM_OK)
        rc = make_manifest(p, &manifest, err);
    return rc == FM_OK ? fm_bundle_begin(&p->writer, p->run->output, p->run->force, manifest,
                                         p->parts.part, p->parts.parts, err)
                       : rc;
}

/* The second pass read what the first did.  The reader's stream has no end where it did not. */
static int compare_passes(const struct pack *p, struct fm_err *err)
{
    void *segments = NULL;
    size_t size = 0;
    int rc = fm_segments_write(&p->seg, &segments, &size, err);
    if (rc == FM_OK && (size != p->segments_bytes || memcmp(segments, p->segments, size) != 0))
        rc = fm_fail(err, FM_EIO, "%s: the second reading gave other weights than the first",
                     p->run->model);
    free(segments);
    return rc;
}

/* Digests first, then everything in order. */
static int write_pipe(struct pack *p, struct fm_err *err)
{
    int rc = pass(p, "digests", err);
    if (rc == FM_OK)
        rc = finish_segments(p, err);
    if (rc == FM_OK)
        rc = plan_parts(p, true, err);
    if (rc == FM_OK)
        rc = begin(p, err);
    if (rc == FM_OK)
        rc = pass(p, "weights", err);
    return rc == FM_OK ? compare_passes(p, err) : rc;
}

/* Everything once; the digests go where room was left for them. */
static int write_file(struct pack *p, struct fm_err *err)
{
    int rc = begin(p, err);
    if (rc == FM_OK)
        rc = pass(p, "weights", err);
    if (rc == FM_OK)
        rc = finish_segments(p, err);
    return rc == FM_OK ? fm_bundle_append(p->writer, p->volume[0].part - 1, p->segments,
                                          p->segments_bytes, err)
                       : rc;
}

static void release(struct pack *p)
{
    fm_bundle_abandon(p->writer);
    for (int i = 0; p->volume && i < p->volumes; i++) {
        for (size_t t = 0; p->volume[i].tensor && t < p->volume[i].tensors; t++)
            free((char *)(uintptr_t)p->volume[i].tensor[t].name);
        free(p->volume[i].tensor);
        free(p->volume[i].header);
    }
    free(p->volume);
    free(p->segments);
    fm_stage_parts_release(&p->parts);
    fm_segments_release(&p->seg);
    fm_adapter_release(&p->adapter);
    fm_budgets_release(&p->budgets);
    fm_ranking_release(&p->ranking);
    fm_checkpoint_close(&p->cp);
    fm_bundle_close(&p->in);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int fm_pack(const struct fm_run_options *run, struct fm_pack_report *report, struct fm_err *err)
{
    double start = seconds_now();
    struct pack p = {.run = run, .report = report};
    *report = (struct fm_pack_report){0};
    int rc = plan(&p, err);
    if (rc == FM_OK)
        rc = to_pipe(&p) ? write_pipe(&p, err) : write_file(&p, err);
    if (rc == FM_OK) {
        rc = fm_bundle_finish(p.writer, err);
        p.writer = NULL;
    }
    release(&p);
    report->seconds = seconds_now() - start;
    return rc;
}

int fm_pack_plan(const struct fm_run_options *run, struct fm_pack_report *report,
                 struct fm_err *err)
{
    struct pack p = {.run = run, .report = report};
    *report = (struct fm_pack_report){0};
    int rc = plan(&p, err);
    release(&p);
    return rc;
}
