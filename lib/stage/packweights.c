/*
 * For a file, each thread makes the experts of a different member, one at a time; for a pipe, all
 * threads make experts of one tensor, which are appended in order.  So only a few experts are in
 * memory.  Rows are copied as bytes in their own dtype; only weights that the adapter changes, and
 * the values of codes, are computed in float32 and rounded once.  An expert is hashed, and checked
 * for NaN and Inf, while it is in the cache.
 */
#include "lib/stage/packing.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "formats/quant/quant.h"
#include "lib/base/pool.h"
#include "lib/model/reading.h"
#include "lib/stage/pack.h"

/* A range of experts of one tensor, made in parallel and appended in order. */
struct run {
    struct fm_packing *p;
    int layer, first, part; /* `part` is the index of a tensor of the layer in p->packed */
    char *rows;             /* one after another */
    size_t bytes;
    /* Sums of the shares' digests, for tensors that hold all experts, and for their scales. */
    struct fm_digest pieces[FM_EXPERT_TENSORS_MAX][2];
};

static const struct fm_packed_part *part_of(const struct run *w)
{
    return &fm_packed_at(&w->p->packed, w->layer)->part[w->part];
}

/* The place in [0, L] where a tensor of a stock checkpoint is summed (scales: with their weight);
 * -1 if it is not summed. */
static int place_of_sum(const struct fm_config *config, const struct fm_stored *s)
{
    if (!s->weight || s->role > FM_STORED_FACTOR || fm_weights_is_carried(s->weight))
        return -1;
    return s->l < 0 ? config->L : s->l;
}

/* The reading of a tensor, or with `pieces` of expert e's share of it. */
static struct fm_reading reading_of(struct fm_packing *p, const struct fm_stored *at, int e,
                                    struct fm_digest *pieces)
{
    int l = place_of_sum(&p->cp.config, at);
    return (struct fm_reading){.at = at,
                               .e = pieces ? e : -1,
                               .E = p->cp.config.E,
                               .lock = &p->lock,
                               .sum = l < 0 ? NULL : &p->sums.sum[l],
                               .pieces = pieces};
}

/* The reading of share i of expert e (lib/model/checkpoint.h). */
static struct fm_reading share_of(struct run *w, int e, int i)
{
    const struct fm_share share = fm_checkpoint_share(&w->p->cp, w->layer, e, i);
    return reading_of(w->p, share.at, e, share.fused ? w->pieces[i] : NULL);
}

/* Add the digests of tensors that hold all experts, once every expert's share has been read. */
static void join_sums(struct run *w)
{
    int plane = part_of(w)->plane; /* -1: values, for which codes and scales are read */
    for (int i = 0; i < w->p->cp.tensors; i++) {
        const struct fm_reading r = share_of(w, 0, i);
        struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
        fm_expert_cuts(cut, w->p->cp.config.expert,
                       fm_checkpoint_share(&w->p->cp, w->layer, 0, i).part);
        for (int n = 0; n < FM_PLANES && r.pieces && cut[0].of == part_of(w)->of; n++)
            if (plane < 0 || n == plane)
                fm_reading_join(&r, n);
    }
}

/* Widen and check the scales `raw` of codes into scratch.  If codes are kept, scales and factor are
 * also copied as separate tensors, which adds their digests. */
static int widen_scales(struct fm_packing *p, const struct fm_reading *r, const void *raw,
                        struct fm_scales *scales, struct fm_err *err)
{
    float factor = 1;
    if (fm_reading_factor(&factor, r, !p->packed.storage, err) ||
        fm_reading_widen(scales, r, raw, factor, err))
        return fm_within(err, "%s", r->at->scale_file->path);
    return FM_OK;
}

