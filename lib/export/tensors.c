/*
 * Two forms of experts, which layouts choose from, and the tensors that every export has.
 */
#include "lib/export/tensors.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "lib/model/stored.h"

/* ---- flat tensors ---- */

/*
 * Flat tensors: all experts of a layer one after another, each with its own width, in the order of
 * a bundle (lib/model/packed.h), so that most of them are copies of ranges:
 *
 *     gate_up     | e0: gate, up of channel 0 | gate, up of channel 1 | ... | e1: ...
 *     down        | e0: channel 0 | channel 1 | ... | e1: ...
 */
int fm_tensors_add_flat(struct fm_exportplan *p, int m, struct fm_tensor *t,
                        enum fm_weight_part named, const char *suffix, enum fm_weight_part part,
                        int plane, struct fm_err *err)
{
    const struct fm_config *c = &p->from->config;
    char name[FM_WEIGHT_NAME_BYTES], whole[FM_WEIGHT_NAME_BYTES + 8];
    fm_weights_name_of(name, c, p->options.layout->names, named, c->moe[m], 0);
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    t->name = whole;
    return fm_planned_add_experts(p, m, t, 0, c->E, part, plane, err);
}

/* Add the scales and the factors of a part that belong to no channel. */
static int add_apart(struct fm_exportplan *p, int m, enum fm_weight_part of, struct fm_err *err)
{
    const struct fm_packed *packed = fm_packed_at(&p->packed, m);
    const struct fm_config *c = &p->from->config;
    enum fm_weight_part cut = of == FM_PART_DOWN_T ? FM_PART_DOWN : FM_PART_GATE;
    uint64_t scales = fm_packed_scales_apart(packed, c, of);
    struct fm_tensor t = {.dtype = packed->scales, .dims = 2, .shape = {(uint64_t)c->E, scales}};
    if (scales > 0 && fm_tensors_add_flat(p, m, &t, of, FM_PACKED_SCALE, cut, 1, err))
        return err->code;
    t.dtype = FM_F32;
    t.shape[1] = (uint64_t)fm_expert_part_rows(c->expert, of);
    return packed->scheme.storage->factor_end
               ? fm_tensors_add_flat(p, m, &t, of, FM_PACKED_FACTOR, cut, FM_PLANES, err)
               : FM_OK;
}

int fm_tensors_flat(struct fm_exportplan *p, int m, struct fm_err *err)
{
    const struct fm_packed *packed = fm_packed_at(&p->packed, m);
    assert(fm_planned_layer_channels(p, m) % (uint64_t)packed->group == 0);
    for (int i = 0; i < packed->parts; i++) {
        const struct fm_packed_part part =
            fm_packed_flat(packed, &packed->part[i], fm_planned_layer_channels(p, m));
        struct fm_tensor t = {.dtype = part.dtype, .dims = part.dims};
        memcpy(t.shape, part.shape, sizeof part.shape);
        if (fm_tensors_add_flat(p, m, &t, part.of, part.plane == 1 ? FM_PACKED_SCALE : "", part.of,
                                part.plane, err))
            return err->code;
    }
    if (p->coded == FM_CODED_EXPERTS &&
        (add_apart(p, m, FM_PART_GATE_UP, err) || add_apart(p, m, FM_PART_DOWN_T, err)))
        return err->code;
    return FM_OK;
}

/* ---- the checkpoint's own tensors ---- */

/*
 * The checkpoint's own tensors: those of experts with the names and shapes of the family's table,
 * for experts of one width k; and those outside the experts, which every export has.
 *
 *     row of the table     experts  a tensor of values         of codes
 *     ...experts.{e}.up    1        (k, H)                     codes, scales, numbers
 *     ...experts.gate_up   all E    (E, 2 k, H) or transposed  blocks, scales
 *
 * A tensor has the cuts of its row's part (lib/block/experts.h), expert by expert.  The names of
 * codes and of what belongs to them are the row's with another ending.
 */

/* The shape of the tensor of a row of the family's table, for experts of width k. */
static struct fm_tensor stock_shape(const struct fm_config *c, const struct fm_weight *w,
                                    uint64_t k)
{
    struct fm_tensor t = {0};
    t.dims = fm_weights_shape(t.shape, c, w, -1, 0);
    for (int d = 0; d < t.dims; d++) {
        char letter = w->shape[d];
        t.shape[d] = letter == 'I' ? k : letter == 'J' ? k * (uint64_t)c->expert->rows : t.shape[d];
    }
    return t;
}

/* A matrix of experts [first, first + n) of the m-th layer. */
struct matrix {
    char name[FM_WEIGHT_NAME_BYTES];
    enum fm_weight_part part;
    int m, first, n;
    struct fm_tensor values;
};

