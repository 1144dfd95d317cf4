/*
 * The functions of lib/stage/stage.h that identify the model that a stream belongs to, and the
 * build that wrote it.  "model" of a manifest has three kinds of facts about the checkpoint:
 *
 *     its files     digests of config.json and of each shard's header, sizes: fm_stage_model_check
 *                   compares them with a directory, in milliseconds
 *     its sizes     they follow from config.json, and the carried copy is compared with them, so
 *                   that a stream can be used without the checkpoint
 *     its weights   a digest for each layer: compared whenever all weights are read
 */
#include <archive.h>
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>

#include "formats/json/json.h"
#include "kernels/ops/kernels.h"
#include "lib/block/experts.h"
#include "lib/model/stored.h"
#include "lib/stage/stage.h"

/* ---- tensors outside the experts ---- */

/* Count a tensor with its type, shape and size in bundles; `w` is its row in the family's table. */
static int add(struct fm_nonexpert *o, const struct fm_config *c, const struct fm_stored *s,
               const struct fm_weight *w, const struct fm_tensor *t, struct fm_err *err)
{
    int l;
    bool spare = w && w->part == FM_PART_SPARE, known = w && !spare && !fm_weights_is_expert(w);
    if ((spare || known) && fm_weights_check(c, w, t, s->scheme.storage, s->l, 0, err))
        return err->code;
    if (known) {
        o->elements[t->dtype] += fm_tensor_count(t);
        return FM_OK;
    }
    if (!spare && (w || fm_weights_is_stray(c, t->name) || fm_weights_is_off(c, t->name, &l)))
        return fm_fail(err, FM_EFORMAT,
                       "tensor '%s' belongs to a layer or expert; it must not be in this file",
                       t->name);
    o->unread_tensors++;
    o->unread_bytes += t->size;
    return FM_OK;
}

int fm_nonexpert_add(struct fm_nonexpert *o, const struct fm_config *c, const struct fm_tensor *t,
                     bool codes, struct fm_err *err)
{
    char name[FM_ST_NAME_BYTES_MAX + 1];
    struct fm_stored s = {.tensor = t};
    struct fm_tensor as;
    fm_stored_see(&s, c, FM_NAMING_STOCK);
    if (!codes)
        return add(o, c, &s, fm_weights_find(c, FM_NAMING_STOCK, t->name, &s.l, &s.e), t, err);
    if (fm_stored_is_expert(&s) || fm_stored_belongs(&s))
        return FM_OK;
    fm_stored_values(&as, name, &s);
    return add(o, c, &s, s.weight, &as, err);
}

bool fm_nonexpert_equal(const struct fm_nonexpert *a, const struct fm_nonexpert *b)
{
    return memcmp(a->elements, b->elements, sizeof a->elements) == 0 &&
           a->unread_tensors == b->unread_tensors && a->unread_bytes == b->unread_bytes;
}

/* Write "others" of a manifest's model: the counts for dtypes other than `dtype`, that of the
 * experts, and for tensors that the model does not use. */
static void add_nonexpert(cJSON *model, const struct fm_nonexpert *o, enum fm_dtype dtype)
{
    struct fm_nonexpert rest = *o;
    rest.elements[dtype] = 0;
    if (fm_nonexpert_equal(&rest, &(struct fm_nonexpert){0}))
        return;
    cJSON *nonexpert = fm_json_add_object(model, "others");
    for (int i = 0; i < FM_DTYPES; i++)
        if (rest.elements[i])
            fm_json_add_uint(nonexpert, fm_dtype_name((enum fm_dtype)i), rest.elements[i]);
    if (rest.unread_tensors == 0)
        return;
    cJSON *unread = fm_json_add_object(nonexpert, "unread");
    fm_json_add_uint(unread, "tensors", rest.unread_tensors);
    fm_json_add_uint(unread, "bytes", rest.unread_bytes);
}

/* Read "others" back.  The model has `elements` elements outside the experts; those that "others"
 * does not list have `dtype`.  The key may be absent. */
