/*
 * Scales are matched to their weight by name only: a tensor whose name has the storage's suffix for
 * scales belongs to the tensor with the rest of the name.  If a weight lacks its scales, or scales
 * lack their weight, the checkpoint was damaged or its tensors were renamed; it is refused, because
 * it would be read wrongly.
 */
#include "lib/model/stored.h"

#include <assert.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "formats/quant/quant.h"
#include "lib/base/names.h"
#include "lib/base/pool.h"
#include "lib/block/gqa.h"
#include "lib/family/extra.h"

/* Copy `name` with its suffix `from` replaced by that one's stem and `to`; "" if the result is
 * longer than any tensor's name. */
static void turn_end(char turned[FM_ST_NAME_BYTES_MAX + 1], const char *name,
                     const struct fm_carried_end *from, const char *to)
{
    int n = snprintf(turned, FM_ST_NAME_BYTES_MAX + 1, "%.*s%s%s",
                     (int)(strlen(name) - strlen(from->end)), name, from->stem, to);
    if (n > FM_ST_NAME_BYTES_MAX)
        turned[0] = '\0';
}

static void turn(char turned[FM_ST_NAME_BYTES_MAX + 1], const char *name, const char *from,
                 const char *to)
{
    turn_end(turned, name, &(struct fm_carried_end){from, ""}, to);
}

/* The role of a tensor; *end has the suffix of its name that shows it, or "". */
static enum fm_stored_role role_of(struct fm_carried_end *end, const struct fm_storage *s,
                                   const struct fm_tensor *t)
{
    *end = (struct fm_carried_end){"", ""};
    if (!s)
        return FM_STORED_VALUES;
    const char *const ends[] = {s->scale_end, s->factor_end, s->zero_end, s->shape_end};
    for (int i = 0; i < 4; i++)
        if (ends[i] && fm_ends_with(t->name, end->end = ends[i]))
            return (enum fm_stored_role)(FM_STORED_SCALE + i);
    for (const struct fm_carried_end *other = s->carried; other && other->end; other++) {
        *end = *other;
        if (fm_ends_with(t->name, end->end))
            return FM_STORED_CARRIED;
    }
    bool named = strcmp(s->weight, s->codes_end) != 0; /* else only the dtype distinguishes them */
    bool codes = fm_ends_with(t->name, s->codes_end) && (named || t->dtype == s->codes);
    *end = (struct fm_carried_end){codes ? s->codes_end : "", ""};
    return codes ? FM_STORED_CODES : FM_STORED_VALUES;
}

int fm_stored_chunks(const struct fm_config *c)
{
    return c->gqa ? c->gqa->chunks : 0;
}

void fm_stored_see(struct fm_stored *s, const struct fm_config *c, enum fm_naming naming)
{
    char name[FM_ST_NAME_BYTES_MAX + 1];
    struct fm_carried_end end;
    s->scheme = fm_config_scheme(c, s->tensor->name);
    s->role = role_of(&end, s->scheme.storage, s->tensor);
    turn_end(name, s->tensor->name, &end, end.end[0] ? s->scheme.storage->weight : "");
    s->weight =
        fm_weights_find(c, fm_stored_belongs(s) ? FM_NAMING_STOCK : naming, name, &s->l, &s->e);
    if (!s->weight)
        s->l = s->e = -1;
    if (s->weight && s->weight->part == FM_PART_HEADS)
        s->chunks = fm_stored_chunks(c);
    s->extra = fm_extra_layer(c, s->tensor->name) >= 0;
}

bool fm_stored_see_twin(struct fm_stored *s, const struct fm_config *c)
{
    char name[FM_ST_NAME_BYTES_MAX + 1], twin[FM_ST_NAME_BYTES_MAX + 1];
    struct fm_carried_end end;
    role_of(&end, s->scheme.storage, s->tensor);
    turn_end(name, s->tensor->name, &end, end.end[0] ? s->scheme.storage->weight : "");
    if (!fm_extra_twin(twin, c, name))
        return false;
    s->weight = fm_weights_find(c, FM_NAMING_STOCK, twin, &s->l, &s->e);
    if (!s->weight) { /* its experts may be fused although the decoder's are not, or vice versa */
        struct fm_config other = *c;
        other.fused = !c->fused;
        s->weight = fm_weights_find(&other, FM_NAMING_STOCK, twin, &s->l, &s->e);
    }
    return s->weight;
}

