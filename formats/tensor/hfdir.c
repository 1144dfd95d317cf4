/*
 * Opening a checkpoint reads no weights, only config.json, hf_quant_config.json, the index and the
 * shards' headers (for GPTQ also zero points and the order of columns).  Index and headers are
 * compared, so that a shard from another download is found before hours of work.  Weight files may
 * be links, because the hub's cache is made of them; carry.c decides which other files are carried.
 */
#include "formats/tensor/hfdir.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/file/genuine.h"
#include "formats/json/json.h"
#include "formats/json/jsonedit.h"
#include "formats/quant/quant.h"
#include "formats/tensor/hfcache.h"
#include "formats/tensor/hfindex.h"
#include "formats/tensor/hftext.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"

#define SINGLE "model.safetensors"
#define QUANT "hf_quant_config.json"
#define INDEX "model.safetensors.index.json"
#define NAME_BYTES_MAX (FM_ST_NAME_BYTES_MAX - 32)

const char *const fm_hfdir_read[FM_HFDIR_READ] = {"config.json", "generation_config.json",
                                                  "tokenizer.json", "tokenizer_config.json"};

static bool is_there(const struct fm_hfdir *dir, const char *name)
{
    struct stat st;
    return fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static int read_config(struct fm_hfdir *dir, struct fm_err *err)
{
    int rc = fm_file_slurp_at(dir->fd, "config.json", FM_CONFIG_BYTES_MAX, &dir->config,
                              &dir->config_bytes, err);
    if (!rc && fm_genuine_text(dir->config, dir->config_bytes, true, err))
        rc = fm_within(err, "config.json");
    return rc;
}

/* Open the file `name` as shard i, and index it. */
static int open_shard(struct fm_hfdir *dir, size_t i, const char *name, struct fm_err *err)
{
    struct fm_shard *s = &dir->shard[i];
    if (!(s->name = fm_strdup(name, err)))
        return err->code;
    int rc = fm_file_open_at(&s->file, dir->fd, name, true, err);
    if (rc)
        return rc;
    for (size_t k = 0; k < i; k++)
        if (dir->shard[k].file.ino == s->file.ino && dir->shard[k].file.dev == s->file.dev)
            return fm_fail(err, FM_EFORMAT, "shards '%s' and '%s' are the same file",
                           dir->shard[k].name, name);
    return fm_safetensors_open(&s->st, &s->file, 0, s->file.size, err);
}

static int alloc_shards(struct fm_hfdir *dir, size_t n, struct fm_err *err)
{
    dir->shard = fm_alloc(n, sizeof *dir->shard, "shards", err);
    if (!dir->shard)
        return err->code;
    dir->shards = n;
    return FM_OK;
}

/* Check that the index names this shard for each of its tensors. */
static int check_shard(const struct fm_shard *s, const struct fm_hfindex *x, struct fm_err *err)
{
    for (size_t i = 0; i < s->st.count; i++) {
        const char *name = s->st.tensor[i].name;
        struct fm_hfentry *e = fm_hfindex_find(x, name);
        if (!e)
            return fm_fail(err, FM_EFORMAT, "tensor '%s' of '%s' is not in the index", name,
                           s->name);
        if (strcmp(e->shard, s->name) != 0)
            return fm_fail(err, FM_EFORMAT, "tensor '%s' is in '%s', but the index says '%s'", name,
                           s->name, e->shard);
        e->seen = true;
    }
    return FM_OK;
}

static int open_indexed(struct fm_hfdir *dir, const struct fm_hfindex *x, struct fm_err *err)
{
    bool single_named = false;
    int rc = alloc_shards(dir, x->shards, err);
    for (size_t i = 0; i < x->shards && !rc; i++) {
        single_named |= strcmp(x->shard[i], SINGLE) == 0;
        rc = open_shard(dir, i, x->shard[i], err);
        if (!rc)
            rc = check_shard(&dir->shard[i], x, err);
    }
    if (rc)
        return rc;
    if (!single_named && is_there(dir, SINGLE))
        return fm_fail(err, FM_ECONFIG,
                       "both " SINGLE " and " INDEX " exist; remove the one that is outdated");
    for (size_t i = 0; i < x->count; i++)
        if (!x->entry[i].seen)
            return fm_fail(err, FM_EFORMAT,
                           "the index puts tensor '%s' into '%s', which does not have it",
                           x->entry[i].tensor, x->entry[i].shard);
    return FM_OK;
}

static int open_index(struct fm_hfdir *dir, struct fm_err *err)
{
    struct fm_file f = {0};
    struct fm_hfindex x = {0};
    int rc = fm_file_open_at(&f, dir->fd, INDEX, true, err);
    if (!rc)
        rc = fm_hfindex_open(&x, &f, err);
    fm_file_close(&f);
    if (!rc)
        rc = open_indexed(dir, &x, err);
    fm_hfindex_close(&x);
    return rc;
}

static int open_weights(struct fm_hfdir *dir, struct fm_err *err)
{
    if (is_there(dir, INDEX))
        return open_index(dir, err);
    if (!is_there(dir, SINGLE))
        return fm_hfcache_explain_weights(dir->fd, err);
    int rc = alloc_shards(dir, 1, err);
    return rc ? rc : open_shard(dir, 0, SINGLE, err);
}

/* Take `text`, which is malloc'ed, as config.json; NULL: keep the one that is there. */
static void replace_config(struct fm_hfdir *dir, char *text)
{
    if (!text)
        return;
    free(dir->config);
    dir->config = text;
    dir->config_bytes = strlen(text);
}

static int rename_modules(char **text, const struct fm_hfdir *dir, struct fm_err *err)
{
    size_t n = 0, count = 0;
    for (size_t i = 0; i < dir->shards; i++)
        count += dir->shard[i].st.count;
    const char **name = fm_alloc(count + 1, sizeof *name, "the names of tensors", err);
    if (!name)
        return err->code;
    for (size_t i = 0; i < dir->shards; i++)
        for (size_t k = 0; k < dir->shard[i].st.count; k++)
            name[n++] = dir->shard[i].st.tensor[k].name;
    int rc = fm_hftext_modules(text, dir->config, dir->config_bytes, name, n, err);
    free(name);
    return rc;
}

/* For a multimodal checkpoint: take its text part, under the names of the text class. */
static int take_text(struct fm_hfdir *dir, struct fm_err *err)
{
    char *text;
    int rc = fm_hftext_config(&text, dir->config, dir->config_bytes, err);
    replace_config(dir, text);
    if (rc || rename_modules(&text, dir, err))
        return err->code;
    replace_config(dir, text);
    for (size_t i = 0; i < dir->shards; i++)
        fm_hftext_cut(&dir->shard[i].st);
    return FM_OK;
}

/* The contents of hf_quant_config.json in the form of config.json: {"quant_method": "modelopt",
 * ...}; NULL if weights are not quantised. */
static int turn_quant(char **value, const cJSON *file, struct fm_err *err)
{
    const cJSON *says = cJSON_GetObjectItemCaseSensitive(file, "quantization"), *entry;
    cJSON *quant = cJSON_CreateObject();
    if (!cJSON_IsObject(says)) {
        cJSON_Delete(quant);
        return fm_fail(err, FM_EFORMAT, "key 'quantization' is missing");
    }
    if (!fm_json_string_value(says, "quant_algo")) {
        cJSON_Delete(quant);
        return FM_OK;
    }
    fm_json_add_string(quant, "quant_method", "modelopt");
    cJSON_ArrayForEach(entry, says)
    {
        bool list = strcmp(entry->string, "exclude_modules") == 0;
        const char *key = list ? "ignore" : entry->string;
        if (fm_json_has(quant, key)) { /* "ignore" as well, or another quant_method */
            cJSON_Delete(quant);
            return fm_fail(err, FM_EFORMAT, "key '%.64s' contradicts another", entry->string);
        }
        cJSON *copy = cJSON_Duplicate(entry, 1);
        if (!copy || !cJSON_AddItemToObject(quant, key, copy)) {
            cJSON_Delete(copy);
            cJSON_Delete(quant);
            return fm_fail(err, FM_ENOMEM, "no memory");
        }
    }
    *value = fm_json_print(quant);
    cJSON_Delete(quant);
    return *value ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory");
}

/* Older checkpoints of ModelOpt describe the storage of weights only in hf_quant_config.json.  It
 * is added to the text of config.json if that has no quantization_config. */
static int take_quant(struct fm_hfdir *dir, struct fm_err *err)
{
    struct fm_jsonedit edit = {.key = "quantization_config"};
    cJSON *json = NULL;
    char *text = NULL, *value = NULL;
    size_t size = 0;
    if (!is_there(dir, QUANT))
        return FM_OK;
    int rc = fm_json_tree(&json, dir->config, dir->config_bytes, err);
    const cJSON *part = cJSON_GetObjectItemCaseSensitive(json, "text_config");
    bool said = !rc && (fm_json_has(json, edit.key) || fm_json_has(part, edit.key));
    cJSON_Delete(json);
    json = NULL;
    if (rc || said)
        return rc ? fm_within(err, "config.json") : FM_OK;
    rc = fm_file_slurp_at(dir->fd, QUANT, FM_CONFIG_BYTES_MAX, &text, &size, err);
    if (!rc && (fm_genuine_text(text, size, true, err) || fm_json_tree(&json, text, size, err) ||
                turn_quant(&value, json, err)))
        rc = fm_within(err, QUANT);
    edit.value = value;
    if (!rc && value)
        rc = fm_jsonedit_set(&dir->config, &dir->config_bytes, &edit, 1, err);
    cJSON_Delete(json);
    free(text);
    free(value);
    return rc;
}

/* Present the tensors of a quant_method with an order of its own in the usual one. */
static int take_tensors(struct fm_hfdir *dir, struct fm_err *err)
{
    struct fm_jsonedit edit = {.key = "quantization_config"};
    char *value = NULL;
    struct fm_quant_file *file = fm_alloc(dir->shards, sizeof *file, "the list of shards", err);
    if (!file)
        return err->code;
    for (size_t i = 0; i < dir->shards; i++) {
        const struct fm_shard *s = &dir->shard[i];
        file[i] = (struct fm_quant_file){s->name, &s->file, s->st.tensor, s->st.count, NULL};
    }
    int rc = fm_quant_take(&value, file, dir->shards, dir->config, dir->config_bytes, err);
    for (size_t i = 0; i < dir->shards; i++) {
        dir->shard[i].st.count = file[i].count;
        dir->shard[i].renamed = file[i].renamed;
    }
    edit.value = value;
    if (!rc && value)
        rc = fm_jsonedit_set(&dir->config, &dir->config_bytes, &edit, 1, err);
    free(value);
    free(file);
    return rc;
}

/* Check that all names differ, and have room for what bundles and exports add to them. */
static int check_names(const struct fm_hfdir *dir, struct fm_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < dir->shards; i++)
        n += dir->shard[i].st.count;
    const char **name = fm_alloc(n + 1, sizeof *name, "the names of tensors", err);
    if (!name)
        return err->code;
    n = 0;
    for (size_t i = 0; i < dir->shards; i++)
        for (size_t k = 0; k < dir->shard[i].st.count; k++)
            name[n++] = dir->shard[i].st.tensor[k].name;
    int rc =
        fm_names_distinct(name, n, sizeof *name, FM_EFORMAT, "tensor",
                          "is in the checkpoint twice, under two names; remove one of them", err);
    for (size_t i = 0; i < n && !rc; i++)
        if (strlen(name[i]) > NAME_BYTES_MAX)
            rc = fm_fail(err, FM_EFORMAT,
                         "tensor '%.80s...' has a name of %zu bytes (limit %d, because bundles "
                         "and exports extend names); rename it",
                         name[i], strlen(name[i]), NAME_BYTES_MAX);
    free(name);
    return rc;
}

