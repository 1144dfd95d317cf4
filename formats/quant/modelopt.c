/*
 * Formats of NVIDIA's ModelOpt, by `quant_algo`: NVFP4 and W4A16_NVFP4; FP8, with one scale for the
 * matrix; MXFP8; and MIXED_PRECISION, one of these for each module that `quantized_layers` lists;
 * all other modules are not quantised.
 *
 * `X.input_scale` is for servers.  Other algorithms are refused by name; in `quantized_layers`,
 * only if the module is read.
 *
 * Source: nvidia-modelopt 0.47, torch/quantization/qtensor and torch/export (quant_utils.py,
 * convert_hf_config.py).
 */
#include <string.h>

#include "formats/quant/formats.h"

const struct fm_carried_end fm_modelopt_carried[] = {{".input_scale", ""}, {NULL, NULL}};

static const struct {
    const char *name;
    struct fm_scheme scheme;
} algorithms[] = {
    {"NVFP4", {&fm_nvfp4, 1, 16}},
    {"W4A16_NVFP4", {&fm_nvfp4, 1, 16}},
    {"FP8", {&fm_fp8_modelopt, 0, 0}},
    {"MXFP8", {&fm_mxfp8_modelopt, 1, 32}},
};

/* The scheme of an object's quant_algo and group_size; storage NULL if the algorithm is not
 * supported.  FM_ECONFIG if the group has a different size. */
static int read_algorithm(struct fm_scheme *scheme, const cJSON *json, struct fm_err *err)
{
    const char *algo = fm_json_string_value(json, "quant_algo");
    *scheme = (struct fm_scheme){0};
    for (size_t i = 0; algo && i < sizeof algorithms / sizeof *algorithms; i++)
        if (strcmp(algo, algorithms[i].name) == 0)
            *scheme = algorithms[i].scheme;
    double want = scheme->block_columns, size = want;
    if (want == 0)
        return FM_OK;
    int rc = fm_json_opt_double(json, "group_size", 1, 1e9, &size, err);
    if (rc || size == want)
        return rc;
    return fm_fail(err, FM_ECONFIG, "group_size %g of %s is not supported (only %g)", size, algo,
                   want);
}

static int fail_algorithm(const cJSON *json, struct fm_err *err)
{
    const char *algo = fm_json_string_value(json, "quant_algo");
    return fm_fail(err, FM_ECONFIG,
                   "quant_algo '%.32s' is not supported (only NVFP4, W4A16_NVFP4, FP8, MXFP8 and "
                   "MIXED_PRECISION of these); use the model's BF16 original",
                   algo ? algo : "");
}

/* Read an entry of quantized_layers. */
static int add_layer(struct fm_scheme *s, struct fm_schemes **several, const cJSON *layer,
                     struct fm_err *err)
{
    const char *name = layer->string;
    struct fm_scheme scheme;
    if (read_algorithm(&scheme, layer, err))
        return err->code;
    bool head = strcmp(name, "lm_head") == 0;
    if (!scheme.storage && (head || strncmp(name, "model.", 6) == 0))
        return fail_algorithm(layer, err);
    if (!scheme.storage) /* a module of a part that no tool reads */
        return FM_OK;
    if (!*several)
        *s = scheme;
    return fm_schemes_add(several, name, &scheme, err);
}

static int read_mixed(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                      struct fm_err *err)
{
    const cJSON *layers = cJSON_GetObjectItemCaseSensitive(json, "quantized_layers"), *layer;
    if (!cJSON_IsObject(layers))
        return fm_fail(err, FM_EFORMAT, "key 'quantized_layers' is missing or not an object");
    cJSON_ArrayForEach(layer, layers)
    {
        if (add_layer(s, several, layer, err))
            return fm_within(err, "quantized_layers: '%.80s'", layer->string);
    }
    if (!*several)
        return fm_fail(err, FM_EFORMAT, "key 'quantized_layers' lists no module that is read");
    fm_schemes_done(*several);
    return FM_OK;
}

static int read_modelopt(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                         struct fm_err *err)
{
    const char *algo = fm_json_string_value(json, "quant_algo");
    if (algo && strcmp(algo, "MIXED_PRECISION") == 0)
        return read_mixed(s, several, json, err);
    if (read_algorithm(s, json, err))
        return err->code;
    return s->storage ? FM_OK : fail_algorithm(json, err);
}

const struct fm_quant_method fm_method_modelopt = {.name = "modelopt", .read = read_modelopt};
