/*
 * Typed members fit into memory and have several readers.  So there is one way to build them and
 * one way to read them: by name, dtype and shape, with a full error sentence for each mismatch.
 */
#include "lib/stage/stbytes.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

int fm_stbytes_init(struct fm_stbytes *s, size_t capacity, struct fm_err *err)
{
    *s = (struct fm_stbytes){.capacity = capacity};
    s->tensor = fm_alloc(capacity, sizeof *s->tensor, "tensors", err);
    s->name = fm_alloc(capacity, sizeof *s->name, "tensor names", err);
    s->data = fm_alloc(capacity, sizeof *s->data, "tensors", err);
    if (s->tensor && s->name && s->data)
        return FM_OK;
    fm_stbytes_release(s);
    return err->code;
}

void fm_stbytes_release(struct fm_stbytes *s)
{
    free(s->tensor);
    free(s->name);
    free(s->data);
    *s = (struct fm_stbytes){0};
}

void fm_stbytes_add(struct fm_stbytes *s, enum fm_dtype dtype, int dims, const uint64_t *shape,
                    const void *data, const char *fmt, ...)
{
    assert(s->count < s->capacity && dims >= 1 && dims <= 3);
    size_t i = s->count++;
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(s->name[i], FM_STBYTES_NAME, fmt, ap);
    va_end(ap);
    assert(len > 0 && len < FM_STBYTES_NAME);
    (void)len;
    s->data[i] = data;
    s->tensor[i] = (struct fm_tensor){.name = s->name[i], .dtype = dtype, .dims = dims};
    memcpy(s->tensor[i].shape, shape, (size_t)dims * sizeof *shape);
}

int fm_stbytes_size(struct fm_stbytes *s, const char *const *metadata, size_t *size,
                    struct fm_err *err)
{
    char *header = NULL;
    uint64_t header_bytes, file_bytes = 0;
    int rc = fm_safetensors_plan(s->tensor, s->count, metadata, &header, &header_bytes, &file_bytes,
                                 err);
    free(header);
    *size = (size_t)file_bytes;
    return rc;
}

int fm_stbytes_pack(struct fm_stbytes *s, const char *const *metadata, void **bytes, size_t *size,
                    struct fm_err *err)
{
    char *header = NULL;
    uint64_t header_bytes = 0, file_bytes = 0;
    if (fm_safetensors_plan(s->tensor, s->count, metadata, &header, &header_bytes, &file_bytes,
                            err))
        return err->code;
    char *file = malloc((size_t)file_bytes);
    if (!file) {
        free(header);
        return fm_fail(err, FM_ENOMEM, "no memory for a member of %" PRIu64 " bytes", file_bytes);
    }
    memcpy(file, header, (size_t)header_bytes);
    free(header);
    for (size_t i = 0; i < s->count; i++) { /* planning reordered the tensors, not s->data */
        const struct fm_tensor *t = &s->tensor[i];
        size_t from = (size_t)(t->name - s->name[0]) / FM_STBYTES_NAME;
        assert(from < s->count && (s->data[from] || !t->size));
        if (t->size)
            memcpy(file + t->offset, s->data[from], (size_t)t->size);
    }
    *bytes = file;
    *size = (size_t)file_bytes;
    return FM_OK;
}

int fm_stmember_open(struct fm_stmember *s, const struct fm_bundle *b, const char *name,
                     const char *kind, struct fm_err *err)
{
    size_t size;
    *s = (struct fm_stmember){.member = fm_bundle_find(b, name)};
    if (!s->member)
        return fm_fail(err, FM_EFORMAT, "%s: has no '%s'", b->file.path, name);
    if (fm_bundle_read(b, s->member, &s->bytes, &size, err))
        return err->code;
    int rc = fm_safetensors_open(&s->st, &b->file, s->member->offset, s->member->size, err);
    const char *is = rc ? NULL : fm_safetensors_metadata(&s->st, "fm.kind");
    if (!rc && (!is || strcmp(is, kind) != 0))
        rc = fm_fail(err, FM_EFORMAT, "metadata fm.kind is '%s', not '%s'", is ? is : "", kind);
    if (rc) {
        fm_within(err, "%s", name);
        fm_stmember_close(s);
    }
    return rc;
}

void fm_stmember_close(struct fm_stmember *s)
{
    fm_safetensors_close(&s->st);
    free(s->bytes);
    *s = (struct fm_stmember){0};
}

const void *fm_stmember_get(const struct fm_stmember *s, enum fm_dtype dtype, int dims,
                            const uint64_t *shape, struct fm_err *err, const char *fmt, ...)
{
    assert(dims >= 1 && dims <= 3);
    char name[FM_STBYTES_NAME];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    assert(len > 0 && (size_t)len < sizeof name);
    (void)len;
    const struct fm_tensor *t = fm_safetensors_find(&s->st, name);
    if (!t) {
        fm_fail(err, FM_EFORMAT, "tensor '%s' is missing", name);
        return NULL;
    }
    if (t->dtype != dtype || !fm_tensor_shaped(t, shape, dims)) {
        char want[96];
        int at = snprintf(want, sizeof want, "%" PRIu64 " x %" PRIu64, shape[0],
                          dims > 1 ? shape[1] : 1);
        if (dims > 2)
            snprintf(want + at, sizeof want - (size_t)at, " x %" PRIu64, shape[2]);
        fm_fail(err, FM_EFORMAT, "tensor '%s' is not %s of %s, as the manifest implies", name,
                fm_dtype_name(dtype), want);
        return NULL;
    }
    return (const char *)s->bytes + (t->offset - s->member->offset);
}