static int read_nonexpert(struct fm_nonexpert *o, const cJSON *model, enum fm_dtype dtype,
                          uint64_t elements, struct fm_err *err)
{
    const cJSON *nonexpert = cJSON_GetObjectItemCaseSensitive(model, "others");
    const cJSON *unread = cJSON_GetObjectItemCaseSensitive(nonexpert, "unread");
    *o = (struct fm_nonexpert){0};
    for (int i = 0; i < FM_DTYPES; i++) {
        int64_t n = 0;
        if (fm_json_opt_int(nonexpert, fm_dtype_name((enum fm_dtype)i), 0, FM_JSON_INTEGER_MAX, &n,
                            err))
            return fm_within(err, "others");
        bool possible =
            n == 0 || ((enum fm_dtype)i != dtype && fm_dtype_is_weight((enum fm_dtype)i));
        if (!possible || (uint64_t)n > elements)
            return fm_fail(err, FM_EFORMAT,
                           "others: %" PRId64 " elements are %s, but at most %" PRIu64 " can be", n,
                           fm_dtype_name((enum fm_dtype)i), possible ? elements : 0);
        o->elements[i] = (uint64_t)n;
        elements -= (uint64_t)n;
    }
    o->elements[dtype] = elements;
    if (unread && (fm_json_get_uint(unread, "tensors", 1, &o->unread_tensors, err) ||
                   fm_json_get_uint(unread, "bytes", 0, &o->unread_bytes, err)))
        return fm_within(err, "others");
    return FM_OK;
}

uint64_t fm_nonexpert_elements(const struct fm_config *c)
{
    return fm_config_params(c, NULL) - (uint64_t)c->M * (uint64_t)c->E * (uint64_t)c->I *
                                           fm_expert_channel_params(c->expert, c->H);
}

uint64_t fm_nonexpert_bytes(const struct fm_nonexpert *o)
{
    uint64_t bytes = o->unread_bytes;
    for (int i = 0; i < FM_DTYPES; i++)
        bytes += o->elements[i] * ((uint64_t)fm_dtype_bits((enum fm_dtype)i) / 8);
    return bytes;
}

/* ---- the model ---- */

static void print_header_digest(char hex[FM_DIGEST_HEX], const struct fm_shard *shard)
{
    snprintf(hex, FM_DIGEST_HEX, "%016" PRIx64 "%016" PRIx64, shard->st.header_digest[0],
             shard->st.header_digest[1]);
}

/* Add the number of layers and, unless all have experts, the list of those that do. */
static void add_layers(cJSON *m, const struct fm_config *c)
{
    fm_json_add_uint(m, "layers", (uint64_t)c->L);
    if (c->M == c->L)
        return;
    cJSON *list = fm_json_add_array(m, "moe_layers");
    for (int i = 0; i < c->M; i++)
        fm_json_add_uint(list, NULL, (uint64_t)c->moe[i]);
}

/* Add the facts about the checkpoint's tensors that do not follow from sizes and dtype. */
static int add_tensors(cJSON *m, const struct fm_hfdir *dir, const struct fm_config *c,
                       enum fm_dtype dtype, struct fm_err *err)
{
    struct fm_extra extra = {0};
    struct fm_nonexpert nonexpert = {0};
    int rc = FM_OK;
    for (size_t i = 0; i < dir->shards; i++) {
        const struct fm_safetensors *st = &dir->shard[i].st;
        for (size_t k = 0; k < st->count && !rc; k++)
            if (!fm_extra_add(&extra, c, &st->tensor[k]))
                rc = fm_nonexpert_add(&nonexpert, c, &st->tensor[k], true, err);
    }
    if (rc)
        return fm_within(err, "%s", dir->path);
    fm_extra_json(m, &extra);
    add_nonexpert(m, &nonexpert, dtype);
    return FM_OK;
}

static void add_sum(cJSON *to, const char *key, const struct fm_digest *sum)
{
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, sum);
    fm_json_add_string(to, key, hex);
}