int fm_hfdir_open(struct fm_hfdir *dir, const char *path, struct fm_err *err)
{
    *dir = (struct fm_hfdir){.fd = -1};
    dir->path = fm_strdup(path, err);
    if (!dir->path || fm_file_open_directory(&dir->fd, path, err))
        goto fail;
    for (size_t i = 0; i < FM_HFDIR_READ; i++)
        if (fstatat(dir->fd, fm_hfdir_read[i], &dir->read[i], 0) != 0)
            dir->read[i] = (struct stat){0};
    int rc = read_config(dir, err);
    if (rc == FM_ENOENT)
        rc = fm_hfcache_explain_directory(dir->fd, rc, err);
    if (rc || open_weights(dir, err) || take_quant(dir, err) || take_tensors(dir, err) ||
        take_text(dir, err) || check_names(dir, err)) {
        fm_within(err, "%s", path);
        goto fail;
    }
    return FM_OK;
fail:
    fm_hfdir_close(dir);
    return err->code;
}

void fm_hfdir_close(struct fm_hfdir *dir)
{
    if (!dir->path)
        return;
    for (size_t i = 0; i < dir->shards; i++) {
        fm_safetensors_close(&dir->shard[i].st);
        fm_file_close(&dir->shard[i].file);
        free(dir->shard[i].name);
        free(dir->shard[i].renamed);
    }
    for (size_t i = 0; i < dir->carried_count; i++)
        free(dir->carried[i].name), free(dir->carried[i].text);
    for (size_t i = 0; i < dir->left_count; i++)
        free(dir->left[i]);
    if (dir->fd >= 0)
        close(dir->fd);
    free(dir->shard);
    free(dir->carried);
    free(dir->config);
    free(dir->path);
    *dir = (struct fm_hfdir){.fd = -1};
}