/* Read and widen the scales of codes; scales->scale is NULL for values. */
static int read_scales(struct fm_packing *p, const struct fm_reading *r, struct fm_scales *scales,
                       struct fm_err *err)
{
    struct fm_reading own = *r;
    const void *raw;
    *scales = (struct fm_scales){0};
    own.sum = p->packed.storage ? NULL : r->sum;
    if (!r->at->scale)
        return FM_OK;
    return fm_reading_plane(&raw, &own, 1, err) ? err->code
                                                : widen_scales(p, &own, raw, scales, err);
}

/* FM_EFORMAT if one of the n codes or values of a reading is not finite. */
static int check_finite(const struct fm_reading *r, const void *raw, size_t n, struct fm_err *err)
{
    if (fm_stored_finite(r->at, raw, r->e < 0 ? 0 : (size_t)r->e * n, n, err))
        return fm_within(err, "%s", r->at->file->path);
    return FM_OK;
}

/* Read share i of expert e: a plane, or the values as `dtype`.  FM_EFORMAT if it has a code, scale
 * or value that is not valid.  Scales without a channel dimension have no part and are read and
 * checked with the codes. */
static int read_share(struct run *w, int e, int i, void *dst, enum fm_dtype dtype,
                      struct fm_err *err)
{
    const struct fm_reading r = share_of(w, e, i);
    const struct fm_tensor *t = r.at->tensor;
    const struct fm_packed *packed = fm_packed_at(&w->p->packed, w->layer);
    int plane = part_of(w)->plane;
    size_t n = (size_t)fm_stored_count(r.at) / (size_t)(r.e < 0 ? 1 : r.E);
    struct fm_mark mark = fm_scratch_mark();
    void *raw = plane < 0 && t->dtype != dtype ? fm_scratch(fm_reading_size(&r, 0)) : dst;
    struct fm_scales scales;
    int rc = fm_reading_share(raw, &r, plane > 0, err);
    if (!rc)
        rc = plane > 0 ? widen_scales(w->p, &r, dst, &scales, err) : check_finite(&r, raw, n, err);
    if (!rc && plane <= 0 && (plane < 0 || !fm_packed_find(packed, part_of(w)->of, 1)))
        rc = read_scales(w->p, &r, &scales, err);
    if (!rc && raw != dst)
        fm_stored_write(dst, dtype, raw, t->dtype, scales.scale ? &scales : NULL, n);
    fm_scratch_release(mark);
    return rc;
}

/* For each channel group of the part, in ranked order, the group in the checkpoint. */
static const int32_t *order_of(const struct run *w, int e)
{
    const struct fm_config *c = &w->p->cp.config;
    size_t expert = (size_t)w->layer * (size_t)c->E + (size_t)e;
    const int32_t *order = w->p->ranking.order + expert * (size_t)c->I;
    int32_t group = part_of(w)->plane < 0 ? 1 : fm_packed_at(&w->p->packed, w->layer)->group;
    if (group == 1)
        return order;
    int32_t *groups = fm_scratch((size_t)(c->I / group) * sizeof *groups);
    for (int32_t g = 0; g < c->I / group; g++)
        groups[g] = order[g * group] / group;
    return groups;
}

/* Make one part of one expert in the bundle's form, its values as `dtype`. */
static int order_part(struct run *w, int e, char *rows, enum fm_dtype dtype, struct fm_err *err)
{
    const struct fm_config *c = &w->p->cp.config;
    const struct fm_packed *packed = fm_packed_at(&w->p->packed, w->layer);
    const int32_t *order = order_of(w, e);
    int rc = FM_OK;
    for (int i = 0; i < w->p->cp.tensors && !rc; i++) {
        struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
        struct fm_forms f[FM_EXPERT_CUTS_MAX];
        int cuts =
            fm_expert_cuts(cut, c->expert, fm_checkpoint_share(&w->p->cp, w->layer, e, i).part);
        size_t all = 0;
        if (cut[0].of != part_of(w)->of)
            continue;
        for (int k = 0; k < cuts; all += f[k++].file_bytes)
            f[k] = fm_forms_of(c, packed, part_of(w)->plane, dtype, &cut[k], (uint64_t)c->I,
                               (uint64_t)c->I);
        struct fm_mark mark = fm_scratch_mark();
        char *from = fm_scratch(all);
        rc = read_share(w, e, i, from, dtype, err);
        for (int k = 0; k < cuts && !rc; from += f[k++].file_bytes)
            fm_move(rows + f[k].part_first, &f[k].part, from, &f[k].file, &f[k].box, order);
        fm_scratch_release(mark);
    }
    return rc;
}