/* Add "weights", the digests of the checkpoint's weights: {"layers": [hex, ...], "rest": hex}. */
static void add_weights(cJSON *model, const struct fm_reading_sums *sums)
{
    cJSON *weights = fm_json_add_object(model, "weights");
    cJSON *layers = fm_json_add_array(weights, "layers");
    for (int l = 0; l < sums->L; l++)
        add_sum(layers, NULL, &sums->sum[l]);
    add_sum(weights, "rest", &sums->sum[sums->L]);
}

int fm_stage_model_identity(cJSON **model, const struct fm_hfdir *dir,
                            const struct fm_config *config, enum fm_dtype dtype,
                            const struct fm_reading_sums *sums, struct fm_err *err)
{
    struct fm_digest digest = fm_digest_of(dir->config, dir->config_bytes);
    cJSON *m = cJSON_CreateObject();
    *model = NULL;
    fm_json_add_string(m, "family", fm_config_family(config));
    add_sum(m, "config", &digest);
    cJSON *shards = fm_json_add_array(m, "shards");
    for (size_t i = 0; i < dir->shards; i++) {
        const struct fm_shard *shard = &dir->shard[i];
        char hex[FM_DIGEST_HEX];
        cJSON *s = fm_json_add_object(shards, NULL);
        print_header_digest(hex, shard);
        fm_json_add_string(s, "name", shard->name);
        fm_json_add_uint(s, "size", shard->file.size);
        fm_json_add_string(s, "header", hex);
    }
    add_layers(m, config);
    fm_json_add_uint(m, "experts", (uint64_t)config->E);
    fm_json_add_uint(m, "experts_per_token", (uint64_t)config->K);
    fm_json_add_uint(m, "hidden", (uint64_t)config->H);
    fm_json_add_uint(m, "channels", (uint64_t)config->I);
    fm_json_add_uint(m, "vocabulary", (uint64_t)config->V);
    fm_json_add_string(m, "dtype", fm_dtype_name(dtype));
    fm_json_add_uint(m, "params", fm_config_params(config, NULL));
    if (add_tensors(m, dir, config, dtype, err)) {
        cJSON_Delete(m);
        return err->code;
    }
    assert(!sums || sums->L == config->L);
    if (sums)
        add_weights(m, sums);
    *model = m;
    return FM_OK;
}

static int read_size(int *size, const cJSON *object, const char *key, int64_t max,
                     struct fm_err *err)
{
    int64_t value = 0;
    if (fm_json_get_int(object, key, 1, max, &value, err))
        return err->code;
    *size = (int)value;
    return FM_OK;
}

static int read_layers(struct fm_stage_model *m, const cJSON *model, struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(model, "moe_layers"), *entry;
    if (read_size(&m->L, model, "layers", FM_LAYERS_MAX, err))
        return err->code;
    for (int l = 0; !list && l < m->L; l++)
        m->moe[m->M++] = (int16_t)l;
    cJSON_ArrayForEach(entry, list)
    {
        int l = cJSON_IsNumber(entry) ? entry->valueint : -1, after = m->M ? m->moe[m->M - 1] : -1;
        if (l <= after || l >= m->L || l != entry->valuedouble)
            return fm_fail(err, FM_EFORMAT, "moe_layers must be increasing numbers from 0 to %d",
                           m->L - 1);
        m->moe[m->M++] = (int16_t)l;
    }
    return m->M > 0 ? FM_OK : fm_fail(err, FM_EFORMAT, "moe_layers is empty");
}

static int read_digest(const char **hex, const cJSON *object, const char *key, struct fm_err *err)
{
    struct fm_digest digest;
    if (fm_json_get_string(object, key, hex, err))
        return err->code;
    if (!fm_digest_parse(&digest, *hex, strlen(*hex)))
        return fm_fail(err, FM_EFORMAT, "'%s' is not 32 lower-case hexadecimal digits", key);
    return FM_OK;
}

