/*
 * All shapes follow from the planes of the storage and the sizes of the model, so a bundle records
 * only which storage each layer has and the dtype of its scales.
 */
#include "lib/model/packed.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/pool.h"
#include "lib/family/family.h"
#include "lib/model/stored.h"

static struct fm_packed_part *add_part(struct fm_packed *p, const struct fm_config *c,
                                       enum fm_weight_part of, int plane, const char *suffix,
                                       enum fm_dtype dtype)
{
    assert(p->parts < FM_PACKED_PARTS_MAX);
    struct fm_packed_part *part = &p->part[p->parts++];
    *part = (struct fm_packed_part){
        .of = of, .plane = plane, .dtype = dtype, .rows = fm_expert_part_rows(c->expert, of)};
    snprintf(part->name, sizeof part->name, "%s%s", fm_expert_part_name(of), suffix);
    return part;
}

/* Add an unquantised part: any part of an unquantised layer, or biases. */
static void add_plain(struct fm_packed *p, const struct fm_config *c, enum fm_weight_part of,
                      enum fm_dtype dtype)
{
    struct fm_packed_part *part = add_part(p, c, of, -1, "", dtype);
    size_t element = (size_t)fm_dtype_bits(dtype) / 8;
    part->dims = fm_expert_part_shape(part->shape, c, of);
    bool columns = of == FM_PART_DOWN_T;
    part->item = columns ? element : (size_t)fm_expert_part_row(of, c->H) * element;
    part->items = columns ? (uint64_t)c->H : (uint64_t)p->group;
}

/* Set the shape of a part whose items are rows of channels, interleaved. */
static void shape_rows(struct fm_packed_part *part, const struct fm_packed *p,
                       const struct fm_config *c, const struct fm_plane *plane, int bits)
{
    uint64_t across = fm_scheme_across((uint64_t)c->H, plane->block_columns);
    int element = fm_dtype_bits(part->dtype);
    assert(p->group % plane->block_rows == 0); /* a block does not cross channel groups */
    part->items = (uint64_t)(p->group / plane->block_rows);
    part->item = (size_t)(across * (uint64_t)bits + 7) / 8;
    part->dims = 3;
    part->shape[0] = (uint64_t)c->E;
    part->shape[1] = (uint64_t)part->rows * (uint64_t)(c->I / plane->block_rows);
    part->shape[2] = part->item * 8 / (uint64_t)element;
}

/* Set the shape of a part whose channels are columns: in each row, the elements of a channel group
 * are adjacent. */
static void shape_columns(struct fm_packed_part *part, const struct fm_packed *p,
                          const struct fm_config *c, const struct fm_plane *plane, int bits)
{
    int element = fm_dtype_bits(part->dtype);
    assert(p->group % plane->block_columns == 0 && p->group / plane->block_columns * bits % 8 == 0);
    part->items = fm_scheme_across((uint64_t)c->H, plane->block_rows);
    part->item = (size_t)(p->group / plane->block_columns) * (size_t)bits / 8;
    part->dims = 4;
    part->shape[0] = (uint64_t)c->E;
    part->shape[1] = (uint64_t)(c->I / p->group);
    part->shape[2] = part->items;
    part->shape[3] = part->item * 8 / (uint64_t)element;
    if (part->plane == 0 && part->shape[3] == 1)
        part->dims = 3;
}

static void add_planes(struct fm_packed *p, const struct fm_config *c, enum fm_weight_part of)
{
    struct fm_plane plane[FM_PLANES];
    fm_scheme_planes(plane, &p->scheme);
    for (int i = 0; i < FM_PLANES; i++) {
        bool columns = of == FM_PART_DOWN_T;
        enum fm_dtype dtype = i > 0 ? p->scales
                              : fm_dtype_bits(p->scheme.storage->codes) == plane[0].bits
                                  ? p->scheme.storage->codes
                                  : FM_U8;
        if ((columns ? plane[i].block_columns : plane[i].block_rows) == 0)
            continue;
        struct fm_packed_part *part = add_part(p, c, of, i, plane[i].suffix, dtype);
        int bits = i > 0 ? fm_dtype_bits(dtype) : plane[i].bits;
        (columns ? shape_columns : shape_rows)(part, p, c, &plane[i], bits);
    }
}

/* ---- the forms of layers ---- */

/* Make the form of a layer in a scheme whose group divides I; unquantised parts and biases have
 * `dtype`. */
