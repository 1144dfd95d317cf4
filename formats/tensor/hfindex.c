/*
 * An index may have a hundred thousand entries, and a hostile one more, so it is scanned and not
 * parsed into a tree: all names go into one block, each shard name is kept once, and entries are
 * sorted for binary search.  A shard name is a single component that is not hidden, so no index can
 * refer to files outside its directory.
 */
#include "formats/tensor/hfindex.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/genuine.h"
#include "formats/json/json.h"
#include "formats/tensor/hfdir.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"

/* The index while it is built from the text of the file. */
struct making {
    struct fm_hfindex *x;
    struct fm_json j;
    size_t text, text_capacity;
    size_t capacity; /* of x->entry */
};

/* True for a single component that is not hidden, with harmless characters. */
static bool is_shard_name(const char *name)
{
    static const char harmless[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return *name != '.' && name[strspn(name, harmless)] == 0 && fm_ends_with(name, ".safetensors");
}

/* The index of `name` in the sorted shards, or where it would be inserted. */
static size_t place_of(const struct fm_hfindex *x, const char *name)
{
    size_t low = 0, high = x->shards;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (strcmp(x->shard[mid], name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The stored copy of a shard's name; *kept: `name` itself became that copy. */
static int enter_shard(struct fm_hfindex *x, const char *name, const char **entered, bool *kept,
                       struct fm_err *err)
{
    size_t at = place_of(x, name);
    *kept = at == x->shards || strcmp(x->shard[at], name) != 0;
    if (*kept) {
        if (!is_shard_name(name))
            return fm_fail(
                err, FM_EFORMAT,
                "shard name '%s' is not the name of a .safetensors file in this directory", name);
        if (x->shards == FM_SHARDS_MAX)
            return fm_fail(err, FM_EFORMAT, "more than %d shards", FM_SHARDS_MAX);
        memmove(x->shard + at + 1, x->shard + at, (x->shards - at) * sizeof *x->shard);
        x->shard[at] = name;
        x->shards++;
    }
    *entered = x->shard[at];
    return FM_OK;
}

/* "tensor": "shard" */
static int parse_entry(struct making *m, struct fm_err *err)
{
    struct fm_hfindex *x = m->x;
    if (FM_GROW(x->entry, m->capacity, x->count + 1, "the shard index", err))
        return err->code;
    struct fm_hfentry *e = &x->entry[x->count];
    *e = (struct fm_hfentry){.tensor = x->text + m->text};
    int rc = fm_json_string(&m->j, x->text + m->text, FM_ST_NAME_BYTES_MAX + 1, err);
    if (rc)
        return rc;
    m->text += strlen(e->tensor) + 1;
    char *name = x->text + m->text;
    bool kept = false;
    if (fm_json_expect(&m->j, ':', err) || fm_json_string(&m->j, name, NAME_MAX + 1, err) ||
        enter_shard(x, name, &e->shard, &kept, err))
        return fm_within(err, "tensor '%s'", e->tensor);
    if (kept)
        m->text += strlen(name) + 1;
    x->count++;
    return FM_OK;
}

static int parse_map(struct making *m, struct fm_err *err)
{
    int rc = fm_json_expect(&m->j, '{', err);
    if (rc || fm_json_accept(&m->j, '}'))
        return rc;
    do
        rc = parse_entry(m, err);
    while (!rc && fm_json_accept(&m->j, ','));
    return rc ? rc : fm_json_expect(&m->j, '}', err);
}

/* The keys of the file: weight_map is read, others are checked and skipped. */
static int parse_file(struct making *m, struct fm_err *err)
{
    char key[64];
    bool map = false;
    if (fm_json_expect(&m->j, '{', err))
        return err->code;
    if (!fm_json_accept(&m->j, '}')) {
        do {
            if (fm_json_string(&m->j, key, sizeof key, err) || fm_json_expect(&m->j, ':', err))
                return err->code;
            bool is_map = strcmp(key, "weight_map") == 0;
            if (is_map && map)
                return fm_fail(err, FM_EFORMAT, "key 'weight_map' appears twice");
            map |= is_map;
            if (is_map ? parse_map(m, err) : fm_json_skip(&m->j, err))
                return err->code;
        } while (fm_json_accept(&m->j, ','));
        if (fm_json_expect(&m->j, '}', err))
            return err->code;
    }
    if (fm_json_end(&m->j, err))
        return err->code;
    return m->x->count ? FM_OK
                       : fm_fail(err, FM_EFORMAT,
                                 map ? "weight_map is empty" : "key 'weight_map' is missing");
}

int fm_hfindex_open(struct fm_hfindex *x, const struct fm_file *file, struct fm_err *err)
{
    char *json = NULL;
    size_t size = 0;
    struct making m = {.x = x};
    *x = (struct fm_hfindex){0};
    int rc = fm_file_slurp(file, FM_INDEX_BYTES_MAX, &json, &size, err);
    if (rc)
        return rc;
    /* Unescaped names are no longer than their JSON.  The rest is room for one name of each kind at
     * its limit, so that longer ones are reported as over the limit. */
    m.text_capacity = size + FM_ST_NAME_BYTES_MAX + NAME_MAX + 2;
    x->text = malloc(m.text_capacity);
    x->shard = malloc(FM_SHARDS_MAX * sizeof *x->shard);
    if (!x->text || !x->shard) {
        rc = fm_fail(err, FM_ENOMEM, "no memory for the shard index of %zu bytes", size);
        goto out;
    }
    fm_json_init(&m.j, json, size);
    if ((rc = fm_genuine_text(json, size, true, err)) || (rc = parse_file(&m, err)))
        goto out;
    fm_names_sort(x->entry, x->count, sizeof *x->entry);
    const char *twin = fm_names_twin(x->entry, x->count, sizeof *x->entry);
    if (twin)
        rc = fm_fail(err, FM_EFORMAT, "tensor '%s' appears twice", twin);
out:
    free(json);
    if (rc) {
        fm_hfindex_close(x);
        fm_within(err, "%s", file->path);
    }
    return rc;
}

void fm_hfindex_close(struct fm_hfindex *x)
{
    free(x->entry);
    free(x->shard);
    free(x->text);
    *x = (struct fm_hfindex){0};
}

struct fm_hfentry *fm_hfindex_find(const struct fm_hfindex *x, const char *tensor)
{
    return fm_names_find(x->entry, x->count, sizeof *x->entry, tensor);
}
