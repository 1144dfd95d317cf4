/*
 * Checkpoints of GPTQ (quant_method gptq), read as compressed-tensors' pack-quantized: the codes
 * are the same words and the scales the same numbers, in matrices that are transposed.
 *
 *     X.qweight I32 (K / 8, N)         X.weight_packed I32 (N, K / 8)  four-bit integers, 8 added
 *     X.scales (K / group, N)          X.weight_scale (N, K / group)
 *     X.qzeros I32 (K / group, N / 8)  X.weight_shape I64 (2)          zero points, all 8
 *     X.g_idx I32 (K)                  absent                          groups, ascending
 *
 * Source: AutoGPTQ's and GPTQModel's qlinear modules, which store a zero point minus one unless
 * checkpoint_format is gptq_v2.
 *
 * No file is converted: names and shapes change in the list of each file's tensors, and
 * fm_tensor_read transposes the data that it reads.  Zero points and the order of columns are read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/text.h"
#include "formats/quant/formats.h"
#include "lib/base/names.h"
#include "lib/base/pool.h"

static int check_number(const cJSON *quant, const char *key, double from, double to, double *value,
                        struct fm_err *err)
{
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(quant, key);
    *value = cJSON_IsNumber(entry) ? entry->valuedouble : 0;
    if (*value >= from && *value <= to && *value == (double)(int)*value)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "gptq with %s %g is not supported (only %g%s); use the model's BF16 original",
                   key, *value, from, from < to ? " or more" : "");
}

/* Read a tensor of 32-bit integers into scratch. */
static int read_integers(const int32_t **value, const struct fm_tensor *t,
                         const struct fm_quant_file *s, struct fm_err *err)
{
    int32_t *to = fm_scratch((size_t)t->size + 1);
    *value = to;
    return fm_file_read(s->file, t->offset, to, (size_t)t->size, err);
}

/* Check the zero points, and set the tensor's form to FM_TENSOR_SIZES. */
static int take_zeros(struct fm_tensor *t, const struct fm_quant_file *s, int group, bool minus_one,
                      struct fm_err *err)
{
    const int32_t *zeros;
    uint32_t want = minus_one ? 0x77777777 : 0x88888888, other = want ^ 0xffffffff;
    int rc = read_integers(&zeros, t, s, err);
    size_t n = t->size / sizeof *zeros, good = 0, swapped = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        good += (uint32_t)zeros[i] == want;
        swapped += (uint32_t)zeros[i] == other;
    }
    if (!rc && good < n && swapped == n)
        rc = fm_fail(err, FM_ECONFIG,
                     "tensor '%s' has %d for all zero points, which mean %d with checkpoint_format "
                     "%s and 8 with %s; if the model is symmetric, set checkpoint_format to %s in "
                     "quantization_config",
                     t->name, minus_one ? 8 : 7, minus_one ? 9 : 7, minus_one ? "gptq" : "gptq_v2",
                     minus_one ? "gptq_v2" : "gptq", minus_one ? "gptq_v2" : "gptq");
    else if (!rc && good < n)
        rc = fm_fail(err, FM_ECONFIG,
                     "tensor '%s' has zero points other than 8 (sym false); use the model's "
                     "BF16 original",
                     t->name);
    else if (!rc && __builtin_mul_overflow(t->shape[0], group, &t->sizes[1]))
        rc = fm_fail(err, FM_EFORMAT, "tensor '%s' has %llu rows, too many for groups of %d",
                     t->name, (unsigned long long)t->shape[0], group);
    t->sizes[0] = 8 * (int64_t)t->shape[1];
    t->form = FM_TENSOR_SIZES;
    t->dtype = FM_I64;
    t->dims = 1;
    t->shape[0] = 2;
    t->size = sizeof t->sizes;
    return rc;
}