static void make_form(struct fm_packed *p, const struct fm_config *c,
                      const struct fm_scheme *scheme, enum fm_dtype dtype, enum fm_dtype scales)
{
    *p = (struct fm_packed){.scheme = *scheme, .scales = scales, .group = fm_scheme_group(scheme)};
    assert(p->group <= c->I && c->I % p->group == 0);
    if (!scheme->storage) {
        for (int i = 0; i < fm_expert_parts(c->expert); i++)
            add_plain(p, c, (enum fm_weight_part)(FM_PART_GATE_UP + i), dtype);
        return;
    }
    add_planes(p, c, FM_PART_GATE_UP);
    add_planes(p, c, FM_PART_DOWN_T);
    if (c->expert->bias)
        add_plain(p, c, FM_PART_BIAS, dtype);
}

void fm_packed_begin(struct fm_packed_layers *layers)
{
    *layers = (struct fm_packed_layers){.group = 1};
}

bool fm_packed_equal(const struct fm_packed *a, const struct fm_packed *b)
{
    return a->scales == b->scales && fm_scheme_equal(&a->scheme, &b->scheme);
}

/* Add the next layer; false if there are too many forms. */
static bool add_layer(struct fm_packed_layers *layers, const struct fm_packed *form)
{
    int i = 0;
    while (i < layers->forms && !fm_packed_equal(&layers->form[i], form))
        i++;
    if (i == FM_PACKED_FORMS_MAX)
        return false;
    assert(layers->M < FM_LAYERS_MAX);
    layers->form[i] = *form;
    layers->forms = i < layers->forms ? layers->forms : i + 1;
    layers->of[layers->M++] = (uint8_t)i;
    layers->group = fm_storage_both(layers->group, form->group);
    layers->storage = layers->storage ? layers->storage : form->scheme.storage;
    return true;
}

/* Use the same form for all layers. */
static void add_all(struct fm_packed_layers *layers, const struct fm_config *c,
                    const struct fm_scheme *scheme, enum fm_dtype dtype, enum fm_dtype scales)
{
    struct fm_packed form;
    fm_packed_begin(layers);
    make_form(&form, c, scheme, dtype, scales);
    for (int m = 0; m < c->M; m++)
        add_layer(layers, &form);
}

void fm_packed_plain(struct fm_packed_layers *layers, const struct fm_config *c,
                     enum fm_dtype dtype)
{
    const struct fm_scheme plain = {0};
    add_all(layers, c, &plain, dtype, FM_U8);
}

void fm_packed_codes(struct fm_packed_layers *layers, const struct fm_config *c,
                     enum fm_dtype dtype, enum fm_dtype scales)
{
    add_all(layers, c, &c->scheme, dtype, scales);
}

/* Whether the groups of a scheme divide the channels of an expert. */
static bool divides(const struct fm_scheme *scheme, const struct fm_config *c)
{
    int group = fm_scheme_group(scheme);
    return group <= c->I && c->I % group == 0;
}

/* Whether a bundle can keep the numbers of fused experts that belong to no channel: one scale for
 * each matrix, or a factor.  They are copied under their name, so exports must be fused too. */
static bool can_share(const struct fm_scheme *scheme, const struct fm_config *c,
                      const struct fm_weight *w)
{
    const struct fm_model_family *f = c->family;
    bool same = !(w->when & FM_FUSED) || f->saved_fused || (f->wrapper_form && !c->part);
    if (!scheme->storage || (scheme->block_columns > 0 && !scheme->storage->factor_end))
        return true;
    return same && (scheme->block_columns > 0 || scheme->block_rows == 0);
}

bool fm_packed_see(struct fm_packed_layers *layers, const struct fm_config *c, enum fm_dtype dtype,
                   int m, const struct fm_stored *at, char why[FM_PACKED_WHY])
{
    struct fm_scheme scheme = {0};
    struct fm_packed form;
    if (at->scale)
        scheme = at->scheme;
    enum fm_dtype scales = at->scale ? at->scale->dtype : FM_U8;
    if (m < layers->M) {
        const struct fm_packed *own = fm_packed_at(layers, m);
        if (own->scales == scales && fm_scheme_equal(&own->scheme, &scheme))
            return true;
        snprintf(why, FM_PACKED_WHY,
                 "tensor '%.96s' is stored differently from other experts of its layer",
                 at->tensor->name);
        return false;
    }
    assert(m == layers->M);
    if (scheme.storage && scheme.storage->zero_end) {
        snprintf(why, FM_PACKED_WHY, "%s has zero points, which bundles do not keep",
                 scheme.storage->name);
        return false;
    }
    if (fm_stored_is_fused(at) && !can_share(&scheme, c, at->weight)) {
        snprintf(why, FM_PACKED_WHY, "%s has numbers for each expert of one tensor",
                 scheme.storage->name);
        return false;
    }
    if (!divides(&scheme, c)) {
        snprintf(why, FM_PACKED_WHY,
                 "codes can only be removed in groups of %d channels, and %d channels are not a "
                 "multiple of that",
                 fm_scheme_group(&scheme), c->I);
        return false;
    }
    make_form(&form, c, &scheme, dtype, scales);
    if (!add_layer(layers, &form)) {
        snprintf(why, FM_PACKED_WHY, "layers have more than %d formats", FM_PACKED_FORMS_MAX);
        return false;
    }
    if (layers->group <= c->I && c->I % layers->group == 0)
        return true;
    snprintf(
        why, FM_PACKED_WHY,
        "codes of all layers can only be removed in groups of %d channels, and %d channels are "
        "not a multiple of that",
        layers->group, c->I);
    return false;
}

