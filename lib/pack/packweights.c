/*
 * Experts are made a batch at a time, one on each thread, and appended in order: the stream's
 * order is fixed, and memory is a few experts.  Rows are moved as bytes in their own dtype; only
 * channels under the adapter become float32, and are rounded once.  Digests and the search for NaN
 * and Inf happen while an expert is in the cache.
 */
#include "lib/pack/packing.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "lib/base/pool.h"
#include "lib/model/layout.h"

/* A tensor of the checkpoint has passed. */
static void add_sum(struct fm_packing *p, const struct fm_tensor *t, const struct fm_digest *digest)
{
    int l = fm_weightsum_place(&p->cp.config, t->name);
    if (l < 0)
        return;
    pthread_mutex_lock(&p->lock);
    fm_weightsum_add(&p->sums.sum[l], digest);
    pthread_mutex_unlock(&p->lock);
}

/* A whole tensor of the checkpoint, every value finite. */
static int read_matrix(struct fm_packing *p, const struct fm_where *place, void *dst,
                       struct fm_err *err)
{
    const struct fm_tensor *t = place->tensor;
    int rc = fm_file_read(place->file, t->offset, dst, t->size, err);
    size_t n = (size_t)fm_tensor_count(t);
    size_t bad = rc == FM_OK ? fm_dtype_nonfinite(dst, p->cp.dtype, n) : n;
    if (bad < n)
        rc = fm_fail(err, FM_EFORMAT, "%s: tensor '%s': element %zu is not a finite number",
                     place->file->path, t->name, bad);
    if (rc == FM_OK) {
        struct fm_digest digest = fm_weightsum_tensor(t, dst);
        add_sum(p, t, &digest);
    }
    return rc;
}

/*
 * Add the adapter to one part of expert (l, e): channels under its mask to float32, merged,
 * rounded once.  The other part is not there, and stays as it is.
 */
static int merge(const struct fm_packing *p, enum fm_weight_part part, int m, int e, void *rows,
                 struct fm_err *err)
{
    size_t k = p->adapter.widths[(size_t)m * (size_t)p->adapter.E + (size_t)e];
    size_t n = k * (size_t)p->cp.config.H * (size_t)fm_expert_part_rows(p->cp.config.expert, part);
    if (k == 0)
        return FM_OK;
    float *wide = fm_scratch(n * sizeof *wide);
    fm_dtype_to_f32(wide, rows, p->cp.dtype, n);
    fm_adapter_merge(&p->adapter, p->ops, part == FM_PART_GATE_UP ? wide : NULL,
                     part == FM_PART_DOWN_T ? wide : NULL, m, e);
    fm_dtype_from_f32(rows, wide, p->cp.dtype, n);
    size_t bad = fm_dtype_nonfinite(rows, p->cp.dtype, n);
    if (bad < n)
        return fm_fail(err, FM_EFORMAT,
                       "layer %d, expert %d: weight %zu is not a finite %s with the adapter merged",
                       p->cp.config.moe[m], e, bad, fm_dtype_name(p->cp.dtype));
    return FM_OK;
}

/* One part of one expert in the online layout, as stored. */
static int make_part(struct fm_packing *p, enum fm_weight_part part, int m, int e, void *rows,
                     struct fm_err *err)
{
    int I = p->cp.config.I, H = p->cp.config.H, element = fm_dtype_bits(p->cp.dtype) / 8;
    size_t matrix = (size_t)I * (size_t)H * (size_t)element;
    const int32_t *order =
        p->ranking.order + ((size_t)m * (size_t)p->cp.config.E + (size_t)e) * (size_t)I;
    int rc;
    if (part == FM_PART_DOWN_T) {
        void *down = fm_scratch(matrix);
        rc = read_matrix(p, fm_checkpoint_expert(&p->cp, m, e, FM_PART_DOWN), down, err);
        if (rc == FM_OK)
            fm_layout_gather(rows, down, order, I, H, element);
    } else {
        char *gate = fm_scratch(matrix), *up = fm_scratch(matrix);
        rc = read_matrix(p, fm_checkpoint_expert(&p->cp, m, e, FM_PART_GATE), gate, err);
        if (rc == FM_OK)
            rc = read_matrix(p, fm_checkpoint_expert(&p->cp, m, e, FM_PART_UP), up, err);
        if (rc == FM_OK)
            fm_layout_interleave(rows, gate, up, order, I, H, element);
    }
    return rc == FM_OK && p->ops ? merge(p, part, m, e, rows, err) : rc;
}

/* A run of experts of one tensor, made at once and appended in order. */
struct run {
    struct fm_packing *p;
    int layer, first;
    enum fm_weight_part part;
    char *rows; /* one after another */
    size_t bytes;
};