static int check_order(const struct fm_tensor *t, const struct fm_quant_file *s, int group,
                       struct fm_err *err)
{
    const int32_t *of;
    int rc = read_integers(&of, t, s, err);
    for (size_t k = 0; k < t->size / sizeof *of && !rc; k++)
        if (of[k] != (int32_t)(k / (size_t)group))
            rc = fm_fail(err, FM_ECONFIG,
                         "tensor '%s' has columns in another order (desc_act true); use the "
                         "model's BF16 original",
                         t->name);
    return rc;
}

static const struct {
    const char *end, *as; /* suffixes; NULL in `as`: the tensor is dropped */
    int dims;
    bool integers;
} ends[] = {{".qweight", ".weight_packed", 2, true},
            {".scales", ".weight_scale", 2, false},
            {".qzeros", ".weight_shape", 2, true},
            {".g_idx", NULL, 1, true}};

/* Rename a tensor, storing the new name in `names`, and set its shape and form.  *left_out: the
 * tensor is dropped. */
static int take_tensor(struct fm_tensor *t, bool *left_out, char **names,
                       const struct fm_quant_file *s, int group, bool minus_one, struct fm_err *err)
{
    size_t i = 0, n = sizeof ends / sizeof *ends;
    *left_out = false;
    while (i < n && !fm_ends_with(t->name, ends[i].end))
        i++;
    if (i == n)
        return FM_OK;
    bool number = t->dtype == FM_F16 || t->dtype == FM_BF16 || t->dtype == FM_F32;
    if (t->dims != ends[i].dims || !(ends[i].integers ? t->dtype == FM_I32 : number))
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is %s with %d dimensions; gptq has %s with %d",
                       t->name, fm_dtype_name(t->dtype), t->dims,
                       ends[i].integers ? "I32" : "numbers", ends[i].dims);
    struct fm_mark mark = fm_scratch_mark();
    int rc = FM_OK;
    *left_out = !ends[i].as;
    if (!ends[i].as)
        rc = check_order(t, s, group, err);
    else if (i == 2)
        rc = take_zeros(t, s, group, minus_one, err);
    fm_scratch_release(mark);
    if (rc || !ends[i].as)
        return rc;
    if (i < 2) {
        uint64_t rows = t->shape[0];
        t->shape[0] = t->shape[1];
        t->shape[1] = rows;
        t->form = FM_TENSOR_TURNED;
    }
    int length = (int)(strlen(t->name) - strlen(ends[i].end));
    int size = snprintf(*names, FM_ST_NAME_BYTES_MAX + 1, "%.*s%s", length, t->name, ends[i].as);
    if (size > FM_ST_NAME_BYTES_MAX)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' has a name that is too long", t->name);
    t->name = *names;
    *names += size + 1;
    return FM_OK;
}

static int take_shard(struct fm_quant_file *s, int group, bool minus_one, struct fm_err *err)
{
    size_t bytes = 1, count = 0;
    for (size_t i = 0; i < s->count; i++)
        bytes += strlen(s->tensor[i].name) + sizeof ".weight_packed";
    char *names = malloc(bytes + FM_ST_NAME_BYTES_MAX);
    s->renamed = names;
    if (!names)
        return fm_fail(err, FM_ENOMEM, "no memory for the names of tensors");
    for (size_t i = 0; i < s->count; i++) {
        bool left_out;
        struct fm_tensor *t = &s->tensor[i];
        if (take_tensor(t, &left_out, &names, s, group, minus_one, err))
            return err->code;
        if (!left_out)
            s->tensor[count++] = *t;
    }
    s->count = count;
    fm_names_sort(s->tensor, count, sizeof *s->tensor);
    return FM_OK;
}

static bool has_tensor(const struct fm_quant_file *file, size_t files, const char *name)
{
    for (size_t s = 0; s < files; s++)
        if (fm_names_find(file[s].tensor, file[s].count, sizeof *file[s].tensor, name))
            return true;
    return false;
}

/* Check that every matrix of codes has zero points and, if `order`, a g_idx, because missing
 * ones cannot be checked. */
