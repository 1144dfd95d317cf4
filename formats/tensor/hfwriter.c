/*
 * All sizes are known before the first byte is written, so files are planned: the writer assigns a
 * file and an offset to each tensor, and callers may fill them in any order and on any thread.
 */
#include "formats/tensor/hfwriter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"

/* Divide the sorted tensors into files: set `first` and `count` of each. */
static int cut(struct fm_hfwriter *w, uint64_t shard_bytes, struct fm_err *err)
{
    w->file = fm_alloc(w->tensors ? w->tensors : 1, sizeof *w->file, "the list of shards", err);
    if (!w->file)
        return err->code;
    w->files = 1;
    uint64_t left = shard_bytes;
    for (size_t i = 0; i < w->tensors; i++) {
        uint64_t size = w->tensor[i].size;
        if (size > left && w->file[w->files - 1].count) {
            w->file[w->files++].first = i;
            left = shard_bytes;
        }
        w->file[w->files - 1].count++;
        left -= size < left ? size : left;
        if (__builtin_add_overflow(w->tensor_bytes, size, &w->tensor_bytes))
            return fm_fail(err, FM_ECONFIG, "the tensors together pass 2^64 bytes");
    }
    return FM_OK;
}

static int plan_files(struct fm_hfwriter *w, struct fm_err *err)
{
    for (size_t i = 0; i < w->files; i++) {
        struct fm_hfwriter_file *f = &w->file[i];
        if (w->files == 1)
            snprintf(f->name, sizeof f->name, "model.safetensors");
        else
            snprintf(f->name, sizeof f->name, "model-%05zu-of-%05zu.safetensors", i + 1, w->files);
        int rc = fm_safetensors_plan(w->tensor + f->first, f->count, NULL, &f->header,
                                     &f->header_bytes, &f->file_bytes, err);
        if (rc)
            return rc;
        w->file_bytes += f->file_bytes;
    }
    return FM_OK;
}

struct entry {
    const char *tensor, *file;
};

/* {"metadata": {"total_size": n}, "weight_map": {tensor: file, ...}} */
static int make_index(struct fm_hfwriter *w, struct fm_err *err)
{
    struct entry *entry = fm_alloc(w->tensors, sizeof *entry, "the shard index", err);
    if (!entry)
        return err->code;
    for (size_t f = 0; f < w->files; f++)
        for (size_t i = 0; i < w->file[f].count; i++)
            entry[w->file[f].first + i] =
                (struct entry){w->tensor[w->file[f].first + i].name, w->file[f].name};
    fm_names_sort(entry, w->tensors, sizeof *entry);
    cJSON *tree = cJSON_CreateObject();
    fm_json_add_uint(fm_json_add_object(tree, "metadata"), "total_size", w->tensor_bytes);
    cJSON *map = fm_json_add_object(tree, "weight_map");
    for (size_t i = 0; i < w->tensors; i++)
        fm_json_add_string(map, entry[i].tensor, entry[i].file);
    w->index = fm_json_print(tree);
    cJSON_Delete(tree);
    free(entry);
    if (!w->index)
        return fm_fail(err, FM_ENOMEM, "no memory for the shard index");
    w->index_bytes = strlen(w->index);
    return FM_OK;
}

int fm_hfwriter_plan(struct fm_hfwriter *w, const struct fm_tensor *tensor, size_t count,
                     uint64_t shard_bytes, struct fm_err *err)
{
    *w = (struct fm_hfwriter){.tensors = count};
    w->tensor = fm_alloc(count, sizeof *w->tensor, "the list of tensors", err);
    if (!w->tensor)
        return err->code;
    int rc = FM_OK;
    memcpy(w->tensor, tensor, count * sizeof *tensor);
    for (size_t i = 0; i < count && !rc; i++)
        if (!fm_tensor_fit(&w->tensor[i]))
            rc = fm_fail(err, FM_ECONFIG, "tensor '%s' has no size in whole bytes below 2^64",
                         tensor[i].name);
    fm_names_sort(w->tensor, count, sizeof *w->tensor);
    if (!rc)
        rc = cut(w, shard_bytes, err);
    if (!rc)
        rc = plan_files(w, err);
    if (!rc && w->files > 1)
        rc = make_index(w, err);
    if (rc)
        fm_hfwriter_release(w);
    return rc;
}

void fm_hfwriter_release(struct fm_hfwriter *w)
{
    for (size_t i = 0; i < w->files; i++)
        free(w->file[i].header);
    free(w->file);
    free(w->tensor);
    free(w->index);
    *w = (struct fm_hfwriter){0};
}