/* Channels of expert e that the adapter changes. */
static size_t merged_width(const struct fm_packing *p, int m, int e)
{
    return p->adapter.widths[(size_t)m * (size_t)p->adapter.E + (size_t)e];
}

/* Add the adapter to the first n elements of a part of an expert in float32; round them once. */
static int merge(const struct fm_packing *p, enum fm_weight_part part, int m, int e, void *rows,
                 float *wide, size_t n, struct fm_err *err)
{
    /* Only one of the two parts is given and changed; the other is NULL. */
    if (merged_width(p, m, e) > 0)
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

/* Make one part of one expert, `bytes` long, as stored in the bundle. */
static int make_part(struct run *w, int e, char *rows, struct fm_err *err)
{
    struct fm_packing *p = w->p;
    int m = w->layer;
    enum fm_dtype dtype = fm_packing_made_as(p);
    enum fm_weight_part of = part_of(w)->of;
    size_t element = (size_t)fm_dtype_bits(p->cp.dtype) / 8, n = w->bytes / element;
    if (dtype != p->cp.dtype && part_of(w)->plane < 0) {
        float *wide = fm_scratch(n * sizeof *wide);
        int rc = order_part(w, e, (char *)wide, dtype, err);
        return rc ? rc : merge(p, of, m, e, rows, wide, n, err);
    }
    int rc = order_part(w, e, rows, dtype, err);
    if (rc || !p->ops || of == FM_PART_BIAS || part_of(w)->plane >= 0)
        return rc;
    n = merged_width(p, m, e) * (size_t)p->cp.config.H *
        (size_t)fm_expert_part_rows(p->cp.config.expert, of);
    float *wide = fm_scratch(n * sizeof *wide);
    fm_dtype_to_f32(wide, rows, p->cp.dtype, n);
    return merge(p, of, m, e, rows, wide, n, err);
}

static void make_expert(void *arg, int i)
{
    struct run *w = arg;
    struct fm_packing *p = w->p;
    struct fm_err err = {0};
    int e = w->first + i;
    if (!fm_taskgroup_going(&p->tasks))
        return;
    struct fm_mark mark = fm_scratch_mark();
    char *rows = w->rows + (size_t)i * w->bytes;
    if (!make_part(w, e, rows, &err))
        fm_segments_digest(fm_segments_expert(&p->seg, w->layer, w->part, e), &p->seg, w->layer,
                           p->seg.S, rows, fm_packed_group_bytes(part_of(w)));
    else
        fm_taskgroup_fail(&p->tasks, &err);
    fm_scratch_release(mark);
    if (!err.code)
        fm_taskgroup_add(&p->tasks, w->bytes);
}

static int append(struct fm_packing *p, const struct fm_packing_volume *v, const void *src,
                  size_t size, struct fm_err *err)
{
    return p->writer ? fm_bundle_append(p->writer, v->part, src, size, err) : FM_OK;
}

/* The index of a tensor of the volume in the order of its parts or sources. */
static size_t place_of(const struct fm_packing_volume *v, const struct fm_tensor *t)
{
    size_t i = 0;
    while (v->name_of[i] != t->name)
        i++;
    return i;
}

/* Copy all experts of one tensor of a layer. */
static int pass_tensor(struct fm_packing *p, const struct fm_packing_volume *v,
                       const struct fm_tensor *t, struct fm_err *err)
{
    int E = p->cp.config.E;
    struct fm_mark mark = fm_scratch_mark();
    struct run w = {.p = p, .layer = v->layer, .bytes = t->size / (size_t)E};
    w.part = (int)place_of(v, t);
    w.rows = fm_scratch((size_t)p->at_once * w.bytes);
    int rc = FM_OK;
    for (; w.first < E && !rc && fm_taskgroup_going(&p->tasks); w.first += p->at_once) {
        int n = E - w.first < p->at_once ? E - w.first : p->at_once;
        fm_pool_for(n, make_expert, &w);
        if (fm_taskgroup_going(&p->tasks))
            rc = append(p, v, w.rows, (size_t)n * w.bytes, err);
    }
    if (!rc && fm_taskgroup_going(&p->tasks))
        join_sums(&w);
    fm_scratch_release(mark);
    return rc;
}

/* A tensor outside the experts that is being copied in pieces. */
struct other {
    const float *change; /* differences from a router's values; NULL: not a router, or unchanged */
    const struct fm_packing_volume *v;
    const struct fm_tensor *t; /* in the bundle */
    const struct fm_stored *place;
    struct fm_scales scales;
    char *raw, *written; /* a piece; one buffer if values are not converted */
    struct fm_hasher *hasher;
    struct fm_digest pieces; /* sum of the pieces' digests */
    struct fm_reading r;
};

/* The differences that the adapter has for a tensor, or NULL. */
static const float *change_of(const struct fm_packing *p, const struct fm_tensor *t)
{
    const struct fm_config *c = &p->cp.config;
    int l, e;
    if (!p->adapter.router)
        return NULL;
    const struct fm_weight *w = fm_weights_find(c, FM_NAMING_STOCK, t->name, &l, &e);
    if (!w || w->part != FM_PART_ROUTER || w->field == FM_LAYER_FIELD(router.choice_bias))
        return NULL;
    const float *values = fm_adapter_router(&p->adapter, fm_config_moe(c, l));
    return w->field == FM_LAYER_FIELD(router.w) ? values : values + (size_t)c->E * (size_t)c->H;
}

/* Add differences to n values of a router in float32, and round the sums once. */
static int change_values(void *values, enum fm_dtype dtype, const char *name, const float *change,
                         size_t n, struct fm_err *err)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_scratch(n * sizeof *wide);
    fm_dtype_to_f32(wide, values, dtype, n);
    for (size_t i = 0; i < n; i++)
        wide[i] += change[i];
    fm_dtype_from_f32(values, wide, dtype, n);
    fm_scratch_release(mark);
    return fm_dtype_nonfinite(values, dtype, n) == n
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "'%s' is not a finite %s with the adapter merged", name,
                         fm_dtype_name(dtype));
}

