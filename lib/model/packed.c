/*
 * Shapes follow from the planes of the storage and the sizes of the model, so that a bundle says no
 * more of its codes than which storage and which type of scales.
 */
#include "lib/model/packed.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "formats/json/json.h"

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

/* Numbers: all of a plain bundle, and biases. */
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

/* Rows of elements for channels, interleaved. */
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

/* Columns of elements for channels, a group of them beside each other for each row. */
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
    struct fm_plane plane[FM_PLANES_MAX];
    int planes = p->storage->planes(plane, c);
    for (int i = 0; i < planes; i++) {
        bool columns = of == FM_PART_DOWN_T;
        enum fm_dtype dtype = i > 0                                       ? p->scales
                              : fm_dtype_bits(p->storage->codes) == plane[0].bits ? p->storage->codes
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
    *p = (struct fm_packed){
        .storage = c->storage, .scales = scales, .group = fm_storage_group(c)};
    assert(p->group <= c->I && c->I % p->group == 0);
    add_planes(p, c, FM_PART_GATE_UP);
    add_planes(p, c, FM_PART_DOWN_T);
    if (c->expert->bias)
        add_plain(p, c, FM_PART_BIAS, dtype);
}

static bool can_scale(const struct fm_storage *storage, enum fm_dtype dtype)
{
    return storage->has_scales ? storage->has_scales(dtype) : dtype == FM_U8;
}

static int read_codes(struct fm_packed *p, const struct fm_config *c, enum fm_dtype dtype,
                      const cJSON *model, struct fm_err *err)
{
    const char *name = NULL, *scales = NULL;
    int group = c->storage ? fm_storage_group(c) : 1;
    if (fm_json_get_string(model, "storage", &name, err) ||
        fm_json_get_string(model, "scales", &scales, err))
        return err->code;
    if (!c->storage || strcmp(name, c->storage->method) != 0)
        return fm_fail(err, FM_EFORMAT, "storage is '%.32s', by config.json it is %s", name,
                       c->storage ? c->storage->method : "none");
    if (group > c->I || c->I % group != 0)
        return fm_fail(err, FM_EFORMAT,
                       "storage is '%s', whose groups of %d channels do not divide %d", name, group,
                       c->I);
    int type = fm_dtype_from_name(scales, strlen(scales));
    if (type < 0 || !can_scale(c->storage, (enum fm_dtype)type))
        return fm_fail(err, FM_EFORMAT, "scales are '%.32s', which storage '%s' has none of", scales,
                       name);
    fm_packed_codes(p, c, dtype, (enum fm_dtype)type);
    return FM_OK;
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
    if (!rc && cJSON_HasObjectItem(model, "storage"))
        rc = read_codes(p, c, (enum fm_dtype)dtype, model, err);
    else if (!rc)
        fm_packed_plain(p, c, (enum fm_dtype)dtype);
    return !rc ? rc : fm_within(err, "%s: %s: model", b->file.path, FM_MEMBER_MANIFEST);
}

void fm_packed_json(cJSON *model, const struct fm_packed *p)
{
    if (!p->storage)
        return;
    fm_json_add_string(model, "storage", p->storage->method);
    fm_json_add_string(model, "scales", fm_dtype_name(p->scales));
}

const struct fm_packed_part *fm_packed_find(const struct fm_packed *p, enum fm_weight_part of,
                                            int plane)
{
    for (int i = 0; i < p->parts; i++)
        if (p->part[i].of == of && p->part[i].plane == plane)
            return &p->part[i];
    return NULL;
}

uint64_t fm_packed_all_bytes(const struct fm_packed *p)
{
    uint64_t sum = 0;
    for (int i = 0; i < p->parts; i++)
        sum += fm_packed_group_bytes(&p->part[i]);
    return sum;
}