static int check_complete(const struct fm_quant_file *file, size_t files,
                          const struct fm_quant_file *s, bool order, struct fm_err *err)
{
    for (size_t i = 0; i < s->count; i++) {
        const char *codes = s->tensor[i].name;
        for (int k = 2; k < (order ? 4 : 3); k++) {
            char name[FM_ST_NAME_BYTES_MAX + sizeof ".qzeros"];
            if (!fm_ends_with(codes, ".qweight"))
                continue;
            snprintf(name, sizeof name, "%.*s%s", (int)(strlen(codes) - strlen(".qweight")), codes,
                     ends[k].end);
            if (!has_tensor(file, files, name))
                return fm_fail(err, FM_ECONFIG,
                               "tensor '%s' has no '%s' (%s); use the model's BF16 original", codes,
                               name, k == 2 ? "zero points" : "desc_act true");
        }
    }
    return FM_OK;
}

/* Make a configuration like those that compressed-tensors writes; its `ignore` names the matrices
 * that are not quantised. */
static int make_config(char **config, const struct fm_quant_file *file, size_t files, int group,
                       struct fm_err *err)
{
    struct fm_text t = {0};
    fm_text_printf(&t,
                   "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
                   "\"quantization_status\": \"compressed\", \"config_groups\": {\"group_0\": "
                   "{\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": \"int\", "
                   "\"symmetric\": true, \"strategy\": \"group\", \"group_size\": %d, "
                   "\"dynamic\": false}, \"input_activations\": null}}, \"kv_cache_scheme\": null, "
                   "\"ignore\": [",
                   group);
    bool first = has_tensor(file, files, "lm_head.weight_packed");
    if (!first)
        fm_text_quote(&t, "lm_head");
    for (size_t s = 0; s < files; s++)
        for (size_t i = 0; i < file[s].count; i++) {
            const struct fm_tensor *plain = &file[s].tensor[i];
            char module[FM_ST_NAME_BYTES_MAX + 1];
            if (plain->dims != 2 || !fm_ends_with(plain->name, ".weight") ||
                strstr(plain->name, "embed_tokens") || strcmp(plain->name, "lm_head.weight") == 0)
                continue;
            snprintf(module, sizeof module, "%.*s", (int)(strlen(plain->name) - strlen(".weight")),
                     plain->name);
            fm_text_printf(&t, first ? "" : ", ");
            first = false;
            fm_text_quote(&t, module);
        }
    fm_text_printf(&t, "]}");
    fm_text_add(&t, "", 1);
    *config = t.data;
    return t.failed ? fm_fail(err, FM_ENOMEM, "no memory for config.json") : FM_OK;
}

static int take_gptq(char **config, struct fm_quant_file *file, size_t files, const cJSON *quant,
                     bool inner, struct fm_err *err)
{
    const char *format = fm_json_string_value(quant, "checkpoint_format");
    bool second = format && strcmp(format, "gptq_v2") == 0;
    bool order = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(quant, "desc_act"));
    double bits, group;
    if (inner) /* not supported: fm_storage_read refuses it */
        return FM_OK;
    int rc = check_number(quant, "bits", 4, 4, &bits, err);
    if (!rc)
        rc = check_number(quant, "group_size", 8, 1 << 20, &group, err);
    if (!rc && format && !second && strcmp(format, "gptq") != 0)
        rc = fm_fail(err, FM_ECONFIG,
                     "checkpoint_format '%.32s' is not supported (only gptq and gptq_v2); use the "
                     "model's BF16 original",
                     format);
    if (rc)
        return fm_within(err, "config.json: quantization_config");
    for (size_t s = 0; s < files; s++)
        if (check_complete(file, files, &file[s], order, err))
            return fm_within(err, "%s", file[s].name);
    for (size_t s = 0; s < files; s++)
        if (take_shard(&file[s], (int)group, !second, err))
            return fm_within(err, "%s", file[s].name);
    return make_config(config, file, files, (int)group, err);
}

const struct fm_quant_method fm_method_gptq = {.name = "gptq", .take = take_gptq};