/* Copy piece `index`, n bytes of the file. */
static int pass_piece(struct fm_packing *p, struct other *o, size_t index, size_t n,
                      struct fm_err *err)
{
    const struct fm_tensor *from = o->place->tensor;
    struct fm_reading r = o->r;
    size_t bits = (size_t)fm_stored_bits(o->place), at = index * FM_PACKING_PIECE_BYTES;
    size_t first = 8 * at / bits, values = 8 * n / bits;
    r.e = (int)index;
    if (fm_reading_bytes(o->raw, &r, 0, at, n, err))
        return err->code;
    int rc = FM_OK;
    if (!o->v->extra && (o->place->scale || fm_dtype_is_weight(from->dtype)) &&
        fm_stored_finite(o->place, o->raw, first, values, err))
        rc = fm_within(err, "%s", o->place->file->path);
    if (o->scales.scale && !rc) {
        o->scales.first = (int64_t)first;
        fm_stored_write(o->written, o->t->dtype, o->raw, from->dtype, &o->scales, values);
        n = values * (size_t)fm_dtype_bits(o->t->dtype) / 8;
    }
    if (o->change && !rc)
        rc = change_values(o->written, o->t->dtype, o->t->name, o->change + first, values, err);
    fm_hasher_add(o->hasher, o->written, n);
    if (!rc)
        rc = append(p, o->v, o->written, n, err);
    fm_taskgroup_add(&p->tasks, n);
    return rc;
}

