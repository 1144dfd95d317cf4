/*
 * FP8: codes are E4M3, `X.weight` F8_E4M3 (N, K).
 *
 * In blocks: `X.weight_scale_inv` (ceil(N / rows), ceil(K / columns)); the value of an element is
 * its code times the scale of its block.  For a weight `X` of experts without that suffix, the
 * scales are `X_scale_inv`.  Blocks are 128 x 128 in all known checkpoints; a matrix whose sizes
 * are not multiples of 128 has partial blocks at its far edges.  Scales are float32 (DeepSeek-V3),
 * bfloat16 (Qwen3), or powers of two in one byte (ue8m0, as F8_E8M0 or U8).  Without
 * weight_block_size there is one scale for each matrix, as in Mistral-Small-4, whose
 * activation_scale tensors are for servers.  modules_to_not_convert is not needed, because a
 * tensor's dtype shows whether it is quantised.
 *
 * In compressed-tensors `X.weight_scale` is (N, 1), one per block or one number; in ModelOpt, one
 * number.
 *
 * Rounding to blocks of 128 x 128: s = amax / 448, F32; 1 where that is 0 or subnormal.  To rows:
 * s = amax / 448, rounded to the dtype of the weights; its epsilon where that is 0.
 *
 * Source: DeepSeek-V3's inference/kernel.py (weight_dequant) and fp8_cast; transformers'
 * integrations/finegrained_fp8.py, which computes the block size as rows / scale rows and so is
 * wrong for partial blocks; compressed_tensors 0.20; nvidia-modelopt 0.47.
 */
#include <float.h>
#include <string.h>

#include "formats/quant/formats.h"

int fm_fp8_check_word(const cJSON *object, const char *key, const char *word, const char *other,
                      struct fm_err *err)
{
    const cJSON *v = fm_json_value(object, key);
    const char *has = cJSON_GetStringValue(v);
    if (!v || (has && (strcmp(has, word) == 0 || strcmp(has, other) == 0)))
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "fp8 with %s '%.32s' is not supported (only '%s'); use the model's BF16 "
                   "original, or dequantize it first",
                   key, has ? has : "?", word);
}

static bool read_length(int *size, const cJSON *entry)
{
    double value = cJSON_IsNumber(entry) ? entry->valuedouble : 0;
    if (!(value >= 1 && value <= FM_STORAGE_BLOCK_MAX) || value != (double)(int)value)
        return false;
    *size = (int)value;
    return true;
}

int fm_fp8_read_block(int *rows, int *columns, const cJSON *size, struct fm_err *err)
{
    if (cJSON_IsArray(size) && cJSON_GetArraySize(size) == 2 && read_length(rows, size->child) &&
        read_length(columns, size->child->next))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT, "weight_block_size is not two integers from 1 to %d",
                   FM_STORAGE_BLOCK_MAX);
}

/* With store_dtype mxfp4, as in MiMo-V2.6, routed experts are MXFP4, and the rest is as described.
 */
static int read_store(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                      struct fm_err *err)
{
    static const struct fm_scheme experts = {&fm_mxfp4_plain, 1, 32};
    const struct fm_scheme others = *s;
    double block = experts.block_columns;
    if (!fm_json_value(json, "store_dtype"))
        return FM_OK;
    if (fm_fp8_check_word(json, "store_dtype", "mxfp4", "mxfp4", err) ||
        fm_json_opt_double(json, "mxfp4_block_size", 1, 1e9, &block, err))
        return err->code;
    if (block != experts.block_columns)
        return fm_fail(err, FM_ECONFIG, "mxfp4_block_size %g is not supported (only %d)", block,
                       experts.block_columns);
    if (fm_schemes_add(several, "*.mlp.experts.*", &experts, err) ||
        fm_schemes_add(several, "Linear", &others, err))
        return err->code;
    fm_schemes_done(*several);
    *s = experts;
    return FM_OK;
}

static int read_fp8(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                    struct fm_err *err)
{
    const cJSON *size = fm_json_value(json, "weight_block_size");
    bool blocks = size != NULL;
    *s = (struct fm_scheme){.storage = &fm_fp8};
    if ((blocks && fm_fp8_read_block(&s->block_rows, &s->block_columns, size, err)) ||
        fm_fp8_check_word(json, "activation_scheme", "dynamic", blocks ? "dynamic" : "static",
                          err) ||
        fm_fp8_check_word(json, "fmt", "e4m3", "float8_e4m3fn", err) ||
        fm_fp8_check_word(json, "scale_fmt", "float", "ue8m0", err) ||
        fm_fp8_check_word(json, "expert_dtype", "fp8", "fp8", err))
        return err->code;
    return read_store(s, several, json, err);
}

const struct fm_quant_method fm_method_fp8 = {.name = "fp8", .read = read_fp8};

#define CODES .code = FM_CODE_E4M3, .codes = FM_F8_E4M3

static const struct fm_carried_end activations[] = {
    {"_activation_scale", ""}, {".activation_scale", ".weight"}, {NULL, NULL}};

const struct fm_storage fm_fp8 = {CODES,
                                  .name = "fp8",
                                  .written = FM_BF16,
                                  .weight = "",
                                  .codes_end = "",
                                  .scale_end = "_scale_inv",
                                  .scale_dtypes = FM_SCALES_PLAIN | FM_SCALES_POWERS,
                                  .carried = activations};

#define COMPRESSED                                                                                 \
    CODES, FM_COMPRESSED_NAMES, .codes_end = ".weight", .scale_dtypes = FM_SCALES_PLAIN

const struct fm_storage fm_fp8_channel = {COMPRESSED, .name = "fp8-channel"};
const struct fm_storage fm_fp8_tensor = {COMPRESSED, .name = "fp8-tensor"};
const struct fm_storage fm_fp8_block = {COMPRESSED, .name = "fp8-block"};

const struct fm_storage fm_fp8_modelopt = {CODES, FM_MODELOPT_NAMES, .name = "fp8-tensor",
                                           .scale_dtypes = 1u << FM_F32};

static float scale_of_block(void *stored, const struct fm_encode_block *b)
{
    float s = b->most / 448;
    s = s < FLT_MIN ? 1 : s;
    memcpy(stored, &s, sizeof s);
    return s;
}

/* vLLM and SGLang accept only whole blocks. */
const struct fm_quantiser fm_to_fp8_block = {
    .name = "fp8-block",
    .config = "\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", "
              "\"weight_block_size\": [128, 128]",
    .list = "modules_to_not_convert",
    .scale = scale_of_block,
    .scales = FM_F32,
    .multiple = {128, 128, 128},
    .about = "FP8 (E4M3), one scale per block of 128 x 128",
};

static float scale_of_row(void *stored, const struct fm_encode_block *b)
{
    return fm_encode_rounded_scale(stored, b, 448);
}

/* FP8 matrix products need rows of a multiple of 16 bytes. */
const struct fm_quantiser fm_to_fp8 = {
    .name = "fp8",
    .config =
        FM_COMPRESSED_TEXT("float-quantized", FM_COMPRESSED_WEIGHTS("8", "float", "channel", "")
                                                  FM_FP8_ACTIVATIONS("token\"")),
    .list = "ignore",
    .scale = scale_of_row,
    .as_weights = true,
    .multiple = {16, 16, 16},
    .about = "FP8 (E4M3), one scale per row",
};