bool fm_packed_any(const struct fm_packed_layers *layers, const struct fm_config *c,
                   char why[FM_PACKED_WHY])
{
    if (!layers->storage)
        snprintf(why, FM_PACKED_WHY, "no routed expert is stored as codes");
    else if (c->mixed) /* although the tensors were stored alike */
        snprintf(why, FM_PACKED_WHY, "config.json gives experts of one layer different formats");
    return layers->storage && !c->mixed;
}

/* FM_EFORMAT unless experts can have that scheme and scales of that dtype. */
static int check_codes(const struct fm_scheme *scheme, const struct fm_config *c,
                       enum fm_dtype scales, struct fm_err *err)
{
    const char *name = scheme->storage->name;
    if (c->mixed)
        return fm_fail(
            err, FM_EFORMAT,
            "storage is '%s', but config.json gives experts of one layer different formats", name);
    if (scheme->storage->zero_end)
        return fm_fail(err, FM_EFORMAT, "storage is '%s', which experts of a bundle cannot have",
                       name);
    if (!divides(scheme, c))
        return fm_fail(err, FM_EFORMAT,
                       "storage is '%s', whose groups of %d channels do not divide %d", name,
                       fm_scheme_group(scheme), c->I);
    if (!(scheme->storage->scale_dtypes & 1u << scales))
        return fm_fail(err, FM_EFORMAT, "scales are '%s', which storage '%s' does not have",
                       fm_dtype_name(scales), name);
    return FM_OK;
}

int fm_packed_of(struct fm_packed_layers *layers, const struct fm_config *c, enum fm_dtype scales,
                 struct fm_err *err)
{
    if (check_codes(&c->scheme, c, scales, err))
        return err->code;
    fm_packed_codes(layers, c, c->scheme.storage->written, scales);
    return FM_OK;
}

/* The scheme of a layer's experts in config.json. */
static struct fm_scheme scheme_of(const struct fm_config *c, int m)
{
    char name[FM_WEIGHT_NAME_BYTES];
    const struct fm_weight *w = c->family->weight;
    while (!w->name[FM_NAMING_STOCK] || !fm_weights_is_expert(w) ||
           !fm_weights_exists(c, w, c->moe[m]))
        w++;
    fm_weights_name(name, w->name[FM_NAMING_STOCK], c->moe[m], 0);
    return fm_config_scheme(c, name);
}

/* Read a layer's storage and the dtype of its scales; both null: unquantised. */
static int read_layer(struct fm_packed_layers *layers, const struct fm_config *c,
                      enum fm_dtype dtype, const cJSON *storage, const cJSON *scales,
                      struct fm_err *err)
{
    const char *name = cJSON_GetStringValue(storage), *type = cJSON_GetStringValue(scales);
    struct fm_scheme scheme = scheme_of(c, layers->M);
    struct fm_packed form;
    int of = type ? fm_dtype_from_name(type, strlen(type)) : -1;
    if (cJSON_IsNull(storage) && cJSON_IsNull(scales)) {
        scheme = (struct fm_scheme){0};
        of = FM_U8;
    } else if (!name || !type)
        return fm_fail(err, FM_EFORMAT, "key '%s' is missing or not a string",
                       name ? "scales" : "storage");
    else if (!scheme.storage || strcmp(name, scheme.storage->name) != 0)
        return fm_fail(err, FM_EFORMAT, "storage is '%.32s', but config.json says %s", name,
                       scheme.storage ? scheme.storage->name : "none");
    else if (of < 0)
        return fm_fail(err, FM_EFORMAT, "scales are '%.32s', which storage '%s' does not have",
                       type, name);
    else if (check_codes(&scheme, c, (enum fm_dtype)of, err))
        return err->code;
    make_form(&form, c, &scheme, dtype, (enum fm_dtype)of);
    if (!add_layer(layers, &form))
        return fm_fail(err, FM_EFORMAT, "layers have more than %d storages", FM_PACKED_FORMS_MAX);
    return FM_OK;
}

/* Read "storage" and "scales": each is a string, or a list with a string or null for each layer
 * with experts. */
