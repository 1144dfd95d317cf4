/*
 * Four kinds of files can hold a model.  Opening any of them gives one list of tensors, and two
 * orders in which they are looked up; after that the kind affects only which names these are.
 *
 *     file[]    | a: t0 t1 t2 | b: t3 t4 |      shards, members of a bundle, or one file
 *     entry[]   | t0 | t1 | t2 | t3 | t4 |      one for each tensor, in order of files
 *     name[]    by hash and name: fm_source_find
 *     of[]      the weights among them, by row of the family's table, layer, expert and role:
 *               fm_source_weight.  After fm_source_draft, weights of the draft are in the place of
 *               the model's, so that no two entries have the same key
 */
#include "lib/model/source.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/file/digest.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/modules.h"
#include "lib/base/names.h"
#include "lib/family/extra.h"

#define EXPORT_BYTES_MAX ((size_t)64 << 20)
#define CONFIG_BYTES_MAX ((size_t)16 << 20)

static int add_file(struct fm_tensors *t, const struct fm_file *file,
                    const struct fm_safetensors *st, struct fm_err *err)
{
    size_t room = t->files;
    if (FM_GROW(t->file, room, t->files + 1, "a list of weight files", err))
        return err->code;
    t->file[t->files++] = (struct fm_source_file){file, st};
    return FM_OK;
}

static int add_shards(struct fm_tensors *t, const struct fm_hfdir *dir, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; !rc && i < dir->shards; i++)
        rc = add_file(t, &dir->shard[i].file, &dir->shard[i].st, err);
    if (rc)
        return rc;
    t->config_bytes = dir->config_bytes;
    t->config = fm_strdup(dir->config, err);
    return t->config ? FM_OK : err->code;
}

static int open_directory(struct fm_tensors *t, struct fm_err *err)
{
    int rc = fm_hfdir_open(&t->dir, t->path, err);
    return rc ? rc : add_shards(t, &t->dir, err);
}

static int open_bundle(struct fm_tensors *t, struct fm_err *err)
{
    int rc = fm_bundle_open(&t->bundle, t->path, err);
    if (rc)
        return rc;
    const struct fm_member *config = fm_bundle_find(&t->bundle, FM_MEMBER_CARRIED "config.json");
    if (!config)
        return fm_fail(err, FM_EFORMAT, "%s: no member '%sconfig.json'", t->path,
                       FM_MEMBER_CARRIED);
    void *text = NULL;
    rc = fm_bundle_read(&t->bundle, config, &text, &t->config_bytes, err);
    t->config = text;
    t->own = rc ? NULL : fm_alloc(t->bundle.members, sizeof *t->own, "weight members", err);
    if (!t->own)
        return err->code;
    for (size_t i = 0; !rc && i < t->bundle.members; i++) {
        const struct fm_member *m = &t->bundle.member[i];
        if (strncmp(m->name, FM_MEMBER_WEIGHTS, strlen(FM_MEMBER_WEIGHTS)) != 0 ||
            strcmp(m->name, FM_MEMBER_WEIGHTS FM_WEIGHTS_EXTRA) == 0)
            continue;
        struct fm_shard *shard = &t->own[t->owns];
        rc = fm_safetensors_open(&shard->st, &t->bundle.file, m->offset, m->size, err);
        if (rc)
            return fm_within(err, "%s: member '%s'", t->path, m->name);
        t->owns++;
        rc = add_file(t, &t->bundle.file, &shard->st, err);
    }
    if (!rc && t->owns == 0)
        rc = fm_fail(err, FM_ECONFIG,
                     "%s: a stage stream has no weights; pack it with fm-pack first", t->path);
    return rc;
}

static int open_own(struct fm_tensors *t, const char *name, struct fm_err *err)
{
    char *path = fm_file_join(t->path, name, err);
    if (!path)
        return err->code;
    struct fm_shard *shard = &t->own[t->owns];
    int rc = fm_file_open(&shard->file, path, err);
    if (!rc) {
        t->owns++;
        rc = fm_safetensors_open(&shard->st, &shard->file, 0, shard->file.size, err);
    }
    if (!rc)
        rc = add_file(t, &shard->file, &shard->st, err);
    free(path);
    return rc;
}

/* Open the files of a bundle's weights: layers-00000.safetensors and so on, one for each layer that
 * has widths, and rest.safetensors. */
