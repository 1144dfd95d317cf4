/*
 * All shapes follow from the planes of the storage and the sizes of the model, so a bundle records
 * only which storage it has and the dtype of its scales.
 */
#include "lib/model/packed.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/pool.h"
#include "lib/base/scaled.h"
#include "lib/family/family.h"
#include "lib/model/interleave.h"
#include "lib/model/stored.h"

static uint64_t blocks(uint64_t size, int block)
{
    return block ? (size + (uint64_t)block - 1) / (uint64_t)block : 1;
}

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

/* Add a part of plain numbers: all parts of a plain bundle, and biases. */
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

/* Shape of elements that are rows of channels, interleaved. */
static void shape_rows(struct fm_packed_part *part, const struct fm_packed *p,
                       const struct fm_config *c, const struct fm_plane *plane, int bits)
{
    uint64_t across = blocks((uint64_t)c->H, plane->block_columns);
    int element = fm_dtype_bits(part->dtype);
    part->items = (uint64_t)(p->group / plane->block_rows);
    part->item = (size_t)(across * (uint64_t)bits + 7) / 8;
    part->dims = 3;
    part->shape[0] = (uint64_t)c->E;
    part->shape[1] = (uint64_t)part->rows * (uint64_t)(c->I / plane->block_rows);
    part->shape[2] = part->item * 8 / (uint64_t)element;
}

/* Shape of elements that are columns of channels: for each row, the elements of a channel group are
 * adjacent. */
static void shape_columns(struct fm_packed_part *part, const struct fm_packed *p,
                          const struct fm_config *c, const struct fm_plane *plane, int bits)
{
    int element = fm_dtype_bits(part->dtype);
    part->items = blocks((uint64_t)c->H, plane->block_rows);
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
    fm_storage_planes(plane, c);
    for (int i = 0; i < FM_PLANES; i++) {
        bool columns = of == FM_PART_DOWN_T;
        enum fm_dtype dtype = i > 0 ? p->scales
                              : fm_dtype_bits(p->storage->codes) == plane[0].bits
                                  ? p->storage->codes
                                  : FM_U8;
        if ((columns ? plane[i].block_columns : plane[i].block_rows) == 0)
            continue;
        struct fm_packed_part *part = add_part(p, c, of, i, plane[i].suffix, dtype);
        int bits = i > 0 ? fm_dtype_bits(dtype) : plane[i].bits;
        (columns ? shape_columns : shape_rows)(part, p, c, &plane[i], bits);
    }
}

void fm_packed_plain(struct fm_packed *p, const struct fm_config *c, enum fm_dtype dtype)
{
    *p = (struct fm_packed){.group = 1};
    for (int i = 0; i < fm_expert_parts(c->expert); i++)
        add_plain(p, c, (enum fm_weight_part)(FM_PART_GATE_UP + i), dtype);
}

void fm_packed_codes(struct fm_packed *p, const struct fm_config *c, enum fm_dtype dtype,
                     enum fm_dtype scales)
{
    *p = (struct fm_packed){.storage = c->storage, .scales = scales, .group = fm_storage_group(c)};
    assert(p->group <= c->I && c->I % p->group == 0);
    add_planes(p, c, FM_PART_GATE_UP);
    add_planes(p, c, FM_PART_DOWN_T);
    if (c->expert->bias)
        add_plain(p, c, FM_PART_BIAS, dtype);
}

static bool can_scale(const struct fm_storage *storage, enum fm_dtype dtype)
{
    return storage->scale_dtypes & 1u << dtype;
}

/* Add the parts of the config's storage, if it can be kept; biases are of `dtype`. */
static int set_codes(struct fm_packed *p, const struct fm_config *c, enum fm_dtype dtype,
                     enum fm_dtype scales, struct fm_err *err)
{
    const char *name = c->storage->name;
    int group = fm_storage_group(c);
    if (c->mixed)
        return fm_fail(err, FM_EFORMAT,
                       "storage is '%s', but by config.json not all experts are stored in it",
                       name);
    if (group > c->I || c->I % group != 0)
        return fm_fail(err, FM_EFORMAT,
                       "storage is '%s', whose groups of %d channels do not divide %d", name, group,
                       c->I);
    if (!can_scale(c->storage, scales))
        return fm_fail(err, FM_EFORMAT, "scales are '%s', which storage '%s' does not have",
                       fm_dtype_name(scales), name);
    fm_packed_codes(p, c, dtype, scales);
    return FM_OK;
}

int fm_packed_of(struct fm_packed *p, const struct fm_config *c, enum fm_dtype scales,
                 struct fm_err *err)
{
    return set_codes(p, c, c->storage->written, scales, err);
}

static int read_codes(struct fm_packed *p, const struct fm_config *c, enum fm_dtype dtype,
                      const cJSON *model, struct fm_err *err)
{
    const char *name = NULL, *scales = NULL;
    if (fm_json_get_string(model, "storage", &name, err) ||
        fm_json_get_string(model, "scales", &scales, err))
        return err->code;
    if (!c->storage || strcmp(name, c->storage->name) != 0)
        return fm_fail(err, FM_EFORMAT, "storage is '%.32s', by config.json it is %s", name,
                       c->storage ? c->storage->name : "none");
    int type = fm_dtype_from_name(scales, strlen(scales));
    if (type < 0)
        return fm_fail(err, FM_EFORMAT, "scales are '%.32s', which storage '%s' does not have",
                       scales, name);
    return set_codes(p, c, dtype, (enum fm_dtype)type, err);
}

bool fm_packed_in(const struct fm_bundle *b)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(b->manifest, "model");
    return cJSON_HasObjectItem(model, "storage");
}