static int read_codes(struct fm_packed_layers *layers, const struct fm_config *c,
                      enum fm_dtype dtype, const cJSON *model, struct fm_err *err)
{
    const cJSON *storage = cJSON_GetObjectItemCaseSensitive(model, "storage");
    const cJSON *scales = cJSON_GetObjectItemCaseSensitive(model, "scales");
    bool list = cJSON_IsArray(storage) && cJSON_IsArray(scales);
    if (list && (cJSON_GetArraySize(storage) != c->M || cJSON_GetArraySize(scales) != c->M))
        return fm_fail(err, FM_EFORMAT,
                       "storage and scales must have %d entries, one for each layer with experts",
                       c->M);
    fm_packed_begin(layers);
    storage = list ? storage->child : storage;
    scales = list ? scales->child : scales;
    for (int m = 0; m < c->M; m++) {
        if (read_layer(layers, c, dtype, storage, scales, err))
            return err->code;
        storage = list ? storage->next : storage;
        scales = list ? scales->next : scales;
    }
    if (!layers->storage)
        return fm_fail(err, FM_EFORMAT, "storage names no format");
    if (layers->group > c->I || c->I % layers->group != 0)
        return fm_fail(err, FM_EFORMAT, "groups of %d channels do not divide %d", layers->group,
                       c->I);
    return FM_OK;
}

bool fm_packed_in(const struct fm_bundle *b)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(b->manifest, "model");
    return fm_json_has(model, "storage");
}

int fm_packed_read(struct fm_packed_layers *layers, const struct fm_bundle *b,
                   const struct fm_config *c, struct fm_err *err)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(b->manifest, "model");
    const char *name = NULL;
    int rc = fm_json_get_string(model, "dtype", &name, err);
    int dtype = !rc ? fm_dtype_from_name(name, strlen(name)) : -1;
    if (!rc && (dtype < 0 || !fm_dtype_is_weight((enum fm_dtype)dtype)))
        rc = fm_fail(err, FM_EFORMAT, "dtype '%.32s' is not one of BF16, F16, F32", name);
    if (!rc && fm_packed_in(b))
        rc = read_codes(layers, c, (enum fm_dtype)dtype, model, err);
    else if (!rc)
        fm_packed_plain(layers, c, (enum fm_dtype)dtype);
    return rc ? fm_within(err, "%s: %s: model", b->file.path, FM_MEMBER_MANIFEST) : FM_OK;
}

void fm_packed_json(cJSON *model, const struct fm_packed_layers *layers)
{
    if (!layers->storage)
        return;
    if (layers->forms == 1) {
        fm_json_add_string(model, "storage", layers->storage->name);
        fm_json_add_string(model, "scales", fm_dtype_name(layers->form[0].scales));
        return;
    }
    cJSON *storage = fm_json_add_array(model, "storage");
    cJSON *scales = fm_json_add_array(model, "scales");
    for (int m = 0; m < layers->M; m++) {
        const struct fm_packed *form = fm_packed_at(layers, m);
        if (!form->scheme.storage) {
            fm_json_add_null(storage, NULL);
            fm_json_add_null(scales, NULL);
            continue;
        }
        fm_json_add_string(storage, NULL, form->scheme.storage->name);
        fm_json_add_string(scales, NULL, fm_dtype_name(form->scales));
    }
}

int fm_packed_check(const struct fm_packed_part *part, const struct fm_tensor *t,
                    struct fm_err *err)
{
    if (t->dtype == part->dtype && fm_tensor_shaped(t, part->shape, part->dims))
        return FM_OK;
    char needs[96];
    fm_weights_print_shape(needs, sizeof needs, part->shape, part->dims);
    return fm_fail(err, FM_EFORMAT, "tensor '%s' is not %s %s as the model says", t->name,
                   fm_dtype_name(part->dtype), needs);
}

struct fm_packed_part fm_packed_flat(const struct fm_packed *p, const struct fm_packed_part *part,
                                     uint64_t channels)
{
    struct fm_packed_part flat = *part;
    assert(channels % (uint64_t)p->group == 0); /* invariant 1, below */
    uint64_t rows = part->of == FM_PART_DOWN_T ? 1 : (uint64_t)part->rows * part->items;
    flat.dims--;
    for (int d = 0; d < flat.dims; d++)
        flat.shape[d] = part->shape[d + 1];
    flat.shape[0] = channels / (uint64_t)p->group * rows;
    return flat;
}

const struct fm_packed_part *fm_packed_find(const struct fm_packed *p, enum fm_weight_part of,
                                            int plane)
{
    for (int i = 0; i < p->parts; i++)
        if (p->part[i].of == of && p->part[i].plane == plane)
            return &p->part[i];
    return NULL;
}

/* ---- values of an expert that belong to no channel ---- */