static int open_members(struct fm_tensors *t, struct fm_err *err)
{
    int rc = fm_file_slurp_in(t->path, "config.json", CONFIG_BYTES_MAX, &t->config,
                              &t->config_bytes, err);
    size_t files = (size_t)cJSON_GetArraySize(t->widths) + 1;
    t->own = rc ? NULL : fm_alloc(files, sizeof *t->own, "weight files", err);
    if (!t->own)
        return err->code;
    int l = 0;
    const cJSON *layer;
    cJSON_ArrayForEach(layer, t->widths)
    {
        char name[40];
        snprintf(name, sizeof name, FM_WEIGHTS_LAYER, l++);
        if (!rc && cJSON_GetArraySize(layer) > 0)
            rc = open_own(t, name, err);
    }
    t->naming = FM_NAMING_ONLINE;
    return rc ? rc : open_own(t, FM_WEIGHTS_REST, err);
}

/* Set *has if the directory has the files of a bundle's weights. */
static int find_members(bool *has, const char *path, struct fm_err *err)
{
    struct stat st;
    char *rest = fm_file_join(path, FM_WEIGHTS_REST, err);
    *has = rest && stat(rest, &st) == 0;
    free(rest);
    return rest ? FM_OK : err->code;
}

/* Set FM_NAMING_RAGGED if config.json has widths; refuse fused experts, which config.json marks
 * with fm_layout. */
static int tell_ragged(struct fm_tensors *t, struct fm_err *err)
{
    struct fm_err unread = {0}; /* a malformed config.json is reported when it is parsed */
    cJSON *json = NULL;
    if (!fm_json_tree(&json, t->config, t->config_bytes, &unread))
        t->widths = cJSON_DetachItemFromObjectCaseSensitive(json, "fm_widths");
    bool fused = t->widths && fm_json_has(json, "fm_layout");
    cJSON_Delete(json);
    t->naming = t->widths ? FM_NAMING_RAGGED : FM_NAMING_STOCK;
    return fused
               ? fm_fail(err, FM_ECONFIG,
                         "%s: its experts are fused (fm_layout in config.json), which these tools "
                         "do not read; export it --for any",
                         t->path)
               : FM_OK;
}

/* Open a directory: an export with the files of a bundle's weights, and their widths in
 * fm-export.json, or a directory in Hugging Face format. */
static int open_any_directory(struct fm_tensors *t, struct fm_err *err)
{
    cJSON *json = NULL;
    char *text = NULL;
    size_t size;
    bool members;
    struct fm_err absent = {0};
    int rc = fm_file_slurp_in(t->path, FM_EXPORT_JSON, EXPORT_BYTES_MAX, &text, &size, &absent);
    if (rc && rc != FM_ENOENT) {
        *err = absent;
        return rc;
    }
    if (!rc && (fm_json_tree(&json, text, size, err) || fm_bundle_check_schema(json, err)))
        rc = fm_within(err, "%s/" FM_EXPORT_JSON, t->path);
    else
        rc = find_members(&members, t->path, err);
    if (!rc && members)
        t->widths = cJSON_DetachItemFromObjectCaseSensitive(json, "widths");
    cJSON_Delete(json);
    free(text);
    if (rc || t->widths)
        return rc ? rc : open_members(t, err);
    return open_directory(t, err) ? err->code : tell_ragged(t, err);
}

/* A checkpoint has up to a few hundred thousand names in a few dozen files, and each is looked up
 * a few times.  Hashes are compared first, and names only if the hashes are equal. */
struct fm_source_name {
    uint64_t hash;
    const struct fm_stored *entry;
};

static uint64_t hash_of(const char *name)
{
    struct fm_digest digest = fm_digest_of(name, strlen(name));
    uint64_t hash;
    memcpy(&hash, digest.byte, sizeof hash);
    return hash;
}

/* Order by hash, then name, then place. */
static int compare_names(const void *a, const void *b)
{
    const struct fm_source_name *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    int c = strcmp(x->entry->tensor->name, y->entry->tensor->name);
    return c ? c : (x->entry > y->entry) - (x->entry < y->entry);
}

static int list_entries(struct fm_tensors *t, struct fm_err *err)
{
    size_t count = 1;
    for (size_t i = 0; i < t->files; i++)
        count += t->file[i].st->count;
    t->entry = fm_alloc(count, sizeof *t->entry, "the list of tensors", err);
    t->name = fm_alloc(count, sizeof *t->name, "the names of tensors", err);
    if (!t->entry || !t->name)
        return err->code;
    for (size_t i = 0; i < t->files; i++)
        for (size_t k = 0; k < t->file[i].st->count; k++) {
            struct fm_stored *s = &t->entry[t->entries];
            *s = (struct fm_stored){.tensor = &t->file[i].st->tensor[k], .file = t->file[i].file};
            t->name[t->entries++] = (struct fm_source_name){hash_of(s->tensor->name), s};
        }
    assert(t->entries + 1 == count);
    qsort(t->name, t->entries, sizeof *t->name, compare_names);
    return FM_OK;
}