static int add_stock(struct fm_exportplan *p, const struct matrix *x, struct fm_err *err)
{
    struct fm_tensor t = x->values;
    t.name = x->name;
    t.dtype = p->from->dtype;
    return fm_planned_add_experts(p, x->m, &t, x->first, x->n, x->part, -1, err);
}

/* Add a plane of codes, or the factor of scales: the matrix's name with another ending. */
static int add_plane(struct fm_exportplan *p, const struct fm_tensor *like, const struct matrix *x,
                     const char *end, int plane, struct fm_err *err)
{
    const struct fm_storage *storage = fm_packed_at(&p->packed, x->m)->scheme.storage;
    char name[FM_ST_NAME_BYTES_MAX + 1];
    struct fm_tensor t = *like;
    fm_stored_name(name, storage, x->name, end);
    t.name = name;
    return fm_planned_add_experts(p, x->m, &t, x->first, x->n, fm_stored_part(storage, x->part),
                                  plane, err);
}

/* Add numbers that belong to a matrix: its name with another ending. */
static int add_numbers(struct fm_exportplan *p, const struct fm_tensor *like,
                       const struct matrix *x, const char *end, uint64_t first, uint64_t second,
                       struct fm_err *err)
{
    const struct fm_storage *storage = p->rounded.scheme.storage;
    char name[FM_ST_NAME_BYTES_MAX + 1];
    struct fm_planned_tensor t = {.t = *like,
                                  .m = x->m,
                                  .kind = FM_PLANNED_NUMBERS,
                                  .number = {(int64_t)first, (int64_t)second}};
    fm_stored_name(name, storage, x->name, end);
    t.t.name = name;
    return fm_planned_add_tensor(p, &t, err);
}

/* Add what belongs to a whole matrix that is rounded. */
static int add_whole(struct fm_exportplan *p, const struct matrix *x, struct fm_err *err)
{
    const struct fm_storage *storage = p->rounded.scheme.storage;
    const struct fm_quantiser *q = p->options.quantise;
    const struct fm_tensor shape = {.dtype = FM_I64, .dims = 1, .shape = {2}};
    const struct fm_tensor one = {.dtype = FM_F32, .dims = q->factor_dims, .shape = {1, 1}};
    const uint64_t *size = x->values.shape;
    if ((storage->factor_end && add_plane(p, &one, x, storage->factor_end, FM_PLANES, err)) ||
        (q->unit_end && add_numbers(p, &one, x, q->unit_end, 1, 0, err)) ||
        (storage->shape_end &&
         add_numbers(p, &shape, x, storage->shape_end, size[0], size[1], err)))
        return err->code;
    return FM_OK;
}

/* Add the codes and scales of a matrix: those of the bundle, or those that it is rounded to. */
static int add_codes(struct fm_exportplan *p, const struct matrix *x, struct fm_err *err)
{
    const struct fm_packed *packed = fm_packed_at(&p->packed, x->m);
    const struct fm_storage *storage = packed->scheme.storage;
    const bool rounded = p->options.quantise;
    struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
    fm_expert_cuts(cut, p->from->config.expert, fm_stored_part(storage, x->part));
    for (int plane = 0; plane < FM_PLANES; plane++) {
        struct fm_tensor t = {.dtype = plane ? packed->scales : storage->codes};
        t.dims = fm_stored_shape(t.shape, &packed->scheme, &x->values, plane);
        if ((fm_packed_find(packed, cut->of, plane) || rounded) &&
            add_plane(p, &t, x, plane ? storage->scale_end : storage->codes_end, plane, err))
            return err->code;
    }
    return rounded ? add_whole(p, x, err) : FM_OK;
}

int fm_tensors_stock(struct fm_exportplan *p, int m, struct fm_err *err)
{
    const struct fm_config *c = &p->from->config;
    const bool codes = fm_packed_at(&p->packed, m)->scheme.storage;
    int rc = FM_OK;
    for (int e = 0; e < c->E && !rc; e++) {
        for (const struct fm_weight *w = c->family->weight; fm_weights_more(w) && !rc; w++) {
            if (!w->name[FM_NAMING_STOCK] || !fm_weights_is_expert(w) ||
                !fm_weights_exists(c, w, c->moe[m]))
                continue;
            bool each = fm_weights_per_expert(w, FM_NAMING_STOCK);
            struct matrix x = {.part = w->part, .m = m, .first = e, .n = each ? 1 : c->E};
            x.values = stock_shape(c, w, p->widths.stored[(size_t)m * (size_t)c->E + (size_t)e]);
            fm_weights_name_of(x.name, c, FM_NAMING_STOCK, w->part, c->moe[m], e);
            assert(each || fm_planned_layer_channels(p, m) ==
                               (uint64_t)c->E * p->widths.stored[(size_t)m * (size_t)c->E]);
            if (each || e == 0)
                rc = (codes && w->part != FM_PART_BIAS ? add_codes : add_stock)(p, &x, err);
        }
    }
    return rc;
}