/* Find the tensor that has the name of codes with a different suffix. */
static const struct fm_tensor *find_end(const struct fm_file **file, const struct fm_stored *s,
                                        const char *end, fm_stored_find *find, const void *in)
{
    char name[FM_ST_NAME_BYTES_MAX + 1];
    if (!end)
        return NULL;
    turn(name, s->tensor->name, s->scheme.storage->codes_end, end);
    const struct fm_stored *found = find(in, name);
    *file = found ? found->file : NULL;
    return found ? found->tensor : NULL;
}

void fm_stored_link(struct fm_stored *s, fm_stored_find *find, const void *in)
{
    const struct fm_storage *storage = s->scheme.storage;
    if (!fm_stored_is_codes(s))
        return;
    s->scale = find_end(&s->scale_file, s, storage->scale_end, find, in);
    s->factor = find_end(&s->factor_file, s, storage->factor_end, find, in);
    s->zero = find_end(&s->zero_file, s, storage->zero_end, find, in);
    s->shape = find_end(&s->shape_file, s, storage->shape_end, find, in);
}

int fm_stored_check_pair(const struct fm_stored *s, fm_stored_find *find, const void *in,
                         struct fm_err *err)
{
    char name[FM_ST_NAME_BYTES_MAX + 1];
    const struct fm_storage *storage = s->scheme.storage;
    const char *own = s->tensor->name;
    struct fm_carried_end end;
    role_of(&end, storage, s->tensor);
    if (s->role == FM_STORED_VALUES)
        return FM_OK;
    if (fm_stored_belongs(s)) {
        turn_end(name, own, &end, storage->codes_end);
        const struct fm_stored *codes = find(in, name);
        if (codes && fm_stored_is_codes(codes))
            return FM_OK;
        return fm_fail(err, FM_EFORMAT, "tensor '%s' belongs to a tensor of codes, which is %s%s",
                       own, codes ? fm_dtype_name(codes->tensor->dtype) : "missing",
                       codes ? " and holds no codes" : "");
    }
    turn_end(name, own, &end, storage->weight);
    if (strcmp(storage->weight, end.end) == 0 || !find(in, name))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT, "tensor '%s' exists twice: unquantised, and as '%s'", name,
                   own);
}

/* FM_ECONFIG, with a list of dtypes, unless scales may have that dtype. */
static int check_scale_dtype(const struct fm_storage *s, const struct fm_tensor *t,
                             struct fm_err *err)
{
    char list[96] = "";
    size_t at = 0;
    unsigned left = s->scale_dtypes;
    if (left & 1u << t->dtype)
        return FM_OK;
    for (int d = 0; d < FM_DTYPES; d++) {
        if (!(left & 1u << d))
            continue;
        left &= ~(1u << d);
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s",
                               at == 0 ? ""
                               : left  ? ", "
                                       : " or ",
                               fm_dtype_name((enum fm_dtype)d));
    }
    return fm_fail(err, FM_ECONFIG, "tensor '%s' is %s; scales must be %s", t->name,
                   fm_dtype_name(t->dtype), list);
}

/* FM_EFORMAT unless a tensor of scales is one number, (1) or a scalar. */
static int check_number(const struct fm_tensor *t, struct fm_err *err)
{
    char has[192];
    if (t->dims == 0 || (t->dims == 1 && t->shape[0] == 1))
        return FM_OK;
    fm_weights_print_shape(has, sizeof has, t->shape, t->dims);
    return fm_fail(err, FM_EFORMAT,
                   "tensor '%s' has shape %s, but a scale for the whole matrix is one number",
                   t->name, has);
}

/* Whether the first dimension of a tensor of codes is that of experts. */
static bool has_experts(const struct fm_stored *s)
{
    return s->scheme.storage->turned || fm_stored_is_fused(s);
}

/* Rows and columns of a matrix of codes that is not empty, or of each of them. */
static uint64_t rows_of(const struct fm_stored *s)
{
    return s->tensor->shape[has_experts(s)];
}

static uint64_t columns_of(const struct fm_stored *s)
{
    return fm_stored_count(s) / rows_of(s) / (has_experts(s) ? s->tensor->shape[0] : 1);
}