int fm_source_open(struct fm_tensors *t, const char *path, struct fm_err *err)
{
    struct stat st;
    int rc = FM_OK;
    *t = (struct fm_tensors){.path = path};
    t->dir.fd = t->bundle.file.fd = -1;
    if (stat(path, &st) != 0)
        return fm_fail_errno(err, "cannot open model '%s'", path);
    if (S_ISREG(st.st_mode)) {
        t->naming = FM_NAMING_ONLINE;
        rc = open_bundle(t, err);
    } else {
        rc = open_any_directory(t, err);
    }
    if (!rc)
        rc = list_entries(t, err);
    if (rc)
        fm_source_close(t);
    return rc;
}

int fm_source_borrow(struct fm_tensors *t, const struct fm_hfdir *dir, struct fm_err *err)
{
    *t = (struct fm_tensors){.path = dir->path};
    t->dir.fd = t->bundle.file.fd = -1;
    int rc = FM_OK;
    if (add_shards(t, dir, err) || tell_ragged(t, err) || list_entries(t, err)) {
        rc = err->code;
        fm_source_close(t);
    }
    return rc;
}

void fm_source_close(struct fm_tensors *t)
{
    for (size_t i = 0; i < t->owns; i++) {
        fm_safetensors_close(&t->own[i].st);
        if (t->own[i].file.path)
            fm_file_close(&t->own[i].file);
    }
    if (t->dir.path)
        fm_hfdir_close(&t->dir);
    if (t->bundle.file.path)
        fm_bundle_close(&t->bundle);
    free(t->own);
    free(t->file);
    free(t->entry);
    free(t->name);
    free(t->of);
    free(t->config);
    cJSON_Delete(t->widths);
    *t = (struct fm_tensors){0};
}

int fm_source_unchanged(const struct fm_tensors *t, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; i < t->files && !rc; i++)
        if (i == 0 || t->file[i].file != t->file[i - 1].file) /* not for each member of a bundle */
            rc = fm_file_unchanged(t->file[i].file, err);
    return rc;
}

const struct fm_stored *fm_source_find(const void *in, const char *name)
{
    const struct fm_tensors *t = in;
    const uint64_t hash = hash_of(name);
    size_t low = 0, high = t->entries; /* search for the first name not before this one */
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct fm_source_name *at = &t->name[mid];
        if (at->hash < hash || (at->hash == hash && strcmp(at->entry->tensor->name, name) < 0))
            low = mid + 1;
        else
            high = mid;
    }
    const struct fm_stored *found = low < t->entries ? t->name[low].entry : NULL;
    return found && strcmp(found->tensor->name, name) == 0 ? found : NULL;
}

/* ---- what the tensors are ---- */

static int compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* Order by weight, layer, expert, role. */
static int compare_weights(const void *a, const void *b)
{
    const struct fm_stored *x = *(const struct fm_stored *const *)a;
    const struct fm_stored *y = *(const struct fm_stored *const *)b;
    if (x->weight != y->weight)
        return x->weight < y->weight ? -1 : 1;
    int c = compare(x->l, y->l);
    c = c ? c : compare(x->e, y->e);
    return c ? c : compare((int)x->role, (int)y->role);
}

int fm_source_resolve(struct fm_tensors *t, const struct fm_config *config, struct fm_err *err)
{
    t->of = fm_alloc(t->entries + 1, sizeof *t->of, "the weights of the model", err);
    if (!t->of)
        return err->code;
    for (size_t i = 0; i < t->entries; i++) {
        struct fm_stored *s = &t->entry[i];
        fm_stored_see(s, config, t->naming);
        fm_stored_link(s, fm_source_find, t);
        if (s->weight)
            t->of[t->ofs++] = s;
    }
    qsort(t->of, t->ofs, sizeof(*t->of), compare_weights);
    return FM_OK;
}

/* Whether a tensor of the layer for multi-token prediction, among the first n of `t->of`, is used
 * in place of this one. */
static bool is_replaced(const struct fm_tensors *t, size_t n, const struct fm_stored *s, int twin)
{
    bool found = s->l == twin;
    for (size_t i = 0; i < n && s->l < 0 && !found; i++)
        found = t->of[i]->l < 0 && t->of[i]->weight == s->weight;
    return found;
}