uint64_t fm_packed_scales_apart(const struct fm_packed *p, const struct fm_config *c,
                                enum fm_weight_part of)
{
    if (fm_packed_find(p, of, 1))
        return 0;
    return (uint64_t)(p->scheme.block_rows ? c->H : fm_expert_part_rows(c->expert, of));
}

/* Bytes of the scales of a matrix. */
static size_t scale_bytes(const struct fm_channels *c)
{
    uint64_t rows = (uint64_t)fm_expert_part_rows(c->config->expert, c->of);
    return (size_t)(fm_packed_scales_apart(c->packed, c->config, c->of) / rows *
                    (uint64_t)fm_dtype_bits(c->packed->scales) / 8);
}

/* Name, in a checkpoint, of the tensor that holds a matrix; false if it is not stored as rows. */
static bool name_matrix(char name[FM_WEIGHT_NAME_BYTES], const struct fm_config *c,
                        enum fm_weight_part matrix, int l, int e)
{
    struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
    bool found = false;
    for (const struct fm_weight *w = c->family->weight; fm_weights_more(w) && !found; w++) {
        bool own = w->name[FM_NAMING_STOCK] && fm_weights_is_expert(w) && w->part != FM_PART_BIAS &&
                   fm_weights_exists(c, w, l);
        int cuts = own ? fm_expert_cuts(cut, c->expert, w->part) : 0;
        for (int i = 0; i < cuts && !found; i++)
            found = cut[i].part == matrix;
        if (found)
            fm_weights_name(name, w->name[FM_NAMING_STOCK], l, e);
    }
    return found;
}

/* Read the scales of the part's matrix `row`, or their factor.  They are in a tensor with the
 * checkpoint's name and the ending of the storage, of this expert or of all; or, in an export with
 * our modelling file, in a tensor of all experts and matrices, with the name of the codes. */
static int read_apart(void *dst, const struct fm_packed_expert *x, const struct fm_channels *c,
                      int row, bool factor, struct fm_err *err)
{
    const struct fm_storage *storage = c->packed->scheme.storage;
    uint64_t rows = (uint64_t)fm_expert_part_rows(c->config->expert, c->of);
    enum fm_dtype dtype = factor ? FM_F32 : c->packed->scales;
    size_t bytes = factor ? sizeof(float) : scale_bytes(c);
    bool ours = x->naming == FM_NAMING_RAGGED;
    char weight[FM_WEIGHT_NAME_BYTES], want[FM_ST_NAME_BYTES_MAX + 1];
    if (ours) {
        fm_weights_name_of(weight, c->config, x->naming, c->of, x->l, x->e);
        snprintf(want, sizeof want, "%s%s", weight, factor ? FM_PACKED_FACTOR : FM_PACKED_SCALE);
    } else if (name_matrix(weight, c->config, fm_packed_matrix(c->of, row), x->l, x->e)) {
        fm_stored_name(want, storage, weight, factor ? storage->factor_end : storage->scale_end);
    } else {
        return fm_fail(err, FM_EFORMAT, "%s: storage is '%s', which experts of %s cannot have",
                       x->path, storage->name, c->config->type);
    }
    const struct fm_stored *s = x->find(x->in, want);
    const struct fm_tensor *t = s ? s->tensor : NULL;
    bool shared = ours || (s && fm_stored_is_fused(s));
    uint64_t each = ours ? rows : 1, at = (shared ? (uint64_t)x->e * each : 0);
    uint64_t size = bytes * each * (shared ? (uint64_t)c->config->E : 1);
    if (!t || t->dtype != dtype || t->size != size)
        return fm_fail(err, FM_EFORMAT,
                       "%s: layer %d, expert %d: tensor '%s' is missing, or not %llu elements of "
                       "%s",
                       x->path, x->l, x->e, want,
                       (unsigned long long)(8 * size / (uint64_t)fm_dtype_bits(dtype)),
                       fm_dtype_name(dtype));
    at = (at + (ours ? (uint64_t)row : 0)) * bytes;
    struct fm_mark mark = fm_scratch_mark();
    /* The digest covers the whole tensor. */
    char *own = x->check ? (char *)fm_scratch((size_t)size) : dst;
    int rc =
        fm_tensor_read(t, s->file, x->check ? 0 : at, own, x->check ? (size_t)size : bytes, err);
    if (rc)
        fm_within(err, "%s: tensor '%s'", x->path, t->name);
    else if (x->check)
        rc = x->check(x->in, t->name, own, (size_t)size, err);
    if (!rc && x->check)
        memcpy(dst, own + at, bytes);
    fm_scratch_release(mark);
    if (!rc && factor && fm_stored_check_factor(*(const float *)dst, t->name, err))
        rc = fm_within(err, "%s", x->path);
    return rc;
}