/* FM_EFORMAT if the factor is missing, or if the factor or the shape does not fit the codes. */
static int check_single(const struct fm_stored *s, struct fm_err *err)
{
    const struct fm_storage *storage = s->scheme.storage;
    if (storage->factor_end && !s->factor)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' has no %s", s->tensor->name,
                       storage->factor_end);
    uint64_t experts = has_experts(s) ? s->tensor->shape[0] : 1;
    if (s->factor && (s->factor->dtype != FM_F32 || fm_tensor_count(s->factor) != experts))
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is not one number of type F32%s",
                       s->factor->name, has_experts(s) ? " for each expert" : "");
    if (storage->zero_end && !s->zero)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' has no %s", s->tensor->name,
                       storage->zero_end);
    if (s->zero && s->zero->dtype != FM_U8)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is %s; zero points must be U8", s->zero->name,
                       fm_dtype_name(s->zero->dtype));
    if (s->zero && fm_weights_check_shape(s->zero, s->scale->shape, 2, "its scales require", err))
        return err->code;
    if (s->shape && (s->shape->dtype != FM_I64 || fm_tensor_count(s->shape) != 2))
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is not two numbers of type I64",
                       s->shape->name);
    if (!s->shape)
        return FM_OK;
    int64_t said[2];
    if (fm_tensor_read(s->shape, s->shape_file, 0, said, sizeof said, err))
        return fm_within(err, "tensor '%s'", s->shape->name);
    uint64_t rows = rows_of(s), columns = columns_of(s);
    if ((uint64_t)said[0] == rows && (uint64_t)said[1] == columns)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "tensor '%s' gives the shape %lld x %lld, but the codes have %llu x %llu",
                   s->shape->name, (long long)said[0], (long long)said[1], (unsigned long long)rows,
                   (unsigned long long)columns);
}

int fm_stored_check(const struct fm_stored *s, struct fm_err *err)
{
    const struct fm_tensor *t = s->tensor;
    const struct fm_scheme scheme = s->scheme;
    const struct fm_storage *storage = scheme.storage;
    char name[FM_ST_NAME_BYTES_MAX + 1], who[64];
    if (!fm_stored_is_codes(s))
        return FM_OK;
    if (t->dtype != storage->codes)
        return fm_fail(err, FM_ECONFIG, "tensor '%s' is %s; codes of %s must be %s", t->name,
                       fm_dtype_name(t->dtype), storage->name, fm_dtype_name(storage->codes));
    turn(name, t->name, storage->codes_end, storage->scale_end);
    if (!s->scale)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is %s, but its scales '%s' are missing",
                       t->name, fm_dtype_name(t->dtype), name);
    int experts = has_experts(s), dims = 2 + experts + storage->turned;
    if (t->dims != dims)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is %s with %d dimensions; codes have %d",
                       t->name, fm_dtype_name(t->dtype), t->dims, dims);
    if (t->size == 0)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' of codes is empty", t->name);
    int rc = check_scale_dtype(storage, s->scale, err);
    if (rc)
        return rc;
    if (check_single(s, err))
        return err->code;
    if (scheme.block_rows == 0 && !experts)
        return check_number(s->scale, err);
    uint64_t chunks = s->chunks ? (uint64_t)s->chunks : 1;
    const uint64_t want[] = {t->shape[0],
                             chunks * fm_scheme_across(rows_of(s) / chunks, scheme.block_rows),
                             fm_scheme_across(columns_of(s), scheme.block_columns)};
    if (s->chunks)
        snprintf(who, sizeof who, "blocks of %d x %d in each of %d chunks require",
                 scheme.block_rows, scheme.block_columns, s->chunks);
    else if (scheme.block_columns)
        snprintf(who, sizeof who, "blocks of %d x %d require", scheme.block_rows,
                 scheme.block_columns);
    else
        snprintf(who, sizeof who, "a scale for each %s requires",
                 scheme.block_rows ? "row" : "expert");
    return fm_weights_check_shape(s->scale, want + !experts, 2 + experts, who, err);
}

/* The part as which a weight's codes are stored if they are transposed; -1 for other parts. */
static int turned(enum fm_weight_part part)
{
    return part == FM_PART_GATE_UP_T ? (int)FM_PART_GATE_UP
           : part == FM_PART_DOWN_T  ? (int)FM_PART_DOWN
                                     : -1;
}

/* FM_EFORMAT unless a row of that many values is a whole number of blocks. */
static int check_whole(const struct fm_tensor *t, struct fm_scheme scheme, uint64_t columns,
                       struct fm_err *err)
{
    int block = scheme.block_columns;
    int unit = fm_dtype_bits(t->dtype) / fm_storage_bits(scheme.storage);
    block = block > 0 ? block : 1;
    block = block % unit == 0 ? block : unit; /* also a whole number of words */
    if (!scheme.storage->whole || columns % (uint64_t)block == 0)
        return FM_OK;
    return fm_fail(
        err, FM_EFORMAT,
        "tensor '%s': by config.json its rows have %llu values, which is not a multiple of %d",
        t->name, (unsigned long long)columns, block);
}

