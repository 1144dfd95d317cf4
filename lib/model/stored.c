/*
 * Scales follow their weight by name alone: every tensor whose name ends as the storage says scales
 * belong to the tensor in front of that.  A weight that lacks its scales, or scales that lack their
 * weight, are a checkpoint that was damaged or renamed, and would be read wrong without a word.
 */
#include "lib/model/stored.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/names.h"
#include "lib/block/storage.h"
#include "lib/family/extra.h"

static bool is_codes(const struct fm_config *c, const struct fm_tensor *t)
{
    const struct fm_storage *s = c->storage;
    return s && t->dtype == s->codes && (!s->blocks || fm_ends_with(t->name, s->blocks));
}

/* a + b without the last `less` of a; "" where no tensor has a name as long as that. */
static void join(char name[FM_ST_NAME_BYTES_MAX + 1], const char *a, size_t less, const char *b)
{
    int n = snprintf(name, FM_ST_NAME_BYTES_MAX + 1, "%.*s%s", (int)(strlen(a) - less), a, b);
    if (n > FM_ST_NAME_BYTES_MAX)
        name[0] = '\0';
}

bool fm_stored_codes(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *c,
                     const struct fm_tensor *t)
{
    if (!is_codes(c, t))
        return false;
    join(name, t->name, c->storage->blocks ? strlen(c->storage->blocks) : 0, c->storage->scale);
    return true;
}

bool fm_stored_scales(char weight[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *c,
                      const char *name)
{
    if (!c->storage || !fm_ends_with(name, c->storage->scale))
        return false;
    join(weight, name, strlen(c->storage->scale), c->storage->blocks ? c->storage->blocks : "");
    return true;
}

void fm_stored_weight(char weight[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *c,
                      const char *name)
{
    const char *end = c->storage ? c->storage->scale : NULL;
    if (end && !fm_ends_with(name, end))
        end = c->storage->blocks && fm_ends_with(name, c->storage->blocks) ? c->storage->blocks
                                                                           : NULL;
    join(weight, name, end ? strlen(end) : 0, "");
}

bool fm_stored_blocks(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *c,
                      const char *weight)
{
    if (!c->storage || !c->storage->blocks)
        return false;
    join(name, weight, 0, c->storage->blocks);
    return true;
}

int fm_stored_twice(const struct fm_config *c, const char *name, const struct fm_tensor *plain,
                    struct fm_err *err)
{
    if (!c->storage || !c->storage->blocks || !plain || strcmp(plain->name, name) == 0)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT, "tensor '%s' is there as plain numbers, and as '%s'",
                   plain->name, name);
}

int fm_stored_check_scaled(const struct fm_config *c, const char *scales,
                           const struct fm_tensor *weight, struct fm_err *err)
{
    if (weight && is_codes(c, weight))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT, "tensor '%s' has scales for a tensor that is %s%s", scales,
                   weight ? fm_dtype_name(weight->dtype) : "missing",
                   weight ? ", which has none" : "");
}

static uint64_t blocks(uint64_t size, int block)
{
    return (size + (uint64_t)block - 1) / (uint64_t)block;
}

int fm_stored_check(const struct fm_stored *s, const struct fm_config *c, struct fm_err *err)
{
    const struct fm_tensor *t = s->tensor, *scale = s->scale;
    char name[FM_ST_NAME_BYTES_MAX + 1];
    if (!fm_stored_codes(name, c, t))
        return FM_OK;
    if (!scale)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is %s, and its scales '%s' are missing",
                       t->name, fm_dtype_name(t->dtype), name);
    if (c->storage->decode)
        return FM_OK; /* fm_stored_check_blocks */
    if (t->dims != 2)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is %s with %d dimensions; matrices alone are",
                       t->name, fm_dtype_name(t->dtype), t->dims);
    if (!c->storage->has_scales(scale->dtype))
        return fm_fail(err, FM_ECONFIG, "tensor '%s' is %s; scales must be %s", scale->name,
                       fm_dtype_name(scale->dtype), c->storage->scale_dtypes);
    const uint64_t want[] = {blocks(t->shape[0], c->block_rows),
                             blocks(t->shape[1], c->block_columns)};
    if (scale->dims == 2 && scale->shape[0] == want[0] && scale->shape[1] == want[1])
        return FM_OK;
    char has[192], needs[64];
    fm_weights_print_shape(has, sizeof has, scale->shape, scale->dims);
    fm_weights_print_shape(needs, sizeof needs, want, 2);
    return fm_fail(err, FM_EFORMAT, "tensor '%s' has shape %s, blocks of %d x %d want %s",
                   scale->name, has, c->block_rows, c->block_columns, needs);
}

static bool same_shape(const struct fm_tensor *t, const uint64_t *want, int dims)
{
    bool same = t->dims == dims;
    for (int d = 0; same && d < dims; d++)
        same = t->shape[d] == want[d];
    return same;
}

/* FM_EFORMAT unless it is bytes of that shape. */
static int check_bytes(const struct fm_tensor *t, const uint64_t *want, int dims,
                       struct fm_err *err)
{
    char has[192], needs[96];
    if (t->dtype != FM_U8)
        return fm_fail(err, FM_ECONFIG, "tensor '%s' is %s; codes and scales of blocks must be U8",
                       t->name, fm_dtype_name(t->dtype));
    if (same_shape(t, want, dims))
        return FM_OK;
    fm_weights_print_shape(has, sizeof has, t->shape, t->dims);
    fm_weights_print_shape(needs, sizeof needs, want, dims);
    return fm_fail(err, FM_EFORMAT, "tensor '%s' has shape %s, config.json wants %s", t->name, has,
                   needs);
}