/* ---- outside the experts ---- */

/* True if it is one of the shared expert's matrices; then `grown` gets its planned shape. */
static bool is_shared(struct fm_tensor *grown, const struct fm_exportplan *p,
                      const struct fm_weight *w, int l)
{
    if (!w || !(w->when & FM_SHARED) || w->part < FM_PART_MLP_GATE || w->part > FM_PART_MLP_DOWN)
        return false;
    *grown = (struct fm_tensor){0};
    grown->dims = fm_weights_shape(grown->shape, &p->from->config, w, l, 0);
    grown->shape[w->part == FM_PART_MLP_DOWN] +=
        (uint64_t)(p->widths.shared - p->from->config.shared);
    return true;
}

/* Whether the tensor is codes in the export, or belongs to codes. */
static bool is_coded(const struct fm_planned_tensor *t, const struct fm_stored *at)
{
    return fm_stored_belongs(at) || (fm_stored_is_codes(at) && !t->decoded);
}

/* Set the shape of a tensor of the bundle according to config.json; FM_EFORMAT if it has another.
 */
static int check_shape(struct fm_tensor *plain, const struct fm_exportplan *p,
                       const struct fm_planned_tensor *t, const struct fm_stored *at,
                       struct fm_err *err)
{
    *plain = (struct fm_tensor){0};
    plain->dims = fm_weights_shape(plain->shape, &p->from->config, at->weight, at->l, 0);
    if (is_coded(t, at))
        fm_stored_shape(plain->shape, &at->scheme, plain, fm_stored_belongs(at));
    if (fm_tensor_shaped(&t->t, plain->shape, plain->dims))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "%s: tensor '%s' does not have the shape that config.json requires",
                   p->from->bundle.file.path, t->from->t.name);
}

/* Plan a tensor of the shared expert, or its codes or scales, as wide as the export requires. */
static int widen_shared(struct fm_planned_tensor *t, const struct fm_exportplan *p,
                        const struct fm_stored *at, struct fm_err *err)
{
    const struct fm_config *c = &p->from->config;
    struct fm_tensor plain, grown;
    if (p->widths.shared == c->shared || at->role > FM_STORED_FACTOR ||
        !is_shared(&grown, p, at->weight, at->l))
        return FM_OK;
    int d = at->weight->part == FM_PART_MLP_DOWN, blank = 0;
    bool scales = fm_stored_belongs(at);
    size_t again = scales ? (size_t)fm_dtype_bits(t->t.dtype) / 8 : 0;
    if (scales && fm_tensor_count(&t->from->t) == 1)
        return FM_OK; /* a number for the whole matrix */
    if (check_shape(&plain, p, t, at, err))
        return err->code;
    if (is_coded(t, at)) {
        fm_stored_shape(grown.shape, &at->scheme, &grown, scales);
        blank = fm_code_zero(at->scheme.storage->code);
    }
    if (grown.shape[d] == plain.shape[d])
        return FM_OK; /* the last scales are enough */
    t->t.shape[d] = grown.shape[d];
    t->kind = FM_PLANNED_WIDENED;
    t->widen = (struct fm_planned_widen){d, grown.shape[d] - plain.shape[d], again, blank};
    return FM_OK;
}

/* Set the numbers of rows and columns that are stored with a matrix of an expert or of the shared
 * expert, according to the width in the export. */
static void shape_rest(struct fm_planned_tensor *t, const struct fm_exportplan *p,
                       const struct fm_stored *at)
{
    const struct fm_config *c = &p->from->config;
    struct fm_tensor plain;
    bool expert = fm_stored_is_expert(at);
    if (at->role != FM_STORED_SHAPE || t->t.dtype != FM_I64 || fm_tensor_count(&t->t) != 2 ||
        !(expert || is_shared(&plain, p, at->weight, at->l)))
        return;
    if (expert)
        plain = stock_shape(
            c, at->weight,
            p->widths.stored[(size_t)fm_config_moe(c, at->l) * (size_t)c->E + (size_t)at->e]);
    t->kind = FM_PLANNED_NUMBERS;
    t->from = NULL;
    t->number[0] = (int64_t)plain.shape[0];
    t->number[1] = (int64_t)plain.shape[1];
}

/* Plan a tensor of an expert for multi-token prediction, of values, codes or scales, whose channel
 * groups are cut to the layout's width.  Other numbers that belong to codes stay as they are. */