int fm_stored_check_weight(enum fm_weight_part *part, const struct fm_stored *s,
                           const struct fm_config *c, const struct fm_weight *w, int l,
                           uint64_t channels, struct fm_err *err)
{
    const struct fm_scheme scheme = s->scheme;
    const struct fm_storage *storage = scheme.storage;
    const struct fm_tensor *t = s->tensor;
    uint64_t own[FM_ST_DIMS_MAX] = {0};
    *part = w->part;
    if (!s->scale && s->chunks > 1)
        return fm_fail(err, FM_ECONFIG,
                       "tensor '%s' has no scales, and programs differ in the order of its rows; "
                       "store q_proj, k_proj and v_proj instead",
                       t->name);
    if (!s->scale)
        return fm_weights_check(c, w, t, storage, l, channels, err);
    int dims = fm_weights_shape(own, c, w, l, channels), as = turned(w->part);
    uint64_t bits = (uint64_t)fm_storage_bits(storage);
    bool fused = fm_stored_is_fused(s), columns = fused && as >= 0;
    if (dims != 2 + fused || storage->turned != columns)
        return fm_fail(err, FM_ECONFIG, "tensor '%s' is %s; in this model only %s can be", t->name,
                       storage->name, storage->turned ? "experts' matrices" : "matrices");
    uint64_t *row = &own[columns ? 1 : dims - 1];
    int rc = check_whole(t, scheme, *row, err);
    if (rc)
        return rc;
    if (!columns) {
        *row = *row * bits / (uint64_t)fm_dtype_bits(t->dtype);
        return fm_weights_check_shape(t, own, dims, "config.json requires", err);
    }
    *part = (enum fm_weight_part)as;
    uint64_t block = (uint64_t)scheme.block_columns;
    const uint64_t want[] = {own[0], own[2], *row / block, block * bits / 8};
    return fm_weights_check_shape(t, want, 4, "config.json requires", err);
}

enum fm_weight_part fm_stored_part(const struct fm_storage *storage, enum fm_weight_part part)
{
    int as = turned(part);
    return storage->turned && as >= 0 ? (enum fm_weight_part)as : part;
}

void fm_stored_name(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_storage *storage,
                    const char *weight, const char *end)
{
    turn(name, weight, storage->weight, end);
}

int fm_stored_shape(uint64_t shape[FM_ST_DIMS_MAX], const struct fm_scheme *scheme,
                    const struct fm_tensor *plain, int plane)
{
    const struct fm_storage *s = scheme->storage;
    uint64_t bits = (uint64_t)fm_storage_bits(s);
    int rows = plain->dims - 2, columns = plain->dims - 1; /* dimensions */
    shape[0] = plain->shape[0];
    if (!s->turned) {
        shape[rows] =
            plane ? fm_scheme_across(plain->shape[rows], scheme->block_rows) : plain->shape[rows];
        shape[columns] = plane ? fm_scheme_across(plain->shape[columns], scheme->block_columns)
                               : plain->shape[columns] * bits / (uint64_t)fm_dtype_bits(s->codes);
        return plain->dims;
    }
    shape[1] = plain->shape[2];
    shape[2] = plain->shape[1] / (uint64_t)scheme->block_columns;
    shape[3] = (uint64_t)scheme->block_columns * bits / 8;
    return plane ? 3 : 4;
}

int fm_stored_bits(const struct fm_stored *s)
{
    return fm_stored_is_codes(s) ? fm_storage_bits(s->scheme.storage)
                                 : fm_dtype_bits(s->tensor->dtype);
}

uint64_t fm_stored_count(const struct fm_stored *s)
{
    return 8 * s->tensor->size / (uint64_t)fm_stored_bits(s);
}

void fm_stored_values(struct fm_tensor *values, char name[FM_ST_NAME_BYTES_MAX + 1],
                      const struct fm_stored *s)
{
    const struct fm_storage *storage = s->scheme.storage;
    *values = *s->tensor;
    if (!fm_stored_is_codes(s))
        return;
    turn(name, values->name, storage->codes_end, storage->weight);
    values->name = name;
    values->dtype = storage->written;
    values->size = fm_stored_bytes(s);
    values->dims -= storage->turned;
    values->shape[values->dims - 1] *=
        storage->turned ? (uint64_t)s->scheme.block_columns
                        : (uint64_t)(fm_dtype_bits(storage->codes) / fm_storage_bits(storage));
}