/* The part that a weight's codes are, which lie transposed; -1: none that we know. */
static int turned(enum fm_weight_part part)
{
    return part == FM_PART_GATE_UP_T ? (int)FM_PART_GATE_UP
           : part == FM_PART_DOWN_T  ? (int)FM_PART_DOWN
                                     : -1;
}

int fm_stored_check_weight(enum fm_weight_part *part, const struct fm_stored *s,
                           const struct fm_config *c, const struct fm_weight *w, int l,
                           uint64_t channels, struct fm_err *err)
{
    uint64_t own[FM_ST_DIMS_MAX] = {0};
    *part = w->part;
    if (!s->scale || !c->storage->decode)
        return fm_weights_check(c, w, s->tensor, l, channels, err);
    int dims = fm_weights_shape(own, c, w, l, channels), as = turned(w->part);
    if (dims != 3 || as < 0)
        return fm_fail(err, FM_ECONFIG,
                       "tensor '%s' is %s; of this model only experts' matrices "
                       "can be",
                       s->tensor->name, c->storage->method);
    if (own[1] % FM_STORAGE_BLOCK != 0)
        return fm_fail(err, FM_EFORMAT,
                       "tensor '%s': by config.json its rows have %llu values, which are no blocks "
                       "of %d",
                       s->tensor->name, (unsigned long long)own[1], FM_STORAGE_BLOCK);
    const uint64_t want[] = {own[0], own[2], own[1] / FM_STORAGE_BLOCK, FM_STORAGE_BLOCK / 2};
    *part = (enum fm_weight_part)as;
    int rc = check_bytes(s->tensor, want, 4, err);
    return rc ? rc : check_bytes(s->scale, want, 3, err);
}

bool fm_stored_decodes(const struct fm_stored *s, const struct fm_config *c)
{
    return s->scale && c->storage->decode;
}

int fm_stored_decode(uint16_t *values, const struct fm_stored *s, const struct fm_config *c,
                     const void *codes, const void *scales, size_t first, size_t n,
                     struct fm_err *err)
{
    c->storage->decode(values, codes, scales, n / FM_STORAGE_BLOCK);
    return fm_stored_finite(s, values, first, n, err);
}

enum fm_dtype fm_stored_dtype(const struct fm_config *c, const struct fm_tensor *t)
{
    return is_codes(c, t) ? c->storage->written : t->dtype;
}

uint64_t fm_stored_bytes(const struct fm_config *c, const struct fm_tensor *t)
{
    char weight[FM_ST_NAME_BYTES_MAX + 1];
    enum fm_dtype dtype = fm_stored_dtype(c, t);
    if (fm_stored_scales(weight, c, t->name))
        return 0;
    return dtype == t->dtype ? t->size : t->size * fm_storage_growth(c->storage);
}

void fm_stored_add(uint64_t *stored, uint64_t *written, const struct fm_config *c,
                   const struct fm_safetensors *st)
{
    for (size_t i = 0; i < st->count; i++) {
        const struct fm_tensor *t = &st->tensor[i];
        *stored += t->size;
        *written += fm_extra_layer(c, t->name) < 0 ? fm_stored_bytes(c, t) : t->size;
    }
}

int fm_stored_finite(const struct fm_stored *s, const void *raw, size_t first, size_t n,
                     struct fm_err *err)
{
    bool decoded = s->scale && s->tensor->dtype == FM_U8;
    size_t bad = fm_dtype_nonfinite(raw, decoded ? FM_BF16 : s->tensor->dtype, n);
    if (bad == n)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT, "tensor '%s' holds NaN or Inf at element %zu", s->tensor->name,
                   first + bad);
}

void fm_stored_write(void *dst, enum fm_dtype dtype, const void *raw, enum fm_dtype raw_dtype,
                     const struct fm_scales *scales, size_t n)
{
    float wide[1024];
    size_t to = (size_t)fm_dtype_bits(dtype) / 8, from = (size_t)fm_dtype_bits(raw_dtype) / 8;
    for (size_t at = 0; at < n; at += 1024) {
        size_t some = n - at < 1024 ? n - at : 1024;
        if (scales)
            fm_scaled_to_f32(wide, raw, raw_dtype, scales, at, some);
        else
            fm_dtype_to_f32(wide, (const char *)raw + at * from, raw_dtype, some);
        fm_dtype_from_f32((char *)dst + at * to, wide, dtype, some);
    }
}

size_t fm_stored_scale_count(const struct fm_stored *s)
{
    return (size_t)fm_tensor_count(s->scale);
}

int fm_stored_widen(struct fm_scales *scales, float *scale, const struct fm_stored *s,
                    const struct fm_config *c, const void *raw, struct fm_err *err)
{
    size_t n = fm_stored_scale_count(s);
    size_t bad = c->storage->widen(scale, raw, s->scale->dtype, n);
    if (bad < n)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' holds %g at element %zu; a scale is %s",
                       s->scale->name, (double)scale[bad], bad, c->storage->scale_range);
    *scales = (struct fm_scales){.scale = scale,
                                 .count = n,
                                 .columns = (int64_t)s->tensor->shape[1],
                                 .block_rows = c->block_rows,
                                 .block_columns = c->block_columns};
    return FM_OK;
}