/* Check that every shard has a name, a size and a digest, which are not compared here. */
static int check_shards(const cJSON *model, struct fm_err *err)
{
    const cJSON *shards = cJSON_GetObjectItemCaseSensitive(model, "shards"), *s;
    const char *text;
    uint64_t size;
    if (!cJSON_IsArray(shards) || !shards->child)
        return fm_fail(err, FM_EFORMAT, "key 'shards' is missing or empty");
    cJSON_ArrayForEach(s, shards)
    {
        if (fm_json_get_string(s, "name", &text, err) ||
            fm_json_get_uint(s, "size", 0, &size, err) || read_digest(&text, s, "header", err))
            return fm_within(err, "shards");
    }
    return FM_OK;
}

/* Read "weights", as add_weights writes it. */
static int read_sums(struct fm_reading_sums *sums, const cJSON *model, int L, struct fm_err *err)
{
    const cJSON *weights = cJSON_GetObjectItemCaseSensitive(model, "weights"), *entry;
    const cJSON *layers = cJSON_GetObjectItemCaseSensitive(weights, "layers");
    const char *hex;
    int l = 0;
    if (!cJSON_IsArray(layers) || cJSON_GetArraySize(layers) != L)
        return fm_fail(err, FM_EFORMAT, "weights: 'layers' is not a list of %d digests", L);
    cJSON_ArrayForEach(entry, layers)
    {
        if (!cJSON_IsString(entry) ||
            !fm_digest_parse(&sums->sum[l++], entry->valuestring, strlen(entry->valuestring)))
            return fm_fail(err, FM_EFORMAT,
                           "weights: layer %d: not 32 lower-case hexadecimal digits", l);
    }
    if (read_digest(&hex, weights, "rest", err))
        return fm_within(err, "weights");
    fm_digest_parse(&sums->sum[L], hex, strlen(hex));
    sums->L = L;
    return FM_OK;
}

/* Read "extra", {"layers": [numbers], "parts", "tensors", "bytes"}, which exists if the checkpoint
 * has extra tensors. */
static int read_extra(struct fm_stage_model *m, const cJSON *model,
                      const struct fm_model_family *family, struct fm_err *err)
{
    const cJSON *extra = cJSON_GetObjectItemCaseSensitive(model, "extra"), *entry;
    const cJSON *layers = cJSON_GetObjectItemCaseSensitive(extra, "layers");
    const struct fm_config of = {.family = family, .L = m->L};
    if (!extra)
        return FM_OK;
    if (fm_json_get_uint(extra, "tensors", 1, &m->extra.tensors, err) ||
        fm_json_get_uint(extra, "bytes", 0, &m->extra.bytes, err))
        return fm_within(err, "extra");
    cJSON_ArrayForEach(entry, layers)
    {
        int i = cJSON_IsNumber(entry) && entry->valueint == entry->valuedouble
                    ? fm_extra_index(&of, entry->valueint)
                    : -1;
        if (i < 0 || m->extra.seen >> i)
            return fm_fail(err, FM_EFORMAT,
                           "extra: 'layers' must increase and be layers that family '%s' can have "
                           "after its first %d",
                           family->name, m->L);
        m->extra.seen |= 1u << i;
        m->extra.first = entry->valueint - i;
        m->extra.form = family->extra;
    }
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(extra, "parts"))) {
        m->extra.seen |= 1u << FM_EXTRA_PARTS;
        m->extra.form = family->extra;
    }
    if (!m->extra.seen)
        return fm_fail(err, FM_EFORMAT, "extra: 'layers' is missing or empty");
    return FM_OK;
}

static int read_family(const struct fm_model_family **family, const cJSON *model,
                       struct fm_err *err)
{
    const char *name;
    if (fm_json_get_string(model, "family", &name, err))
        return err->code;
    *family = fm_families_find(name);
    return *family ? FM_OK : fm_fail(err, FM_ECONFIG, "family '%.64s' is not known", name);
}