enum fm_dtype fm_stored_dtype(const struct fm_stored *s)
{
    return fm_stored_is_codes(s) ? s->scheme.storage->written : s->tensor->dtype;
}

uint64_t fm_stored_bytes(const struct fm_stored *s)
{
    if (fm_stored_belongs(s))
        return 0;
    return fm_stored_count(s) * (uint64_t)fm_dtype_bits(fm_stored_dtype(s)) / 8;
}

int fm_stored_finite(const struct fm_stored *s, const void *raw, size_t first, size_t n,
                     struct fm_err *err)
{
    if (fm_stored_is_codes(s) && fm_stored_bits(s) < 8)
        return FM_OK; /* every code is a finite number */
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
            fm_scaled_to_f32(wide, raw, scales, at, some);
        else
            fm_dtype_to_f32(wide, (const char *)raw + at * from, raw_dtype, some);
        fm_dtype_from_f32((char *)dst + at * to, wide, dtype, some);
    }
}

int fm_stored_factor(float *factor, const struct fm_stored *s, int e, struct fm_err *err)
{
    *factor = 1;
    if (!s->factor)
        return FM_OK;
    uint64_t at = e < 0 ? 0 : (uint64_t)e * sizeof *factor;
    if (fm_tensor_read(s->factor, s->factor_file, at, factor, sizeof *factor, err))
        return fm_within(err, "tensor '%s'", s->factor->name);
    return fm_stored_check_factor(*factor, s->factor->name, err);
}

int fm_stored_check_factor(float factor, const char *name, struct fm_err *err)
{
    if (factor > 0 && factor <= FLT_MAX)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT, "tensor '%s' holds %g; it must be more than 0 and finite", name,
                   (double)factor);
}

/* Zero points [first, first + n), from whose numbers the offset of INT4 is subtracted. */
static int read_zeros(float *zero, const struct fm_stored *s, size_t first, size_t n,
                      struct fm_err *err)
{
    struct fm_mark mark = fm_scratch_mark();
    uint8_t *bytes = fm_scratch(n);
    int rc = fm_tensor_read(s->zero, s->zero_file, first, bytes, n, err);
    for (size_t i = 0; i < n && !rc; i++) {
        zero[i] = (float)bytes[i] - 8;
        if (bytes[i] > 15)
            rc = fm_fail(err, FM_EFORMAT, "zero point %zu is %d; it is at most 15", first + i,
                         bytes[i]);
    }
    fm_scratch_release(mark);
    return rc ? fm_within(err, "tensor '%s'", s->zero->name) : FM_OK;
}

int fm_stored_widen(struct fm_scales *scales, float *scale, const struct fm_stored *s,
                    const void *raw, size_t first, size_t count, float factor, struct fm_err *err)
{
    const struct fm_scheme scheme = s->scheme;
    const struct fm_storage *storage = scheme.storage;
    /* The difference of a code and its zero point can be almost twice the largest code. */
    float most = fm_code_scale_max(storage->code) / (storage->zero_end ? 2 : 1);
    int64_t rows = (int64_t)rows_of(s), columns = (int64_t)columns_of(s);
    assert(s->scale && first + count <= fm_tensor_count(s->scale)); /* fm_stored_check */
    fm_storage_scales(scale, storage, raw, s->scale->dtype, count, factor);
    for (size_t i = 0; i < count; i++)
        if (!(scale[i] > 0 || (storage->zeros && scale[i] == 0)) || scale[i] > most)
            return fm_fail(err, FM_EFORMAT,
                           "tensor '%s' holds %g at element %zu; a scale is %s and at most %.2g",
                           s->scale->name, (double)scale[i], first + i,
                           storage->zeros ? "not negative" : "more than 0", (double)most);
    float *zero = s->zero ? fm_scratch(count * sizeof *zero) : NULL;
    if (zero && read_zeros(zero, s, first, count, err))
        return err->code;
    *scales =
        (struct fm_scales){.scale = scale,
                           .zero = zero,
                           .count = count,
                           .columns = columns,
                           .block_rows = scheme.block_rows ? scheme.block_rows : rows,
                           .block_columns = scheme.block_columns ? scheme.block_columns : columns,
                           .chunk_rows = s->chunks ? rows / s->chunks : 0,
                           .code = storage->code};
    return FM_OK;
}
