/*
 * A channel group is a common multiple of the block sizes, so that no block of a plane, and no byte
 * or word of codes, contains both channels that are kept and channels that are removed.
 */
#include "formats/quant/quant.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/quant/formats.h"
#include "lib/base/mem.h"
#include "lib/base/modules.h"
#include "lib/base/names.h"

#define NAME_BYTES 1024 /* longer than any tensor's name */

int fm_storage_both(int a, int b)
{
    return (int)fm_lcm((uint64_t)a, (uint64_t)b, FM_STORAGE_BLOCK_MAX + 1);
}

void fm_scheme_planes(struct fm_plane plane[FM_PLANES], const struct fm_scheme *s)
{
    int bits = fm_storage_bits(s->storage);
    plane[0] = (struct fm_plane){"", bits, fm_dtype_bits(s->storage->codes) / bits, 1, 1};
    plane[1] = (struct fm_plane){"_scale", 0, 1, s->block_rows, s->block_columns};
}

int fm_scheme_group(const struct fm_scheme *s)
{
    struct fm_plane plane[FM_PLANES];
    int group = 1;
    if (!s->storage)
        return 1;
    fm_scheme_planes(plane, s);
    for (int i = 0; i < FM_PLANES && group <= FM_STORAGE_BLOCK_MAX; i++) {
        group = fm_storage_both(group, plane[i].block_rows);
        group = fm_storage_both(group, plane[i].block_columns * plane[i].whole);
    }
    return group;
}

void fm_storage_scales(float *scale, const struct fm_storage *s, const void *raw,
                       enum fm_dtype dtype, size_t n, float factor)
{
    fm_dtype_to_f32(scale, raw, dtype == FM_U8 ? FM_F8_E8M0 : dtype, n);
    for (size_t i = 0; s->factor_end && i < n; i++)
        scale[i] = s->divides ? scale[i] / factor : scale[i] * factor;
}

size_t fm_scheme_blocks(const struct fm_scheme *s, size_t rows, size_t columns)
{
    return (size_t)(fm_scheme_across(rows, s->block_rows) *
                    fm_scheme_across(columns, s->block_columns));
}

void fm_scheme_decode(float *values, const struct fm_scheme *s, const void *codes,
                      const float *scale, size_t rows, size_t columns)
{
    const struct fm_scales scales = {.scale = scale,
                                     .count = fm_scheme_blocks(s, rows, columns),
                                     .columns = (int64_t)columns,
                                     .block_rows = s->block_rows ? s->block_rows : (int64_t)rows,
                                     .block_columns =
                                         s->block_columns ? s->block_columns : (int64_t)columns,
                                     .code = s->storage->code};
    assert(rows * columns * (size_t)fm_code_bits(scales.code) % 8 == 0);
    fm_scaled_to_f32(values, codes, &scales, 0, rows * columns);
}

/* ---- several schemes ---- */

struct entry {
    char *text; /* first, for fm_names_find */
    struct fm_modules modules;
    struct fm_scheme scheme;
    size_t at; /* position in the file */
};

/* Names of modules, sorted; patterns and expressions in the order of the file; and the scheme of
 * the rest. */
struct fm_schemes {
    struct entry *entry;
    size_t room, entries, names; /* names of modules come first */
    size_t patterns;             /* entries that are not names */
    struct fm_scheme rest;
};

static bool is_name(const struct entry *e)
{
    return !e->modules.expression && !e->modules.inside;
}

