/*
 * In a bundle all experts of a layer have the same size, so an expert's offset is computed from
 * that of its tensor.  The shapes in the headers are checked once.
 *
 * An export has a prefix of each expert's ranked channels, and its widths before any padding are
 * known when the bundle is made.  So digests of the segments between these widths are enough to
 * verify such an export of any mask, without the weights.  They are computed while weights are
 * packed, in the same pass over the bytes.
 */
#include "lib/stage/volumes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/family/extra.h"
#include "lib/stage/stbytes.h"

/* ---- where weights are ---- */

void fm_volumes_member(char name[FM_VOLUMES_NAME_BYTES], int l)
{
    snprintf(name, FM_VOLUMES_NAME_BYTES, FM_MEMBER_WEIGHTS FM_WEIGHTS_LAYER, l);
}

void fm_volumes_tensor(char name[FM_VOLUMES_NAME_BYTES], int l, const struct fm_packed_part *part)
{
    snprintf(name, FM_VOLUMES_NAME_BYTES, "layers.%d.%s", l, part->name);
}

/* Index of a tensor's offset in v->at. */
static size_t place_of(int m, int part)
{
    return (size_t)m * FM_PACKED_PARTS_MAX + (size_t)part;
}

uint64_t fm_volumes_expert(const struct fm_volumes *v, int m, int part, int e)
{
    assert(m >= 0 && m < v->config->M && e >= 0 && e < v->config->E);
    const struct fm_packed *packed = fm_packed_at(&v->packed, m);
    assert(part >= 0 && part < packed->parts);
    uint64_t expert = fm_packed_bytes(packed, &packed->part[part], (uint64_t)v->config->I);
    return v->at[place_of(m, part)] + (uint64_t)e * expert;
}

static int check_part(struct fm_volumes *v, const struct fm_safetensors *st, int m, int part,
                      struct fm_err *err)
{
    int l = v->config->moe[m];
    const struct fm_packed *packed = fm_packed_at(&v->packed, m);
    const struct fm_packed_part *want = &packed->part[part];
    char name[FM_VOLUMES_NAME_BYTES];
    fm_volumes_tensor(name, l, want);
    const struct fm_tensor *t = fm_safetensors_find(st, name);
    if (!t || st->count != (size_t)packed->parts)
        return fm_fail(err, FM_EFORMAT,
                       "holds %zu tensors; gate_up%s down of layer %d%s belong here", st->count,
                       v->config->expert->bias ? ", its biases and" : " and", l,
                       packed->scheme.storage ? " and their scales" : "");
    if (fm_packed_check(want, t, err))
        return err->code;
    v->at[place_of(m, part)] = t->offset;
    return FM_OK;
}

static int open_layer(struct fm_volumes *v, const struct fm_bundle *bundle, int m,
                      struct fm_err *err)
{
    char name[FM_VOLUMES_NAME_BYTES];
    fm_volumes_member(name, v->config->moe[m]);
    const struct fm_member *member = fm_bundle_find(bundle, name);
    if (!member)
        return fm_fail(err, FM_EFORMAT, "member %s is missing; only fm-pack's output has weights",
                       name);
    struct fm_safetensors st = {0};
    int rc = fm_safetensors_open(&st, &bundle->file, member->offset, member->size, err);
    for (int part = 0; part < fm_packed_at(&v->packed, m)->parts && !rc; part++)
        rc = check_part(v, &st, m, part, err);
    fm_safetensors_close(&st);
    return rc ? fm_within(err, "%s", name) : FM_OK;
}

/* Index one of the two members with tensors outside the experts: rest or, if `extra`, extra. */
static int open_others(struct fm_safetensors *st, const struct fm_volumes *v, const char *name,
                       bool extra, const struct fm_bundle *bundle, struct fm_err *err)
{
    const struct fm_member *m = fm_bundle_find(bundle, name);
    if (!m)
        return extra ? FM_OK : fm_fail(err, FM_EFORMAT, "member %s is missing", name);
    int rc = fm_safetensors_open(st, &bundle->file, m->offset, m->size, err);
    for (size_t i = 0; i < st->count && !rc; i++)
        if ((fm_extra_layer(v->config, st->tensor[i].name) >= 0) != extra)
            rc = fm_fail(err, FM_EFORMAT, "tensor '%s' does not belong here", st->tensor[i].name);
    return rc ? fm_within(err, "%s", name) : FM_OK;
}

