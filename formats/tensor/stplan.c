/*
 * Header first, data later: the header depends only on names, dtypes and shapes, so it is made
 * before any tensor's bytes exist.  Tensors are in order of decreasing element size, as the
 * reference writes them, which keeps every one aligned to its element.
 */
#include "formats/tensor/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/text.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"

/* The widest elements first, then by name. */
static int compare_places(const void *a, const void *b)
{
    const struct fm_tensor *s = a, *t = b;
    int wide = fm_dtype_bits(s->dtype), wider = fm_dtype_bits(t->dtype);
    return wide != wider ? wider - wide : strcmp(s->name, t->name);
}

static void add_metadata(struct fm_text *text, const char *const *metadata)
{
    bool format = false;
    for (const char *const *m = metadata; m && *m; m += 2)
        format |= strcmp(*m, "format") == 0;
    fm_text_printf(text, "{\"__metadata__\":{%s", format ? "" : "\"format\":\"pt\"");
    for (const char *const *m = metadata; m && *m; m += 2) {
        if (m != metadata || !format)
            fm_text_add(text, ",", 1);
        fm_text_quote(text, m[0]);
        fm_text_add(text, ":", 1);
        fm_text_quote(text, m[1]);
    }
    fm_text_add(text, "}", 1);
}

/* Pad with spaces to the alignment, and put the length first. */
static int close_header(struct fm_text *text, struct fm_err *err)
{
    static const char spaces[65] =
        "                                                                ";
    fm_text_add(text, "}", 1);
    while (!text->failed && text->size % FM_ST_ALIGN != 0) {
        size_t gap = FM_ST_ALIGN - text->size % FM_ST_ALIGN;
        fm_text_add(text, spaces, gap < 64 ? gap : 64);
    }
    if (text->failed)
        return fm_fail(err, FM_ENOMEM, "no memory for a safetensors header");
    uint64_t n = text->size - 8;
    if (n > FM_ST_HEADER_BYTES_MAX)
        return fm_fail(err, FM_ECONFIG,
                       "a safetensors header would have %" PRIu64
                       " bytes (limit %u); use more shards",
                       n, FM_ST_HEADER_BYTES_MAX);
    for (int i = 0; i < 8; i++)
        text->data[i] = (char)(n >> 8 * i & 0xff);
    return FM_OK;
}

int fm_safetensors_plan(struct fm_tensor *tensor, size_t count, const char *const *metadata,
                        char **header, uint64_t *header_bytes, uint64_t *file_bytes,
                        struct fm_err *err)
{
    struct fm_text text = {0};
    uint64_t at = 0;
    *header = NULL;
    int rc = FM_OK;
    if (count > FM_ST_TENSORS_MAX)
        return fm_fail(err, FM_ECONFIG,
                       "%zu tensors in one safetensors file (limit %d); use more shards", count,
                       FM_ST_TENSORS_MAX);
    if (count > 0 && fm_names_distinct(tensor, count, sizeof *tensor, FM_ECONFIG, "tensor",
                                       "would appear twice in the output", err))
        return err->code;
    size_t sorted = 1;
    while (sorted < count && compare_places(&tensor[sorted - 1], &tensor[sorted]) <= 0)
        sorted++;
    if (sorted < count)
        qsort(tensor, count, sizeof *tensor, compare_places);
    fm_text_add(&text, "\0\0\0\0\0\0\0\0", 8);
    add_metadata(&text, metadata);
    for (size_t i = 0; i < count; i++) {
        assert(tensor[i].name[0] && strlen(tensor[i].name) <= FM_ST_NAME_BYTES_MAX);
        if (!fm_tensor_fit(&tensor[i])) {
            rc = fm_fail(err, FM_ECONFIG, "tensor '%s' has no size in whole bytes below 2^64",
                         tensor[i].name);
            goto out;
        }
        tensor[i].offset = at;
        if (!fm_add(&at, at, tensor[i].size) || at > INT64_MAX / 2) {
            rc = fm_fail(err, FM_ECONFIG, "tensor '%s': the file would be too large",
                         tensor[i].name);
            goto out;
        }
        const struct fm_tensor *t = &tensor[i];
        fm_text_add(&text, ",", 1);
        fm_text_quote(&text, t->name);
        fm_text_printf(&text, ":{\"dtype\":\"%s\",\"shape\":[", fm_dtype_name(t->dtype));
        for (int d = 0; d < t->dims; d++)
            fm_text_printf(&text, "%s%" PRIu64, d ? "," : "", t->shape[d]);
        fm_text_printf(&text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->offset,
                       t->offset + t->size);
    }
    if ((rc = close_header(&text, err)))
        goto out;
    for (size_t i = 0; i < count; i++)
        tensor[i].offset += text.size;
    *header = text.data;
    *header_bytes = text.size;
    *file_bytes = text.size + at;
out:
    if (rc)
        free(text.data);
    return rc;
}