int fm_schemes_add(struct fm_schemes **schemes, const char *target, const struct fm_scheme *scheme,
                   struct fm_err *err)
{
    if (!*schemes)
        *schemes = fm_alloc(1, sizeof **schemes, "the list of schemes", err);
    struct fm_schemes *s = *schemes;
    if (!s)
        return err->code;
    if (strcmp(target, "Linear") == 0) {
        s->rest = s->rest.storage ? s->rest : *scheme;
        return FM_OK;
    }
    /* A class has no dot and starts with a capital letter. */
    if (!strpbrk(target, ".:*") && target[0] >= 'A' && target[0] <= 'Z')
        return fm_fail(err, FM_ECONFIG,
                       "target '%.64s' is a class that is not supported (only Linear)", target);
    if (FM_GROW(s->entry, s->room, s->entries + 1, "the list of schemes", err))
        return err->code;
    struct entry *e = &s->entry[s->entries];
    *e = (struct entry){.scheme = *scheme, .text = fm_strdup(target, err), .at = s->entries};
    if (!e->text)
        return err->code;
    if (!fm_modules_read(&e->modules, e->text)) {
        free(e->text);
        return fm_fail(err, FM_ECONFIG,
                       "target '%.64s' is not a supported regular expression: POSIX, at most %d "
                       "bytes, no '{', no back references, at most 16 nested groups, at most 4 of "
                       "them followed by '+'",
                       target, FM_EXPRESSION_BYTES_MAX);
    }
    s->entries++;
    if (is_name(e) || ++s->patterns <= FM_PATTERNS_MAX)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG, "there are more than %d patterns and regular expressions",
                   FM_PATTERNS_MAX);
}

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (is_name(x) != is_name(y))
        return is_name(x) ? -1 : 1;
    int order = is_name(x) ? strcmp(x->text, y->text) : 0;
    return order ? order : x->at < y->at ? -1 : x->at > y->at;
}

void fm_schemes_done(struct fm_schemes *s)
{
    if (s->entries)
        qsort(s->entry, s->entries, sizeof *s->entry, compare_entries);
    while (s->names < s->entries && is_name(&s->entry[s->names]))
        s->names++;
}

void fm_schemes_free(struct fm_schemes *s)
{
    for (size_t i = 0; s && i < s->entries; i++) {
        fm_modules_release(&s->entry[i].modules);
        free(s->entry[i].text);
    }
    free(s ? s->entry : NULL);
    free(s);
}

struct fm_scheme fm_schemes_of(const struct fm_schemes *s, const char *name)
{
    char module[NAME_BYTES], parent[NAME_BYTES];
    const char *end = strrchr(name, '.');
    snprintf(module, sizeof module, "%.*s", (int)(end ? end - name : 0), name);
    snprintf(parent, sizeof parent, "%s", module);
    while (parent[0]) {
        const struct entry *e = fm_names_find(s->entry, s->names, sizeof *e, parent);
        char *dot = strrchr(parent, '.');
        if (e)
            return e->scheme;
        *(dot ? dot : parent) = '\0';
    }
    for (size_t i = s->names; i < s->entries; i++)
        if (fm_modules_match(&s->entry[i].modules, module))
            return s->entry[i].scheme;
    return s->rest;
}

/* Storage i, below storages(s): that of `scheme`, then those of the list; NULL: unquantised. */
static const struct fm_storage *storage_at(const struct fm_scheme *scheme,
                                           const struct fm_schemes *s, size_t i)
{
    return i == 0            ? scheme->storage
           : i <= s->entries ? s->entry[i - 1].scheme.storage
                             : s->rest.storage;
}

static size_t storages(const struct fm_schemes *s)
{
    return s ? s->entries + 2 : 1;
}

void fm_storage_names(char text[FM_STORAGE_NAMES], const struct fm_scheme *scheme,
                      const struct fm_schemes *s)
{
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < storages(s) && n < FM_STORAGE_NAMES; i++) {
        const struct fm_storage *own = storage_at(scheme, s, i);
        bool first = own != NULL;
        for (size_t k = 0; k < i && first; k++)
            first = storage_at(scheme, s, k) != own;
        if (first)
            n += (size_t)snprintf(text + n, FM_STORAGE_NAMES - n, "%s%s", n ? ", " : "", own->name);
    }
}