static int read_model(struct fm_stage_model *m, const cJSON *model, struct fm_err *err)
{
    const struct fm_model_family *family;
    const char *text;
    if (!cJSON_IsObject(model))
        return fm_fail(err, FM_EFORMAT, "key 'model' is missing");
    if (read_family(&family, model, err) || read_digest(&text, model, "config", err) ||
        check_shards(model, err) || read_layers(m, model, err) ||
        read_size(&m->E, model, "experts", FM_EXPERTS_MAX, err) ||
        read_size(&m->K, model, "experts_per_token", m->E, err) ||
        read_size(&m->H, model, "hidden", FM_HIDDEN_MAX, err) ||
        read_size(&m->I, model, "channels", FM_CHANNELS_MAX, err) ||
        read_size(&m->V, model, "vocabulary", FM_VOCABULARY_MAX, err) ||
        fm_json_get_uint(model, "params", 1, &m->params, err) ||
        fm_json_get_string(model, "dtype", &text, err))
        return err->code;
    int dtype = fm_dtype_from_name(text, strlen(text));
    struct fm_reading_sums sums;
    if (read_sums(&sums, model, m->L, err) || read_extra(m, model, family, err))
        return err->code;
    m->channel_params = fm_expert_channel_params(family->expert, m->H);
    if (dtype < 0 || !fm_dtype_is_weight((enum fm_dtype)dtype))
        return fm_fail(err, FM_EFORMAT, "dtype '%s' is not one of BF16, F16, F32", text);
    m->dtype = (enum fm_dtype)dtype;
    uint64_t experts = (uint64_t)m->M * (uint64_t)m->E * (uint64_t)m->I * m->channel_params;
    if (experts > m->params)
        return fm_fail(err, FM_EFORMAT, "params is %" PRIu64 ", but the experts have %" PRIu64,
                       m->params, experts);
    return read_nonexpert(&m->nonexpert, model, m->dtype, m->params - experts, err);
}

int fm_stage_model_read(struct fm_stage_model *model, const struct fm_bundle *b, struct fm_err *err)
{
    const cJSON *json = cJSON_GetObjectItemCaseSensitive(b->manifest, "model");
    *model = (struct fm_stage_model){0};
    if (read_model(model, json, err))
        return fm_within(err, "%s: %s: model", b->file.path, FM_MEMBER_MANIFEST);
    return FM_OK;
}

int fm_stage_weights_read(struct fm_reading_sums *sums, const struct fm_bundle *b,
                          struct fm_err *err)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(b->manifest, "model");
    struct fm_stage_model m;
    int rc = fm_stage_model_read(&m, b, err);
    return rc ? rc : read_sums(sums, model, m.L, err);
}

int fm_stage_model_fits(const struct fm_bundle *b, const struct fm_config *c, struct fm_err *err)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(b->manifest, "model");
    struct fm_stage_model m;
    const char *family = "";
    if (fm_stage_model_read(&m, b, err) || fm_json_get_string(model, "family", &family, err))
        return err->code;
    if (strcmp(family, fm_config_family(c)) != 0)
        return fm_fail(err, FM_EFORMAT, "is of family '%s', but the manifest's model is of '%.64s'",
                       fm_config_family(c), family);
    if (c->L != m.L || c->M != m.M || memcmp(c->moe, m.moe, (size_t)c->M * sizeof *c->moe) != 0 ||
        c->E != m.E || c->K != m.K || c->H != m.H || c->I != m.I || c->V != m.V)
        return fm_fail(err, FM_EFORMAT, "its sizes are not those of the manifest's model");
    if (fm_config_params(c, NULL) != m.params)
        return fm_fail(err, FM_EFORMAT,
                       "has %" PRIu64 " parameters, but the manifest says %" PRIu64,
                       fm_config_params(c, NULL), m.params);
    return FM_OK;
}

int fm_stage_shard_bytes(uint64_t *bytes, const struct fm_bundle *b, struct fm_err *err)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(b->manifest, "model"), *shard;
    *bytes = 0;
    cJSON_ArrayForEach(shard, cJSON_GetObjectItemCaseSensitive(model, "shards"))
    {
        uint64_t size;
        if (fm_json_get_uint(shard, "size", 0, &size, err))
            return err->code;
        *bytes += size;
    }
    return FM_OK;
}

