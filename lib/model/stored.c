/*
 * Scales follow their weight by name alone: every tensor whose name ends as the storage says scales
 * belong to the tensor in front of that.  A weight that lacks its scales, or scales that lack their
 * weight, are a checkpoint that was damaged or renamed, and would be read wrong without a word.
 */
#include "lib/model/stored.h"

#include <stdio.h>
#include <string.h>

#include "lib/block/storage.h"
#include "lib/family/extra.h"

bool fm_stored_codes(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *c,
                     const struct fm_tensor *t)
{
    if (!c->storage || t->dtype != c->storage->codes)
        return false;
    int n = snprintf(name, FM_ST_NAME_BYTES_MAX + 1, "%s%s", t->name, c->storage->scale);
    if (n > FM_ST_NAME_BYTES_MAX) /* no tensor has a name as long as that */
        name[0] = '\0';
    return true;
}

bool fm_stored_scales(char weight[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *c,
                      const char *name)
{
    size_t len = strlen(name), n = c->storage ? strlen(c->storage->scale) : 0;
    if (n == 0 || len <= n || strcmp(name + len - n, c->storage->scale) != 0)
        return false;
    snprintf(weight, FM_ST_NAME_BYTES_MAX + 1, "%.*s", (int)(len - n), name);
    return true;
}

int fm_stored_check_scaled(const struct fm_config *c, const char *scales,
                           const struct fm_tensor *weight, struct fm_err *err)
{
    if (weight && weight->dtype == c->storage->codes)
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
    if (!c->storage || t->dtype != c->storage->codes)
        return FM_OK;
    if (!scale)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is %s, and its scales '%s%s' are missing",
                       t->name, fm_dtype_name(t->dtype), t->name, c->storage->scale);
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

enum fm_dtype fm_stored_dtype(const struct fm_config *c, const struct fm_tensor *t)
{
    return c->storage && t->dtype == c->storage->codes ? c->storage->written : t->dtype;
}

uint64_t fm_stored_bytes(const struct fm_config *c, const struct fm_tensor *t)
{
    char weight[FM_ST_NAME_BYTES_MAX + 1];
    enum fm_dtype dtype = fm_stored_dtype(c, t);
    if (fm_stored_scales(weight, c, t->name))
        return 0;
    return dtype == t->dtype ? t->size : fm_tensor_count(t) * (uint64_t)fm_dtype_bits(dtype) / 8;
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
    size_t bad = fm_dtype_nonfinite(raw, s->tensor->dtype, n);
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