void fm_packed_name_scales(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *c,
                           enum fm_naming naming)
{
    char weight[FM_WEIGHT_NAME_BYTES];
    if (c->scheme.block_rows == 0 && naming != FM_NAMING_RAGGED &&
        name_matrix(weight, c, FM_PART_GATE, c->moe[0], 0)) {
        fm_stored_name(name, c->scheme.storage, weight, c->scheme.storage->scale_end);
    } else {
        fm_weights_name_of(weight, c, naming, FM_PART_GATE_UP, c->moe[0], 0);
        snprintf(name, FM_ST_NAME_BYTES_MAX + 1, "%s" FM_PACKED_SCALE, weight);
    }
}

int fm_packed_read_apart(struct fm_channels *c, const struct fm_packed_expert *x,
                         struct fm_err *err)
{
    int rows = fm_expert_part_rows(c->config->expert, c->of), rc = FM_OK;
    for (int i = 0; i < rows && !rc; i++) {
        c->factor[i] = 1;
        if (c->packed->scheme.storage->factor_end)
            rc = read_apart(&c->factor[i], x, c, i, true, err);
    }
    if (rc || fm_packed_find(c->packed, c->of, 1))
        return rc;
    char *scales = fm_scratch((size_t)rows * scale_bytes(c));
    c->plane[1] = scales;
    for (int i = 0; i < rows && !rc; i++)
        rc = read_apart(scales + (size_t)i * scale_bytes(c), x, c, i, false, err);
    return rc;
}

uint64_t fm_packed_all_bytes(const struct fm_packed *p)
{
    uint64_t sum = 0;
    for (int i = 0; i < p->parts; i++)
        sum += fm_packed_group_bytes(&p->part[i]);
    return sum;
}

/* ---- forms ---- */

/*
 * All forms have the same items.  Where channels are rows, an item is a row, or for codes the part
 * of a block of rows; where they are columns, it is what a channel group has of one row.  So the
 * forms follow from the number of rows and items and from two questions: whether rows of a group
 * follow each other or are interleaved, and whether the file has channels as rows or as columns.
 *
 * Codes are decoded, and values rounded, only as matrices of a file:
 *
 *     part of a bundle    | g0 gate | g0 up | g1 gate | g1 up | ...     and the same of its scales
 *                              |                 |
 *                              v  fm_move        v
 *     cut of a file       | g0 gate   | g1 gate   | ...                 codes, scales: N x K
 *                              |  fm_scheme_decode, or back: fm_encode (formats/quant)
 *                              v
 *     values              | g0 gate   | g1 gate   | ...                 N x K
 *                              |  fm_move
 *                              v
 *     part                | g0 gate | g0 up | g1 gate | g1 up | ...     rows of the online layout
 *
 * Invariants:
 *   1. A cut's rows are inside a channel group of its part, and numbers of channels are whole
 *      groups (fm_packed_forms).
 *   2. A cut and the padding after it fill the file's cut, each byte once (fm_packed_forms).
 *   3. The cuts of a part fill its rows: their sizes add up to the part's (decode).
 *   4. Every block of a matrix has one scale (decode_cut).
 */

bool fm_packed_has(const struct fm_packed *packed, int plane, const struct fm_expert_cut *cut)
{
    return plane < 0 ||
           (fm_packed_find(packed, cut->of, plane) && !(cut->columns && cut->rows > 1));
}

/* The box of a cut's channels. */
static struct fm_box box_of(const struct fm_config *c, const struct fm_packed *packed, int plane,
                            enum fm_dtype dtype, const struct fm_expert_cut *cut, uint64_t channels)
{
    size_t rows = (size_t)cut->rows, row = (size_t)fm_expert_part_row(cut->of, c->H);
    size_t element = (size_t)fm_dtype_bits(dtype) / 8;
    if (plane >= 0) {
        const struct fm_packed_part *part = fm_packed_find(packed, cut->of, plane);
        return (struct fm_box){(size_t)channels / (size_t)packed->group, rows, part->items,
                               part->item};
    }
    if (cut->columns)
        return (struct fm_box){(size_t)channels, rows, row, element};
    return (struct fm_box){(size_t)channels, rows, 1, row * element};
}