static int narrow_expert(struct fm_planned_tensor *t, const struct fm_exportplan *p,
                         const struct fm_stored *twin, struct fm_err *err)
{
    const struct fm_config *c = &p->from->config;
    struct fm_tensor plain;
    bool scales = twin->role == FM_STORED_SCALE;
    const bool both = twin->weight->part == FM_PART_GATE_THEN_UP;
    const char *across = strchr(twin->weight->shape, both ? 'J' : 'I');
    uint64_t groups = (uint64_t)(c->I / p->packed.group);
    if (twin->role > FM_STORED_SCALE || (scales && fm_tensor_count(&t->t) == 1))
        return FM_OK;
    if (check_shape(&plain, p, t, twin, err))
        return err->code;
    uint64_t *size = &t->t.shape[across - twin->weight->shape];
    if (scales && *size == 1)
        return FM_OK; /* they belong to no channel, or to all */
    if (*size % groups != 0)
        return fm_fail(err, FM_ECONFIG,
                       "--keep-extra: tensor '%s' has blocks of channels that groups of %d do not "
                       "fill; use --weights bf16 or another layout",
                       t->from->t.name, p->packed.group);
    t->kind = FM_PLANNED_NARROWED;
    t->narrow = (struct fm_planned_narrow){(int)(across - twin->weight->shape), twin->e,
                                           both ? c->expert->rows : 1};
    *size = *size / groups * (p->widths.stored[0] / (uint32_t)p->packed.group);
    return FM_OK;
}

/* Plan a tensor of a layer for multi-token prediction whose experts get the layout's width. */
static int narrow_extra(struct fm_planned_tensor *t, const struct fm_exportplan *p,
                        struct fm_err *err)
{
    const struct fm_config *c = &p->from->config;
    struct fm_stored twin = t->from->at;
    if (!fm_stored_see_twin(&twin, c) && !strstr(t->from->t.name, ".experts."))
        return FM_OK;
    if (!twin.weight)
        return fm_fail(err, FM_ECONFIG,
                       "--keep-extra: tensor '%s' is of experts that were not ranked, so layout %s "
                       "cannot narrow it; use another layout",
                       t->from->t.name, p->options.layout->name);
    shape_rest(t, p, &twin);
    if (!t->from)
        return FM_OK;
    return fm_stored_is_expert(&twin) ? narrow_expert(t, p, &twin, err)
                                      : widen_shared(t, p, &twin, err);
}

/* Replace a tensor of codes with its values; *scales is true for a tensor of scales, which is
 * dropped.  Extra tensors are as they were stored, even if the bundle has no other codes. */
static int decode_rest(struct fm_planned_tensor *t, bool *scales, char *name,
                       const struct fm_exportplan *p, struct fm_err *err)
{
    const struct fm_stored *at = &t->from->at;
    *scales = false;
    if (!p->from->packed.storage && !t->from->extra)
        return FM_OK;
    if (p->coded == FM_CODED_ALL) {
        if (!t->from->extra)
            shape_rest(t, p, at);
        return FM_OK;
    }
    *scales = fm_stored_belongs(at);
    if (!fm_stored_is_codes(at))
        return FM_OK;
    struct fm_stored stored = *at;
    stored.shape = NULL; /* not read: the beginning of a bundle does not have it */
    if (fm_stored_check(&stored, err))
        return fm_within(err, "%s", p->from->bundle.file.path);
    if (at->chunks > 1)
        return fm_fail(
            err, FM_ECONFIG,
            "layout %s would store values of tensor '%s', and programs differ in the "
            "order of its rows without scales; use uniform or padded, and --weights keep",
            p->options.layout->name, at->tensor->name);
    fm_stored_values(&t->t, name, at);
    t->kind = FM_PLANNED_DECODED;
    t->decoded = true;
    return FM_OK;
}

int fm_tensors_rest(struct fm_exportplan *p, struct fm_err *err)
{
    for (size_t i = 0; i < p->from->rests; i++) {
        const struct fm_opened_tensor *from = &p->from->rest[i];
        char name[FM_ST_NAME_BYTES_MAX + 1], values[FM_ST_NAME_BYTES_MAX + 1];
        bool scales;
        if (from->extra && !p->options.keep_extra)
            continue;
        struct fm_planned_tensor like = {
            .t = from->t, .m = -1, .kind = FM_PLANNED_COPY, .from = from};
        if (decode_rest(&like, &scales, values, p, err))
            return err->code;
        if (scales)
            continue;
        fm_weights_rename(name, &p->from->config, p->options.layout->names, like.t.name);
        like.t.name = name;
        if (from->extra && p->narrowed && narrow_extra(&like, p, err))
            return err->code;
        if ((like.from && !from->extra && widen_shared(&like, p, &like.from->at, err)) ||
            fm_planned_add_tensor(p, &like, err))
            return err->code;
    }
    return FM_OK;
}