uint64_t fm_storage_growth(const struct fm_scheme *scheme, const struct fm_schemes *s)
{
    uint64_t most = 1;
    for (size_t i = 0; i < storages(s); i++) {
        const struct fm_storage *at = storage_at(scheme, s, i);
        uint64_t own = at ? (uint64_t)(fm_dtype_bits(at->written) / fm_storage_bits(at)) : 1;
        most = own > most ? own : most;
    }
    return most;
}

bool fm_storage_exact(const struct fm_scheme *scheme, const struct fm_schemes *s)
{
    bool exact = true;
    for (size_t i = 0; i < storages(s); i++)
        exact = exact && (!storage_at(scheme, s, i) || storage_at(scheme, s, i)->exact);
    return exact;
}

/* ---- the lists ---- */

static const struct fm_quant_method *const methods[] = {
    &fm_method_fp8,   &fm_method_mxfp4,    &fm_method_compressed, &fm_method_gptq,
    &fm_method_mxfp8, &fm_method_modelopt, &fm_method_awq};

const struct fm_quantiser *const fm_quantisers[] = {&fm_to_fp8_block, &fm_to_fp8,   &fm_to_w4a16,
                                                    &fm_to_w4a16_32,  &fm_to_nvfp4, &fm_to_nvfp4_ct,
                                                    &fm_to_mxfp4,     &fm_to_mxfp8, NULL};
_Static_assert(sizeof fm_quantisers / sizeof *fm_quantisers <= FM_QUANTISERS_MAX + 1,
               "FM_QUANTISERS_MAX");

const struct fm_quantiser *fm_quantisers_find(const char *name)
{
    const struct fm_quantiser *const *q = fm_quantisers;
    while (*q && strcmp((*q)->name, name) != 0)
        q++;
    return *q;
}

void fm_quantisers_choices(char *text, size_t size)
{
    size_t at = 0;
    for (const struct fm_quantiser *const *q = fm_quantisers; *q && at < size; q++)
        at += (size_t)snprintf(text + at, size - at, "|%s", (*q)->name);
}

static const char *const servers[FM_SERVERS + 1] = {"any", "vllm", "sglang"};

const char *fm_server_name(enum fm_server server)
{
    return servers[server];
}

int fm_server_find(const char *name)
{
    return fm_names_index(servers, name);
}

int fm_storage_read(struct fm_scheme *scheme, struct fm_schemes **schemes, const cJSON *json,
                    bool fused, bool *known, struct fm_err *err)
{
    const char *name = fm_json_string_value(json, "quant_method");
    *known = true;
    for (size_t i = 0; name && i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i]->name, name) == 0 && methods[i]->read &&
            (fused || !methods[i]->fused))
            return methods[i]->read(scheme, schemes, json, err);
    *known = false;
    return fm_fail(err, FM_ECONFIG,
                   "the model is quantized (quantization_config%s%.32s); use its BF16, F16 or F32 "
                   "original, or dequantize it first",
                   name ? ": " : "", name ? name : "");
}

int fm_quant_take(char **config, struct fm_quant_file *file, size_t files, const char *text,
                  size_t bytes, struct fm_err *err)
{
    cJSON *json = NULL;
    int rc = fm_json_tree(&json, text, bytes, err);
    *config = NULL;
    if (rc)
        return fm_within(err, "config.json");
    const cJSON *quant = cJSON_GetObjectItemCaseSensitive(json, "quantization_config");
    bool inner = !quant;
    if (inner)
        quant = cJSON_GetObjectItemCaseSensitive(
            cJSON_GetObjectItemCaseSensitive(json, "text_config"), "quantization_config");
    const char *name = fm_json_string_value(quant, "quant_method");
    for (size_t i = 0; name && i < sizeof methods / sizeof *methods && !rc; i++)
        if (methods[i]->take && strcmp(methods[i]->name, name) == 0)
            rc = methods[i]->take(config, file, files, quant, inner, err);
    cJSON_Delete(json);
    return rc;
}