/* Copy one tensor outside the experts byte for byte or, if it has codes that are not kept, as their
 * values, rounded once. */
static int pass_other(struct fm_packing *p, const struct fm_packing_volume *v,
                      const struct fm_tensor *t, struct fm_err *err)
{
    struct other o = {.v = v, .t = t, .place = &v->from[place_of(v, t)], .hasher = fm_hasher_new()};
    struct fm_mark mark = fm_scratch_mark();
    const struct fm_tensor *from = o.place->tensor;
    o.r = reading_of(p, o.place, 0, &o.pieces);
    o.r.e = -1;
    int rc = o.hasher ? read_scales(p, &o.r, &o.scales, err)
                      : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    o.change = rc ? NULL : change_of(p, t);
    assert(!o.change || !p->packed.storage || !o.place->scale); /* refused by choose_form() */
    if (p->packed.storage)
        o.scales.scale = NULL; /* scales of codes that are kept are only checked */
    o.raw = o.written = fm_scratch(FM_PACKING_PIECE_BYTES);
    if (o.scales.scale)
        o.written = fm_scratch(FM_PACKING_PIECE_BYTES *
                               fm_storage_growth(&p->cp.config.scheme, p->cp.config.schemes));
    size_t index = 0;
    for (uint64_t at = 0; at < from->size && !rc && fm_taskgroup_going(&p->tasks);
         at += FM_PACKING_PIECE_BYTES) {
        uint64_t left = from->size - at;
        rc = pass_piece(p, &o, index++,
                        left < FM_PACKING_PIECE_BYTES ? (size_t)left : FM_PACKING_PIECE_BYTES, err);
    }
    if (!rc) {
        fm_segments_find(&p->seg, t->name)->digest = fm_hasher_done(o.hasher);
        fm_reading_join(&o.r, 0);
    }
    fm_scratch_release(mark);
    fm_hasher_free(o.hasher);
    return rc;
}

static void pass_volume(void *arg, int i)
{
    struct fm_packing *p = arg;
    const struct fm_packing_volume *v = &p->volume[i];
    struct fm_err err = {0};
    fm_scratch_reserve((size_t)p->at_once * p->scratch);
    int rc = fm_taskgroup_going(&p->tasks) ? append(p, v, v->header, v->header_bytes, &err) : FM_OK;
    for (size_t t = 0; t < v->tensors && !rc && fm_taskgroup_going(&p->tasks); t++)
        rc = v->layer >= 0 ? pass_tensor(p, v, &v->tensor[t], &err)
                           : pass_other(p, v, &v->tensor[t], &err);
    if (rc)
        fm_taskgroup_fail(&p->tasks, &err);
}

int fm_packing_check_sums(const struct fm_packing *p, struct fm_err *err)
{
    int rc = FM_OK;
    for (int l = 0; l <= p->wanted.L && !rc; l++)
        rc = fm_weightsum_check(&p->wanted, l, &p->sums.sum[l], err);
    return !rc ? rc : fm_within(err, "%s", p->run->inputs.model);
}

int fm_packing_pass(struct fm_packing *p, const char *stage, struct fm_err *err)
{
    p->sums = (struct fm_weightsum){.L = p->cp.config.L};
    pthread_mutex_init(&p->lock, NULL);
    bool in_order = p->writer && !fm_bundle_writer_seekable(p->writer);
    p->at_once = in_order ? fm_pool_threads() : 1;
    fm_taskgroup_init(&p->tasks, p->run, stage, p->report->bytes_weights);
    if (!in_order)
        fm_pool_for(p->volumes, pass_volume, p);
    for (int i = 0; in_order && i < p->volumes; i++)
        pass_volume(p, i);
    pthread_mutex_destroy(&p->lock);
    int rc = fm_taskgroup_end(&p->tasks, err);
    for (size_t s = 0; s < p->cp.dir.shards && !rc; s++)
        rc = fm_file_unchanged(&p->cp.dir.shard[s].file, err);
    return rc;
}