void fm_source_draft(struct fm_tensors *t, const struct fm_config *c)
{
    int twin = fm_extra_twin_layer(c);
    size_t drafts;
    assert(t->of && twin >= 0); /* after fm_source_resolve, which allocated it for all entries */
    t->ofs = 0;
    for (size_t i = 0; i < t->entries; i++)
        if (t->entry[i].extra && fm_stored_see_twin(&t->entry[i], c))
            t->of[t->ofs++] = &t->entry[i];
    drafts = t->ofs;
    for (size_t i = 0; i < t->entries; i++) {
        struct fm_stored *s = &t->entry[i];
        if (s->extra || !s->weight)
            continue;
        if (is_replaced(t, drafts, s, twin))
            s->weight = NULL;
        else
            t->of[t->ofs++] = s;
    }
    qsort(t->of, t->ofs, sizeof(*t->of), compare_weights);
}

const struct fm_stored *fm_source_weight(const struct fm_tensors *t, enum fm_stored_role role,
                                         const struct fm_weight *weight, int l, int e)
{
    const struct fm_stored key = {.role = role, .weight = weight, .l = l, .e = e}, *of = &key;
    const struct fm_stored **found =
        t->ofs ? bsearch(&of, t->of, t->ofs, sizeof(*t->of), compare_weights) : NULL;
    return found ? *found : NULL;
}

const struct fm_stored *fm_source_stored(const struct fm_tensors *t, const struct fm_weight *weight,
                                         int l, int e)
{
    const struct fm_stored *values = fm_source_weight(t, FM_STORED_VALUES, weight, l, e);
    return values ? values : fm_source_weight(t, FM_STORED_CODES, weight, l, e);
}

void fm_source_bytes(const struct fm_tensors *t, uint64_t *stored, uint64_t *written)
{
    *stored = *written = 0;
    for (size_t i = 0; i < t->entries; i++) {
        const struct fm_stored *s = &t->entry[i];
        *stored += fm_tensor_stored(s->tensor);
        *written += s->extra ? s->tensor->size : fm_stored_bytes(s);
    }
}

/* ---- modules listed as not quantised ---- */

/* Each entry of a list, a name or a pattern, is compared with the module of every tensor of codes,
 * so the number of regular expressions in a list is limited.  The suite recognises codes by their
 * tensors; a server uses the list, and would read listed codes as unquantised weights. */
static int check_tensor(const struct fm_stored *s, const struct fm_modules *e, size_t entries,
                        const char *key, struct fm_err *err)
{
    char module[FM_ST_NAME_BYTES_MAX + 1];
    const struct fm_tensor *t = s->tensor;
    if (!fm_stored_is_codes(s))
        return FM_OK;
    const char *end = s->scheme.storage->codes_end;
    end = end[0] || !fm_ends_with(t->name, ".weight") ? end : ".weight";
    snprintf(module, sizeof module, "%.*s", (int)(strlen(t->name) - strlen(end)), t->name);
    for (size_t i = 0; i < entries; i++)
        if (fm_modules_match(&e[i], module))
            return fm_fail(err, FM_EFORMAT,
                           "tensor '%s' contains codes, but quantization_config lists its module "
                           "as not quantised (%s: '%.64s'); correct config.json",
                           t->name, key, e[i].text);
    return FM_OK;
}

static int check_list(const struct fm_tensors *tensors, const cJSON *list, const char *key,
                      struct fm_err *err)
{
    const cJSON *entry;
    int expressions = 0, rc = FM_OK;
    size_t n = 0;
    struct fm_modules *e =
        fm_alloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *e, "a list of modules", err);
    if (!e)
        return err->code;
    cJSON_ArrayForEach(entry, list)
    {
        const char *text = cJSON_GetStringValue(entry);
        if (!rc && text && strncmp(text, "re:", 3) == 0 && ++expressions > FM_PATTERNS_MAX)
            rc = fm_fail(err, FM_ECONFIG,
                         "quantization_config: %s has more than %d regular expressions", key,
                         FM_PATTERNS_MAX);
        n += !rc && text && fm_modules_read(&e[n], text);
    }
    for (size_t i = 0; i < tensors->entries && !rc; i++)
        rc = check_tensor(&tensors->entry[i], e, n, key, err);
    for (size_t i = 0; i < n; i++)
        fm_modules_release(&e[i]);
    free(e);
    return rc;
}

int fm_source_check(const struct fm_tensors *tensors, struct fm_err *err)
{
    static const char *const keys[] = {"ignore", "modules_to_not_convert"};
    cJSON *json = NULL;
    int rc = FM_OK;
    if (tensors->naming != FM_NAMING_STOCK)
        return FM_OK;
    if (fm_json_tree(&json, tensors->config, tensors->config_bytes, err))
        return err->code;
    const cJSON *quant = cJSON_GetObjectItemCaseSensitive(json, "quantization_config");
    for (int k = 0; k < 2 && !rc; k++)
        rc = check_list(tensors, cJSON_GetObjectItemCaseSensitive(quant, keys[k]), keys[k], err);
    cJSON_Delete(json);
    return rc;
}
