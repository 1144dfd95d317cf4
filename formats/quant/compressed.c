/*
 * compressed-tensors, as llm-compressor writes it: a container of several formats.
 * `config_groups` say how weights are stored.  Zero points and activation order are refused.
 * `ignore` is not needed, because the names and dtypes of tensors show which are quantised; nor are
 * `targets` if all groups have the same scheme.  If the groups differ (format mixed-precision),
 * `targets` select the modules of each group.
 *
 * Source: compressed_tensors 0.20, compressors/ and quantization/lifecycle/forward_helpers.py.
 */
#include <math.h>
#include <string.h>

#include "formats/quant/formats.h"

#define GROUPS_MAX 64

const struct fm_carried_end fm_compressed_carried[] = {
    {".input_scale", ""}, {".input_global_scale", ""}, {NULL, NULL}};

/* How config.json describes each scheme: `size` 0 means any; block sizes are in block_structure. */
static const struct {
    const char *format, *type, *strategy;
    int bits, size;
    const struct fm_storage *storage;
} schemes[] = {
    {"float-quantized", "float", "channel", 8, 0, &fm_fp8_channel},
    {"naive-quantized", "float", "channel", 8, 0, &fm_fp8_channel},
    {"float-quantized", "float", "tensor", 8, 0, &fm_fp8_tensor},
    {"naive-quantized", "float", "tensor", 8, 0, &fm_fp8_tensor},
    {"float-quantized", "float", "block", 8, 0, &fm_fp8_block},
    {"naive-quantized", "float", "block", 8, 0, &fm_fp8_block},
    {"pack-quantized", "int", "group", 4, 0, &fm_int4},
    {"pack-quantized", "int", "channel", 4, 0, &fm_int4},
    {"nvfp4-pack-quantized", "float", "tensor_group", 4, 16, &fm_nvfp4_ct},
    {"mxfp4-pack-quantized", "float", "group", 4, 32, &fm_mxfp4_ct},
    {"mxfp8-quantized", "float", "group", 8, 32, &fm_mxfp8_ct},
};

static const char *word_of(const cJSON *object, const char *key)
{
    const char *text = fm_json_string_value(object, key);
    return text ? text : "";
}

static bool is_said(const cJSON *object, const char *key)
{
    const cJSON *value = fm_json_value(object, key);
    return value && !cJSON_IsFalse(value);
}

static int read_sizes(struct fm_scheme *s, const cJSON *weights, struct fm_err *err)
{
    const struct fm_storage *storage = s->storage;
    const cJSON *sizes = cJSON_GetObjectItemCaseSensitive(weights, "block_structure");
    double size[2] = {1, 0};
    if (storage == &fm_fp8_tensor)
        return FM_OK;
    if (storage == &fm_fp8_block) {
        for (int i = 0; i < 2; i++) {
            const cJSON *one = cJSON_GetArrayItem(sizes, i);
            size[i] = cJSON_IsNumber(one) ? one->valuedouble : 0;
        }
    } else if (strcmp(word_of(weights, "strategy"), "channel") != 0) {
        size[1] = -1;
        int rc = fm_json_opt_double(weights, "group_size", 1, FM_STORAGE_BLOCK_MAX, &size[1], err);
        if (rc)
            return rc;
    }
    bool fits = size[0] >= 1 && size[0] <= FM_STORAGE_BLOCK_MAX &&
                size[1] >= (storage == &fm_fp8_block ? 1 : 0) && size[1] <= FM_STORAGE_BLOCK_MAX;
    if (!fits || size[0] != floor(size[0]) || size[1] != floor(size[1]))
        return fm_fail(err, FM_EFORMAT, "sizes of blocks are not integers from 1 to %d",
                       FM_STORAGE_BLOCK_MAX);
    s->block_rows = (int)size[0];
    s->block_columns = (int)size[1];
    return FM_OK;
}