int fm_volumes_open(struct fm_volumes *v, const struct fm_bundle *bundle,
                    const struct fm_config *config, struct fm_err *err)
{
    *v = (struct fm_volumes){.config = config};
    int rc = fm_packed_read(&v->packed, bundle, config, err);
    if (rc)
        return rc;
    v->at =
        fm_alloc((size_t)config->M * FM_PACKED_PARTS_MAX, sizeof *v->at, "the list of layers", err);
    rc = v->at ? FM_OK : err->code;
    for (int m = 0; m < config->M && !rc; m++)
        rc = open_layer(v, bundle, m, err);
    if (!rc)
        rc = open_others(&v->rest, v, FM_VOLUMES_REST, false, bundle, err);
    if (!rc)
        rc = open_others(&v->extra, v, FM_VOLUMES_EXTRA, true, bundle, err);
    if (rc) {
        fm_within(err, "%s", bundle->file.path);
        fm_volumes_close(v);
    }
    return rc;
}

void fm_volumes_close(struct fm_volumes *v)
{
    free(v->at);
    fm_safetensors_close(&v->rest);
    fm_safetensors_close(&v->extra);
    *v = (struct fm_volumes){0};
}

/* ---- checksums ---- */

#define TENSOR_PREFIX "tensor."

static int compare_bounds(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int32_t whole_groups(const struct fm_segments *seg, int32_t channels)
{
    int32_t group = seg->packed.group;
    return (channels + group - 1) / group * group;
}

/* Make boundaries: 0, the widths, the multiples of FM_SEGMENT_CHANNELS, and I; sorted, each
 * once. */
static int make_bounds(struct fm_segments *seg, const uint32_t *widths, size_t n,
                       struct fm_err *err)
{
    size_t multiples = (size_t)seg->I / FM_SEGMENT_CHANNELS, count = 0;
    seg->bound = fm_alloc(n + multiples + 2, sizeof *seg->bound, "segment boundaries", err);
    if (!seg->bound)
        return err->code;
    seg->bound[count++] = 0;
    for (size_t i = 0; i < n; i++) {
        assert(widths[i] <= (uint32_t)seg->I);
        seg->bound[count++] = whole_groups(seg, (int32_t)widths[i]);
    }
    for (size_t i = 1; i <= multiples; i++)
        seg->bound[count++] = whole_groups(seg, (int32_t)(i * FM_SEGMENT_CHANNELS));
    seg->bound[count++] = seg->I;
    qsort(seg->bound, count, sizeof *seg->bound, compare_bounds);
    int last = 0;
    for (size_t i = 1; i < count; i++)
        if (seg->bound[i] != seg->bound[last])
            seg->bound[++last] = seg->bound[i];
    seg->S = last;
    assert(seg->S > 0 && seg->bound[seg->S] == seg->I); /* I is a multiple of the channel group */
    return FM_OK;
}

static int copy_tensors(struct fm_segments *seg, const struct fm_tensor *rest, size_t tensors,
                        struct fm_err *err)
{
    seg->tensor = fm_alloc(tensors, sizeof *seg->tensor, "segment checksums", err);
    if (!seg->tensor)
        return err->code;
    for (size_t i = 0; i < tensors; i++) {
        struct fm_tensor *t = &seg->tensor[i].t;
        *t = rest[i];
        t->name = fm_strdup(rest[i].name, err);
        if (!t->name)
            return err->code;
        seg->tensors = i + 1;
    }
    fm_names_sort(seg->tensor, tensors, sizeof *seg->tensor);
    return FM_OK;
}

static int alloc_experts(struct fm_segments *seg, struct fm_err *err)
{
    size_t n = 0;
    for (int i = 0; i < seg->packed.forms; i++)
        seg->parts =
            seg->packed.form[i].parts > seg->parts ? seg->packed.form[i].parts : seg->parts;
    if (!fm_mul(&n, (size_t)seg->M * (size_t)seg->parts, (size_t)seg->E) ||
        !fm_mul(&n, n, (size_t)seg->S))
        return fm_fail(err, FM_ENOMEM, "segment checksums do not fit in memory");
    seg->expert = fm_alloc(n, sizeof *seg->expert, "segment checksums", err);
    return seg->expert ? FM_OK : err->code;
}

/* Set the sizes of the model that the checksums are for. */
static struct fm_segments segments_of(const struct fm_config *c)
{
    assert(c->M > 0 && c->E > 0 && c->I > 0);
    return (struct fm_segments){.M = c->M, .E = c->E, .I = c->I, .config = c};
}

int fm_segments_init(struct fm_segments *seg, const struct fm_config *config,
                     const struct fm_packed_layers *packed, enum fm_dtype dtype,
                     const uint32_t *widths, size_t n, const struct fm_tensor *rest, size_t tensors,
                     struct fm_err *err)
{
    *seg = segments_of(config);
    seg->packed = *packed;
    seg->dtype = dtype;
    int rc = FM_OK;
    if (make_bounds(seg, widths, n, err) || copy_tensors(seg, rest, tensors, err) ||
        alloc_experts(seg, err)) {
        rc = err->code;
        fm_segments_release(seg);
    }
    return rc;
}

void fm_segments_release(struct fm_segments *seg)
{
    for (size_t i = 0; i < seg->tensors; i++)
        free((char *)seg->tensor[i].t.name);
    free(seg->tensor);
    free(seg->expert);
    free(seg->bound);
    *seg = (struct fm_segments){0};
}

struct fm_digest *fm_segments_expert(const struct fm_segments *seg, int m, int part, int e)
{
    assert(m >= 0 && m < seg->M && part >= 0 && part < seg->parts && e >= 0 && e < seg->E);
    size_t tensor = (size_t)m * (size_t)seg->parts + (size_t)part;
    size_t row = tensor * (size_t)seg->E + (size_t)e;
    return seg->expert + row * (size_t)seg->S;
}

int fm_segments_at(const struct fm_segments *seg, uint32_t width)
{
    for (int s = 0; s <= seg->S; s++)
        if ((uint32_t)seg->bound[s] == width)
            return s;
    return -1;
}

struct fm_segment_tensor *fm_segments_find(const struct fm_segments *seg, const char *name)
{
    return fm_names_find(seg->tensor, seg->tensors, sizeof *seg->tensor, name);
}

struct fm_segment_tensor *fm_segments_match(const struct fm_segments *seg,
                                            const struct fm_tensor *t)
{
    struct fm_segment_tensor *s = fm_segments_find(seg, t->name);
    return s && fm_tensor_like(&s->t, t) ? s : NULL;
}

void fm_segments_digest(struct fm_digest *digest, const struct fm_segments *seg, int m, int count,
                        const void *rows, size_t group_bytes)
{
    assert(count >= 0 && count <= seg->S);
    const char *byte = rows;
    size_t group = (size_t)fm_packed_at(&seg->packed, m)->group;
    for (int s = 0; s < count; s++) {
        size_t from = (size_t)seg->bound[s] / group, to = (size_t)seg->bound[s + 1] / group;
        digest[s] = fm_digest_of(byte + from * group_bytes, (to - from) * group_bytes);
    }
}

/* ---- writing them ---- */

/* Number of entries of the file. */
static size_t count_entries(const struct fm_segments *seg)
{
    size_t n = 1 + seg->tensors;
    for (int m = 0; m < seg->M; m++)
        n += (size_t)fm_packed_at(&seg->packed, m)->parts;
    return n;
}

/* List the entries of the file, in any order, and its metadata. */
static void list_entries(const struct fm_segments *seg, struct fm_stbytes *s, const char **metadata,
                         char (*text)[FM_TENSOR_TEXT])
{
    const uint64_t bounds = (uint64_t)seg->S + 1, one = sizeof(struct fm_digest);
    const uint64_t shape[3] = {(uint64_t)seg->E, (uint64_t)seg->S, sizeof(struct fm_digest)};
    size_t pairs = 0;
    fm_stbytes_add(s, FM_I32, 1, &bounds, seg->bound, "boundaries");
    for (int m = 0; m < seg->M; m++)
        for (int p = 0; p < fm_packed_at(&seg->packed, m)->parts; p++)
            fm_stbytes_add(s, FM_U8, 3, shape, fm_segments_expert(seg, m, p, 0), "layers.%d.%s",
                           seg->config->moe[m], fm_packed_at(&seg->packed, m)->part[p].name);
    metadata[pairs++] = "fm.kind";
    metadata[pairs++] = "segments";
    metadata[pairs++] = "fm.dtype";
    metadata[pairs++] = fm_dtype_name(seg->dtype);
    for (size_t i = 0; i < seg->tensors; i++) {
        const struct fm_segment_tensor *t = &seg->tensor[i];
        fm_tensor_describe(text[i], &t->t);
        fm_stbytes_add(s, FM_U8, 1, &one, &t->digest, TENSOR_PREFIX "%s", t->t.name);
        metadata[pairs++] = s->name[s->count - 1];
        metadata[pairs++] = text[i];
    }
    assert(s->count == count_entries(seg)); /* read_experts() expects that many */
}

int fm_segments_write(const struct fm_segments *seg, void **bytes, size_t *size, struct fm_err *err)
{
    struct fm_stbytes s = {0};
    char(*text)[FM_TENSOR_TEXT] = fm_alloc(seg->tensors + 1, sizeof *text, "checksums", err);
    const char **metadata = fm_alloc(2 * seg->tensors + 5, sizeof *metadata, "checksums", err);
    int rc = FM_OK;
    if (!text || !metadata || fm_stbytes_init(&s, count_entries(seg), err)) {
        rc = err->code;
    } else {
        list_entries(seg, &s, metadata, text);
        rc = fm_stbytes_pack(&s, metadata, bytes, size, err);
    }
    fm_stbytes_release(&s);
    free(metadata);
    free(text);
    return rc;
}

/* ---- reading them ---- */

/* Read an entry of exactly that dtype and shape into dst. */
static int read_entry(const struct fm_stmember *s, const char *name, enum fm_dtype dtype,
                      const uint64_t *shape, int dims, void *dst, struct fm_err *err)
{
    const void *data = fm_stmember_get(s, dtype, dims, shape, err, "%s", name);
    if (!data)
        return err->code;
    memcpy(dst, data, (size_t)fm_safetensors_find(&s->st, name)->size);
    return FM_OK;
}

static int read_bounds(struct fm_segments *seg, const struct fm_stmember *s, struct fm_err *err)
{
    const struct fm_tensor *t = fm_safetensors_find(&s->st, "boundaries");
    if (!t || t->dims != 1 || t->shape[0] < 2 || t->shape[0] > (uint64_t)seg->I + 1)
        return fm_fail(err, FM_EFORMAT, "no boundaries between 0 and %d", seg->I);
    seg->S = (int)t->shape[0] - 1;
    seg->bound = fm_alloc(t->shape[0], sizeof *seg->bound, "segment boundaries", err);
    if (!seg->bound)
        return err->code;
    int rc = read_entry(s, "boundaries", FM_I32, t->shape, 1, seg->bound, err);
    if (rc)
        return rc;
    for (int i = 0; i < seg->S; i++)
        if (seg->bound[i + 1] <= seg->bound[i])
            return fm_fail(err, FM_EFORMAT, "boundaries do not increase (entry %d is %d)", i + 1,
                           seg->bound[i + 1]);
    for (int i = 0; i <= seg->S; i++)
        if (seg->bound[i] % seg->packed.group != 0)
            return fm_fail(err, FM_EFORMAT, "boundary %d is %d, inside a group of %d channels", i,
                           seg->bound[i], seg->packed.group);
    if (seg->bound[0] != 0 || seg->bound[seg->S] != seg->I)
        return fm_fail(err, FM_EFORMAT, "boundaries go from %d to %d instead of 0 to %d",
                       seg->bound[0], seg->bound[seg->S], seg->I);
    return FM_OK;
}

/* Parse "BF16 512 64", exactly as fm_tensor_describe writes it, into dtype and shape. */
static int parse_description(struct fm_tensor *t, const char *text, struct fm_err *err)
{
    char written[FM_TENSOR_TEXT];
    int dtype = fm_dtype_from_name(text, strcspn(text, " "));
    for (const char *at = text; (at = strchr(at, ' ')) && t->dims < FM_ST_DIMS_MAX; at++)
        t->shape[t->dims++] = strtoull(at + 1, NULL, 10);
    t->dtype = dtype < 0 ? FM_U8 : (enum fm_dtype)dtype;
    fm_tensor_describe(written, t);
    if (strcmp(written, text) != 0)
        return fm_fail(err, FM_EFORMAT, "the type of tensor '%s' cannot be read", t->name);
    return fm_tensor_fit(t)
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "tensor '%s': its shape is too large", t->name);
}