struct fm_packed_forms fm_packed_forms(const struct fm_config *c, const struct fm_packed *packed,
                                       int plane, enum fm_dtype dtype,
                                       const struct fm_expert_cut *cut, uint64_t channels,
                                       uint64_t stored)
{
    assert(fm_packed_has(packed, plane, cut) && channels <= stored);
    assert(plane < 0 || /* invariant 1 */
           (channels % (uint64_t)packed->group == 0 && stored % (uint64_t)packed->group == 0));
    const struct fm_box box = box_of(c, packed, plane, dtype, cut, channels);
    size_t all = (size_t)fm_expert_part_rows(c->expert, cut->of), s = box.size;
    assert(cut->first >= 0 && (size_t)cut->first + box.rows <= all && s > 0);
    size_t groups = (size_t)stored / (plane < 0 ? 1 : (size_t)packed->group);
    /* In the part, the elements of a row are adjacent, and whole rows are interleaved. */
    size_t part_row = cut->columns ? box.items * s : s, part_item = cut->columns ? s : all * s;
    struct fm_packed_forms f = {.box = box,
                                .part = {all * box.items * s, part_row, part_item},
                                .file = {box.rows * box.items * s, s, box.rows * s},
                                .part_first = (size_t)cut->first * part_row,
                                .part_group = all * box.items * s,
                                .file_bytes = groups * box.rows * box.items * s,
                                .padding = box};
    if (cut->columns)
        f.file = (struct fm_form){box.rows * s, s, groups * box.rows * s};
    f.padding.groups = groups - box.groups;
    f.file_padding = box.groups * f.file.group;
    assert(fm_box_bytes(&f.box) + fm_box_bytes(&f.padding) == f.file_bytes); /* invariant 2 */
    return f;
}

/* ---- channels ---- */

static bool has_codes(const struct fm_packed *p, enum fm_weight_part of)
{
    return p && fm_packed_find(p, of, 0);
}

/* The bytes of a cut in a plane of codes as a file has them, in scratch; `part` has `channels`
 * channels. */
static char *take_plane(size_t *size, const struct fm_channels *c, int plane,
                        const struct fm_expert_cut *cut, uint64_t channels, const char *part)
{
    const struct fm_packed_forms f =
        fm_packed_forms(c->config, c->packed, plane, FM_U8, cut, channels, channels);
    char *file = fm_scratch(f.file_bytes);
    fm_move(file, &f.file, part + f.part_first, &f.part, &f.box, NULL);
    *size = f.file_bytes;
    return file;
}

/* Decode a cut of `channels` channels from `first` on, a matrix of a file, and move it to `rows`;
 * return its bytes there. */
static size_t decode_cut(char *rows, const struct fm_channels *c, const struct fm_expert_cut *cut,
                         uint64_t first, uint64_t channels, float factor)
{
    const struct fm_packed *p = c->packed;
    const struct fm_packed_part *part = fm_packed_find(p, cut->of, 0),
                                *own = fm_packed_find(p, cut->of, 1);
    size_t H = (size_t)c->config->H, N = cut->columns ? H : (size_t)channels,
           K = cut->columns ? (size_t)channels : H, size;
    const char *scales = c->plane[1];
    const char *code = take_plane(&size, c, 0, cut, channels,
                                  (const char *)c->plane[0] + fm_packed_bytes(p, part, first));
    size_t count = fm_scheme_blocks(&p->scheme, N, K);
    if (own) {
        scales = take_plane(&size, c, 1, cut, channels, scales + fm_packed_bytes(p, own, first));
        assert(size * 8 == count * (size_t)fm_dtype_bits(p->scales)); /* invariant 4 */
    } else {
        scales += (size_t)cut->first * scale_bytes(c);
    }
    float *scale = fm_scratch(count * sizeof *scale), *wide = fm_scratch(N * K * sizeof *wide);
    fm_storage_scales(scale, p->scheme.storage, scales, p->scales, count, factor);
    fm_scheme_decode(wide, &p->scheme, code, scale, N, K);
    const struct fm_packed_forms f =
        fm_packed_forms(c->config, NULL, -1, c->dtype, cut, channels, channels);
    void *values = c->dtype == FM_F32 ? wide : fm_scratch(f.file_bytes);
    if (c->dtype != FM_F32)
        fm_dtype_from_f32(values, wide, c->dtype, N * K);
    fm_move(rows + f.part_first, &f.part, values, &f.file, &f.box, NULL);
    return f.file_bytes;
}

/* Values that are decoded at a time, so that they stay in the cache. */
#define SOME ((uint64_t)1 << 16)

static void decode(struct fm_channels *c)
{
    int matrices = fm_expert_part_rows(c->config->expert, c->of);
    uint64_t group = (uint64_t)c->packed->group, H = (uint64_t)c->config->H, n;
    uint64_t some = SOME / H / group * group;
    size_t row = (size_t)H * (size_t)matrices * (size_t)fm_dtype_bits(c->dtype) / 8;
    char *rows = fm_scratch((size_t)c->count * row);
    assert(c->count % group == 0); /* so every step has whole groups */
    some = some > group ? some : group;
    for (uint64_t at = 0; at < c->count; at += n) {
        n = c->count - at < some ? c->count - at : some;
        size_t left = (size_t)n * row;
        for (int i = 0; i < matrices; i++) {
            const struct fm_expert_cut cut =
                fm_expert_cut(c->config->expert, fm_packed_matrix(c->of, i));
            struct fm_mark mark = fm_scratch_mark();
            left -= decode_cut(rows + at * row, c, &cut, at, n, c->factor[i]);
            fm_scratch_release(mark);
        }
        assert(left == 0); /* invariant 3 */
    }
    c->packed = NULL;
    c->plane[0] = rows;
    c->plane[1] = NULL;
}