static int compare_shard(const struct fm_bundle *b, const cJSON *is, const struct fm_shard *shard,
                         struct fm_err *err)
{
    char hex[FM_DIGEST_HEX];
    const char *name = "", *header = "";
    uint64_t size;
    print_header_digest(hex, shard);
    if (fm_json_get_string(is, "name", &name, err) || fm_json_get_uint(is, "size", 0, &size, err) ||
        fm_json_get_string(is, "header", &header, err))
        return err->code;
    if (strcmp(name, shard->name) == 0 && size == shard->file.size && strcmp(header, hex) == 0)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "%s was made from another checkpoint: there, shard '%s' has %" PRIu64
                   " bytes and header digest %s; here, shard '%s' has %" PRIu64 " and %s",
                   b->file.path, name, size, header, shard->name, shard->file.size, hex);
}

int fm_stage_model_check(const struct fm_bundle *b, const struct fm_hfdir *dir, struct fm_err *err)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(b->manifest, "model");
    const cJSON *shards = cJSON_GetObjectItemCaseSensitive(model, "shards");
    const char *config = "";
    char hex[FM_DIGEST_HEX];
    struct fm_digest digest = fm_digest_of(dir->config, dir->config_bytes);
    fm_digest_hex(hex, &digest);
    if (fm_json_get_string(model, "config", &config, err))
        return err->code;
    if (strcmp(config, hex) != 0)
        return fm_fail(
            err, FM_ECONFIG,
            "%s: config.json has digest %s, but %s was made from a checkpoint where it "
            "has %s; give that one with --model, or rank and train on this one (a quantised "
            "version has other weights)",
            dir->path, hex, b->file.path, config);
    if ((size_t)cJSON_GetArraySize(shards) != dir->shards)
        return fm_fail(err, FM_ECONFIG,
                       "%s: has %zu shards, but %s was made from a checkpoint with %d", dir->path,
                       dir->shards, b->file.path, cJSON_GetArraySize(shards));
    const cJSON *is = shards->child;
    for (size_t i = 0; i < dir->shards; i++, is = is->next)
        if (compare_shard(b, is, &dir->shard[i], err))
            return fm_within(err, "%s", dir->path);
    return FM_OK;
}

int fm_stage_model_same(const struct fm_bundle *b, const struct fm_bundle *other,
                        struct fm_err *err)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(b->manifest, "model");
    const cJSON *y = cJSON_GetObjectItemCaseSensitive(other->manifest, "model"), *item;
    cJSON_ArrayForEach(item, y)
    {
        if (!cJSON_Compare(item, cJSON_GetObjectItemCaseSensitive(x, item->string), true))
            return fm_fail(err, FM_ECONFIG,
                           "'%s' and '%s' are of different models: model.%s differs", b->file.path,
                           other->file.path, item->string);
    }
    return FM_OK;
}

uint64_t fm_stage_tensor_bytes(const struct fm_hfdir *dir, const struct fm_config *config)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < dir->shards; i++)
        for (size_t k = 0; k < dir->shard[i].st.count; k++) {
            struct fm_stored s = {.tensor = &dir->shard[i].st.tensor[k]};
            fm_stored_see(&s, config, FM_NAMING_STOCK);
            bytes += s.extra ? 0 : fm_stored_bytes(&s);
        }
    return bytes;
}

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* Versions of software that can change the bytes of outputs from one build to the next. */
int fm_stage_build(char **text, struct fm_err *err)
{
    char onednn[64], xxhash[32];
    unsigned v = XXH_versionNumber();
    snprintf(xxhash, sizeof xxhash, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    fm_ops_dnnl_version(onednn, (int)sizeof onednn);
    const char *const pairs[][2] = {{"suite", FM_VERSION},
                                    {"compiler", COMPILER},
                                    {"libarchive", archive_version_string()},
                                    {"zstd", ZSTD_versionString()},
                                    {"xxhash", xxhash},
                                    {"cjson", cJSON_Version()},
                                    {"onednn", onednn}};
    cJSON *build = cJSON_CreateObject();
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        fm_json_add_string(build, pairs[i][0], pairs[i][1]);
    *text = fm_json_print(build);
    cJSON_Delete(build);
    return *text ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for %s", FM_MEMBER_BUILD);
}