/* Read every entry whose name begins with TENSOR_PREFIX, in the index's order, by name. */
static int read_tensors(struct fm_segments *seg, const struct fm_stmember *s, struct fm_err *err)
{
    const struct fm_safetensors *st = &s->st;
    seg->tensor = fm_alloc(st->count, sizeof *seg->tensor, "segment checksums", err);
    if (!seg->tensor)
        return err->code;
    const uint64_t shape[1] = {sizeof(struct fm_digest)};
    for (size_t i = 0; i < st->count; i++) {
        const char *name = st->tensor[i].name;
        if (strncmp(name, TENSOR_PREFIX, strlen(TENSOR_PREFIX)) != 0)
            continue;
        struct fm_segment_tensor *t = &seg->tensor[seg->tensors];
        int rc = read_entry(s, name, FM_U8, shape, 1, &t->digest, err);
        if (rc)
            return rc;
        t->t.name = fm_strdup(name + strlen(TENSOR_PREFIX), err);
        if (!t->t.name)
            return err->code;
        seg->tensors++;
        const char *text = fm_safetensors_metadata(st, name);
        rc = parse_description(&t->t, text ? text : "", err);
        if (rc)
            return rc;
    }
    return FM_OK;
}

/* Read the digests of all experts; the file must have no entries other than the known ones. */
static int read_experts(struct fm_segments *seg, const struct fm_stmember *s, struct fm_err *err)
{
    int rc = alloc_experts(seg, err);
    const uint64_t shape[3] = {(uint64_t)seg->E, (uint64_t)seg->S, sizeof(struct fm_digest)};
    for (int m = 0; m < seg->M && !rc; m++) {
        const struct fm_packed *packed = fm_packed_at(&seg->packed, m);
        for (int p = 0; p < packed->parts && !rc; p++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%d.%s", seg->config->moe[m], packed->part[p].name);
            rc = read_entry(s, name, FM_U8, shape, 3, fm_segments_expert(seg, m, p, 0), err);
        }
    }
    size_t known = count_entries(seg);
    if (!rc && s->st.count != known)
        return fm_fail(err, FM_EFORMAT, "%zu tensors, expected %zu", s->st.count, known);
    return rc;
}