/* A cut of the values as a matrix of a file: in scratch if it has channels as columns, else in the
 * part. */
static struct fm_encode_matrix matrix_of(const struct fm_channels *c,
                                         const struct fm_expert_cut *cut)
{
    size_t H = (size_t)c->config->H, n = (size_t)c->count * (size_t)cut->rows;
    const struct fm_packed_forms f =
        fm_packed_forms(c->config, NULL, -1, c->dtype, cut, c->count, c->count);
    const char *at = c->count ? (const char *)c->plane[0] + f.part_first : NULL;
    size_t row = H * (size_t)fm_dtype_bits(c->dtype) / 8;
    if (!cut->columns)
        return (struct fm_encode_matrix){at, cut->rows == 1 ? f.part.group : row, c->dtype, n, H};
    at = fm_packed_cut(c, cut->part, -1, c->count, c->count, 0);
    return (struct fm_encode_matrix){at, f.file_bytes / H, c->dtype, H, n};
}

/* Round the values, matrix by matrix.  All have the same factor. */
static bool encode(struct fm_channels *c, const struct fm_packed *to, const struct fm_quantiser *q)
{
    const struct fm_expert_cut part = fm_expert_cut(c->config->expert, c->of);
    int matrices = fm_expert_part_rows(c->config->expert, c->of);
    struct fm_encode_matrix all = matrix_of(c, &part);
    char *plane[FM_PLANES];
    float factor;
    bool finite = fm_encode_factor(&factor, q, &to->scheme, &all);
    for (int n = 0; n < FM_PLANES; n++) {
        const struct fm_packed_part *own = fm_packed_find(to, c->of, n);
        plane[n] = fm_scratch(own ? (size_t)fm_packed_bytes(to, own, c->count)
                                  : all.columns * (size_t)fm_dtype_bits(to->scales) / 8);
    }
    for (int i = 0; i < matrices && finite; i++) {
        const struct fm_expert_cut cut =
            fm_expert_cut(c->config->expert, fm_packed_matrix(c->of, i));
        struct fm_mark mark = fm_scratch_mark();
        const struct fm_encode_matrix w = matrix_of(c, &cut);
        struct fm_packed_forms f[FM_PLANES];
        char *own[FM_PLANES];
        for (int n = 0; n < FM_PLANES; n++) {
            own[n] = plane[n];
            if (!fm_packed_find(to, c->of, n))
                continue;
            f[n] = fm_packed_forms(c->config, to, n, c->dtype, &cut, c->count, c->count);
            own[n] = fm_scratch(f[n].file_bytes);
        }
        finite = fm_encode(own[0], own[1], q, &to->scheme, &w, factor);
        for (int n = 0; n < FM_PLANES; n++)
            if (own[n] != plane[n])
                fm_move(plane[n] + f[n].part_first, &f[n].part, own[n], &f[n].file, &f[n].box,
                        NULL);
        fm_scratch_release(mark);
        c->factor[i] = factor;
    }
    c->packed = to;
    c->plane[0] = plane[0];
    c->plane[1] = plane[1];
    return finite;
}

bool fm_packed_convert(struct fm_channels *c, const struct fm_packed *to,
                       const struct fm_quantiser *round)
{
    if (has_codes(c->packed, c->of))
        decode(c);
    return !round || !has_codes(to, c->of) || encode(c, to, round);
}

const void *fm_packed_cut(const struct fm_channels *c, enum fm_weight_part part, int plane,
                          uint64_t kept, uint64_t stored, int blank)
{
    const struct fm_expert_cut cut = fm_expert_cut(c->config->expert, part);
    const struct fm_packed_forms f =
        fm_packed_forms(c->config, c->packed, plane, c->dtype, &cut, kept, stored);
    const char *from = c->plane[plane > 0];
    assert(from || kept == 0);
    if (fm_packed_same(&f) && kept == stored)
        return from;
    char *to = fm_scratch(f.file_bytes);
    if (kept)
        fm_move(to, &f.file, from + f.part_first, &f.part, &f.box, NULL);
    fm_move_blank(to + f.file_padding, &f.file, &f.padding, blank);
    return to;
}