/* Read one of config_groups. */
static int read_group(struct fm_scheme *s, const cJSON *quantization, const cJSON *group,
                      struct fm_err *err)
{
    const cJSON *weights = cJSON_GetObjectItemCaseSensitive(group, "weights");
    const cJSON *symmetric = cJSON_GetObjectItemCaseSensitive(weights, "symmetric");
    const char *format = word_of(group, "format"), *type = word_of(weights, "type");
    const char *strategy = word_of(weights, "strategy");
    double bits = 0, size = 0;
    format = format[0] ? format : word_of(quantization, "format");
    int rc = fm_json_opt_double(weights, "num_bits", 0, 64, &bits, err);
    if (!rc)
        rc = fm_json_opt_double(weights, "group_size", -1, 1e9, &size, err);
    if (rc)
        return rc;
    if (cJSON_IsFalse(symmetric))
        return fm_fail(err, FM_ECONFIG,
                       "symmetric false: codes with zero points are not supported; use the model's "
                       "BF16 original");
    if (is_said(weights, "actorder"))
        return fm_fail(err, FM_ECONFIG,
                       "actorder '%.32s': columns in another order are not supported; use the "
                       "model's BF16 original",
                       word_of(weights, "actorder"));
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        bool same = strcmp(schemes[i].format, format) == 0 && strcmp(schemes[i].type, type) == 0 &&
                    strcmp(schemes[i].strategy, strategy) == 0 && schemes[i].bits == (int)bits;
        if (!same || (schemes[i].size && schemes[i].size != (int)size))
            continue;
        *s = (struct fm_scheme){.storage = schemes[i].storage};
        return read_sizes(s, weights, err);
    }
    return fm_fail(err, FM_ECONFIG,
                   "format '%.32s' with %g bits, type '%.16s', strategy '%.16s' is not supported; "
                   "use the model's BF16 original, or dequantize it first",
                   format, bits, type, strategy);
}

/* Add the targets of a group, with the scheme that was read for it. */
static int add_targets(struct fm_schemes **several, const cJSON *group,
                       const struct fm_scheme *scheme, struct fm_err *err)
{
    const cJSON *targets = cJSON_GetObjectItemCaseSensitive(group, "targets"), *target;
    if (cJSON_GetArraySize(targets) == 0)
        return fm_fail(err, FM_EFORMAT, "key 'targets' is missing or empty");
    cJSON_ArrayForEach(target, targets)
    {
        const char *text = cJSON_GetStringValue(target);
        if (!text || !text[0])
            return fm_fail(err, FM_EFORMAT, "key 'targets' is not a list of strings");
        if (fm_schemes_add(several, text, scheme, err))
            return err->code;
    }
    return FM_OK;
}

static int read_compressed(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                           struct fm_err *err)
{
    const cJSON *groups = cJSON_GetObjectItemCaseSensitive(json, "config_groups"), *group;
    const char *status = word_of(json, "quantization_status");
    struct fm_scheme scheme[GROUPS_MAX];
    int count = 0;
    bool differ = false;
    if (!cJSON_IsObject(groups) || cJSON_GetArraySize(groups) == 0)
        return fm_fail(err, FM_EFORMAT, "key 'config_groups' is missing or empty");
    if (cJSON_GetArraySize(groups) > GROUPS_MAX)
        return fm_fail(err, FM_ECONFIG, "config_groups has %d groups, more than %d",
                       cJSON_GetArraySize(groups), GROUPS_MAX);
    if (status[0] && strcmp(status, "compressed") != 0)
        return fm_fail(err, FM_ECONFIG, "quantization_status '%.32s' is not supported", status);
    cJSON_ArrayForEach(group, groups)
    {
        if (read_group(&scheme[count++], json, group, err))
            return fm_within(err, "config_groups: %.40s", group->string);
        differ = differ || !fm_scheme_equal(&scheme[count - 1], scheme);
    }
    *s = scheme[count - 1];
    count = 0;
    cJSON_ArrayForEach(group, groups)
    {
        if (differ && add_targets(several, group, &scheme[count++], err))
            return fm_within(err, "config_groups: %.40s", group->string);
    }
    if (differ)
        fm_schemes_done(*several);
    return FM_OK;
}

const struct fm_quant_method fm_method_compressed = {.name = "compressed-tensors",
                                                     .read = read_compressed};