static int read_index(struct fm_segments *seg, const struct fm_stmember *s, struct fm_err *err)
{
    const char *name = fm_safetensors_metadata(&s->st, "fm.dtype");
    int dtype = name ? fm_dtype_from_name(name, strlen(name)) : -1;
    if (dtype < 0)
        return fm_fail(err, FM_EFORMAT, "metadata lacks a known fm.dtype");
    seg->dtype = (enum fm_dtype)dtype;
    if (read_bounds(seg, s, err) || read_tensors(seg, s, err))
        return err->code;
    return read_experts(seg, s, err);
}

int fm_segments_read(struct fm_segments *seg, const struct fm_bundle *bundle,
                     const struct fm_config *config, struct fm_err *err)
{
    struct fm_stmember s;
    *seg = segments_of(config);
    if (!fm_bundle_find(bundle, FM_MEMBER_SEGMENTS))
        return fm_fail(err, FM_EFORMAT, "%s: no member %s; it is not a bundle of fm-pack",
                       bundle->file.path, FM_MEMBER_SEGMENTS);
    if (fm_packed_read(&seg->packed, bundle, config, err))
        return err->code;
    int rc = fm_stmember_open(&s, bundle, FM_MEMBER_SEGMENTS, "segments", err);
    if (rc)
        return fm_within(err, "%s", bundle->file.path);
    rc = read_index(seg, &s, err);
    if (rc) {
        fm_within(err, "%s: %s", bundle->file.path, FM_MEMBER_SEGMENTS);
        fm_segments_release(seg);
    }
    fm_stmember_close(&s);
    return rc;
}