static void make_expert(void *arg, int i)
{
    struct run *w = arg;
    struct fm_packing *p = w->p;
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

static int append(struct fm_packing *p, const struct fm_packing_volume *v, const void *src,
                  size_t size, struct fm_err *err)
{
    return p->writer ? fm_bundle_append(p->writer, v->part, src, size, err) : FM_OK;
}

/* All experts of one tensor of a layer. */
static int pass_tensor(struct fm_packing *p, const struct fm_packing_volume *v,
                       const struct fm_tensor *t, struct fm_err *err)
{
    int E = p->cp.config.E;
    struct fm_mark mark = fm_scratch_mark();
    struct run w = {.p = p, .layer = v->layer, .bytes = t->size / (size_t)E};
    w.part = t->name == v->gate_up ? FM_PART_GATE_UP : FM_PART_DOWN_T;
    w.rows = fm_scratch((size_t)p->at_once * w.bytes);
    int rc = FM_OK;
    for (; w.first < E && rc == FM_OK && fm_crew_going(&p->crew); w.first += p->at_once) {
        int n = E - w.first < p->at_once ? E - w.first : p->at_once;
        fm_pool_for(n, make_expert, &w);
        if (fm_crew_going(&p->crew))
            rc = append(p, v, w.rows, (size_t)n * w.bytes, err);
    }
    fm_scratch_release(mark);
    return rc;
}

static const struct fm_where *find_place(const struct fm_packing_volume *v, const char *name)
{
    const struct fm_where *place = NULL;
    size_t low = 0, high = v->tensors;
    while (low < high) {
        size_t mid = (low + high) / 2;
        place = &v->from[mid];
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

/* One tensor that is not an expert's, byte for byte. */
static int pass_other(struct fm_packing *p, const struct fm_packing_volume *v,
                      const struct fm_tensor *t, struct fm_err *err)
{
    const struct fm_where *place = find_place(v, t->name);
    struct fm_hasher *hasher = fm_hasher_new();
    struct fm_mark mark = fm_scratch_mark();
    char *piece = fm_scratch(FM_PACKING_PIECE_BYTES);
    int rc = hasher ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    size_t element = (size_t)fm_dtype_bits(t->dtype) / 8, index = 0;
    struct fm_digest pieces = {{0}};
    for (uint64_t at = 0; at < t->size && rc == FM_OK && fm_crew_going(&p->crew);) {
        size_t n =
            t->size - at < FM_PACKING_PIECE_BYTES ? (size_t)(t->size - at) : FM_PACKING_PIECE_BYTES;
        rc = fm_file_read(place->file, place->tensor->offset + at, piece, n, err);
        if (rc != FM_OK)
            break;
        if (!v->extra && fm_dtype_is_weight(t->dtype) &&
            fm_dtype_nonfinite(piece, t->dtype, n / element) < n / element)
            rc = fm_fail(err, FM_EFORMAT, "%s: tensor '%s' has a value that is not finite",
                         place->file->path, t->name);
        fm_hasher_add(hasher, piece, n);
        struct fm_digest digest = fm_weightsum_piece(index++, piece, n);
        fm_weightsum_add(&pieces, &digest);
        if (rc == FM_OK)
            rc = append(p, v, piece, n, err);
        fm_crew_add(&p->crew, n);
        at += n;
    }
    if (rc == FM_OK) {
        fm_segments_find(&p->seg, t->name)->digest = fm_hasher_done(hasher);
        struct fm_digest digest = fm_weightsum_join(place->tensor, &pieces);
        add_sum(p, place->tensor, &digest);
    }
    fm_scratch_release(mark);
    fm_hasher_free(hasher);
    return rc;
}

static void pass_volume(void *arg, int i)
{
    struct fm_packing *p = arg;
    const struct fm_packing_volume *v = &p->volume[i];
    struct fm_err err = {0};
    int rc = fm_crew_going(&p->crew) ? append(p, v, v->header, v->header_bytes, &err) : FM_OK;
    for (size_t t = 0; t < v->tensors && rc == FM_OK && fm_crew_going(&p->crew); t++)
        rc = v->layer >= 0 ? pass_tensor(p, v, &v->tensor[t], &err)
                           : pass_other(p, v, &v->tensor[t], &err);
    if (rc != FM_OK)
        fm_crew_fail(&p->crew, &err);
}

/* FM_ECONFIG where a layer is not the one that was ranked. */
static int check_sums(const struct fm_packing *p, struct fm_err *err)
{
    int rc = FM_OK;
    for (int l = 0; l <= p->wanted.L && p->wanted.L > 0 && rc == FM_OK; l++)
        rc = fm_weightsum_check(&p->wanted, l, &p->sums.sum[l], err);
    return rc == FM_OK ? rc : fm_within(err, "%s", p->run->model);
}

int fm_packing_pass(struct fm_packing *p, const char *stage, struct fm_err *err)
{
    p->sums = (struct fm_weightsum){.L = p->cp.config.L};
    pthread_mutex_init(&p->lock, NULL);
    bool in_order = p->writer && !fm_bundle_writer_seekable(p->writer);
    p->at_once = in_order ? fm_pool_threads() : 1;
    fm_crew_init(&p->crew, p->run, stage, p->report->bytes_in);
    if (!in_order)
        fm_pool_for(p->volumes, pass_volume, p);
    for (int i = 0; in_order && i < p->volumes; i++)
        pass_volume(p, i);
    pthread_mutex_destroy(&p->lock);
    int rc = fm_crew_end(&p->crew, err);
    for (size_t s = 0; s < p->cp.dir.shards && rc == FM_OK; s++)
        rc = fm_file_unchanged(&p->cp.dir.shard[s].file, err);
    return rc == FM_OK ? check_sums(p, err) : rc;
}