int fm_packed_read(struct fm_packed *p, const struct fm_bundle *b, const struct fm_config *c,
                   struct fm_err *err)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(b->manifest, "model");
    const char *name = NULL;
    int rc = fm_json_get_string(model, "dtype", &name, err);
    int dtype = !rc ? fm_dtype_from_name(name, strlen(name)) : -1;
    if (!rc && (dtype < 0 || !fm_dtype_is_weight((enum fm_dtype)dtype)))
        rc = fm_fail(err, FM_EFORMAT, "dtype '%.32s' is not one of BF16, F16, F32", name);
    if (!rc && fm_packed_in(b))
        rc = read_codes(p, c, (enum fm_dtype)dtype, model, err);
    else if (!rc)
        fm_packed_plain(p, c, (enum fm_dtype)dtype);
    return !rc ? rc : fm_within(err, "%s: %s: model", b->file.path, FM_MEMBER_MANIFEST);
}

void fm_packed_json(cJSON *model, const struct fm_packed *p)
{
    if (!p->storage)
        return;
    fm_json_add_string(model, "storage", p->storage->name);
    fm_json_add_string(model, "scales", fm_dtype_name(p->scales));
}

bool fm_packed_can_keep(const struct fm_config *c, int group)
{
    int own = fm_storage_group(c);
    return c->storage && !c->mixed && own <= c->I && c->I % own == 0 && group % own == 0;
}

int fm_packed_check(const struct fm_packed_part *part, const struct fm_tensor *t,
                    struct fm_err *err)
{
    bool same = t->dtype == part->dtype && t->dims == part->dims;
    for (int d = 0; same && d < t->dims; d++)
        same = t->shape[d] == part->shape[d];
    if (same)
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

/* Decode rows of channels: each has its own scales, or those of its block of rows. */
static void decode_rows(char *rows, enum fm_dtype dtype, const struct fm_packed_part *part,
                        const struct fm_plane *plane, struct fm_scales s, uint64_t channels,
                        const char *codes)
{
    size_t H = (size_t)s.columns, across = blocks((uint64_t)H, plane->block_columns);
    size_t element = (size_t)fm_dtype_bits(dtype) / 8, r = (size_t)part->rows;
    const float *all = s.scale;
    float *wide = fm_scratch(H * sizeof *wide);
    for (size_t i = 0; i < (size_t)channels * r; i++) {
        s.scale = all + (i / r / (size_t)plane->block_rows * r + i % r) * across;
        fm_scaled_to_f32(wide, codes + i * part->item, &s, 0, H);
        fm_dtype_from_f32(rows + i * H * element, wide, dtype, H);
    }
}

/* Decode channel groups that are columns: each group is a matrix of H rows, which is transposed. */
static void decode_columns(char *rows, enum fm_dtype dtype, const struct fm_packed_part *part,
                           const struct fm_packed_part *scales, struct fm_scales s, int H,
                           uint64_t groups, const char *codes)
{
    size_t G = (size_t)s.columns, n = (size_t)H * G, element = (size_t)fm_dtype_bits(dtype) / 8;
    size_t step =
        scales ? fm_packed_group_bytes(scales) * 8 / (size_t)fm_dtype_bits(scales->dtype) : 0;
    float *wide = fm_scratch(n * sizeof *wide), *turned = fm_scratch(n * sizeof *turned);
    for (size_t g = 0; g < (size_t)groups; g++) {
        fm_scaled_to_f32(wide, codes + g * fm_packed_group_bytes(part), &s, 0, n);
        fm_interleave_gather(turned, wide, NULL, (int)G, H, sizeof(float));
        fm_dtype_from_f32(rows + g * n * element, turned, dtype, n);
        s.scale += step;
    }
}

void fm_packed_values(void *rows, enum fm_dtype dtype, const struct fm_packed *p,
                      const struct fm_config *c, enum fm_weight_part of, uint64_t channels,
                      const void *codes, const void *scales, const float *factor)
{
    const struct fm_packed_part *part = fm_packed_find(p, of, 0), *own = fm_packed_find(p, of, 1);
    uint64_t groups = channels / (uint64_t)p->group;
    struct fm_plane plane[FM_PLANES];
    fm_storage_planes(plane, c);
    size_t n =
        own ? (size_t)fm_packed_bytes(p, own, channels) * 8 / (size_t)fm_dtype_bits(p->scales)
            : (size_t)blocks((uint64_t)c->H, plane[1].block_rows);
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_scratch(n * sizeof *wide);
    bool columns = of == FM_PART_DOWN_T;
    int across = columns ? p->group : c->H;
    size_t row = columns ? n : (size_t)blocks((uint64_t)c->H, plane[1].block_columns);
    size_t element = (size_t)fm_dtype_bits(p->scales) / 8;
    for (size_t i = 0; i < n; i += row)
        fm_stored_scales(wide + i, p->storage, (const char *)scales + i * element, p->scales, row,
                         factor[columns ? 0 : i / row % (size_t)part->rows]);
    const struct fm_scales s = {.scale = wide,
                                .count = n,
                                .columns = across,
                                .block_rows = !columns              ? 1
                                              : plane[1].block_rows ? plane[1].block_rows
                                                                    : c->H,
                                .block_columns =
                                    plane[1].block_columns ? plane[1].block_columns : across,
                                .code = p->storage->code};
    if (columns)
        decode_columns(rows, dtype, part, own, s, c->H, groups, codes);
    else
        decode_rows(rows, dtype, part, &plane[1], s, channels, codes);
    fm_scratch_release(mark);
}

uint64_t fm_packed_all_bytes(const struct fm_packed *p)
{
    uint64_t sum = 0;
    for (int i = 0; i < p->parts; i++)
        sum += fm_packed_group_bytes(&p->part[i]);
    return sum;
}
