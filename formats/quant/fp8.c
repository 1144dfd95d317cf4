/*
 * FP8 in blocks: `X.weight` F8_E4M3 (N, K) and `X.weight_scale_inv` (ceil(N / rows), ceil(K /
 * columns)); the value of an element is its code times the scale of its block.  Blocks are 128 x
 * 128 in all known checkpoints; a matrix whose sizes are not multiples of 128 has partial blocks at
 * its far edges.  Scales are float32 (DeepSeek-V3), bfloat16 (Qwen3), or powers of two in one byte
 * (ue8m0, as F8_E8M0 or U8).  modules_to_not_convert is not needed, because a tensor's dtype shows
 * whether it is quantised.
 *
 * MiniMax-M3's mxfp8 is the same with a power of two for each 32 elements of a row.
 *
 * Source: DeepSeek-V3's inference/kernel.py (weight_dequant) and transformers'
 * integrations/finegrained_fp8.py, which computes the block size as rows / scale rows and so is
 * wrong for partial blocks.
 */
#include <string.h>

#include "formats/quant/quant.h"

/* Check that a key is absent, null or one of two words. */
static int check_word(const cJSON *object, const char *key, const char *word, const char *other,
                      struct fm_err *err)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);
    const char *has = cJSON_GetStringValue(v);
    if (!v || cJSON_IsNull(v) || (has && (strcmp(has, word) == 0 || strcmp(has, other) == 0)))
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

static int read_block(int *rows, int *columns, const cJSON *size, struct fm_err *err)
{
    if (cJSON_IsArray(size) && cJSON_GetArraySize(size) == 2 && read_length(rows, size->child) &&
        read_length(columns, size->child->next))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT, "weight_block_size is not two integers from 1 to %d",
                   FM_STORAGE_BLOCK_MAX);
}

static int read_fp8(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                    struct fm_err *err)
{
    (void)several;
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(json, "weight_block_size");
    if (!size || cJSON_IsNull(size))
        return fm_fail(err, FM_ECONFIG,
                       "fp8 without weight_block_size is not supported (only a scale for each "
                       "block is); use the model's BF16 original, or dequantize it first");
    if (read_block(&s->block_rows, &s->block_columns, size, err) ||
        check_word(json, "activation_scheme", "dynamic", "dynamic", err) ||
        check_word(json, "fmt", "e4m3", "float8_e4m3fn", err) ||
        check_word(json, "scale_fmt", "float", "ue8m0", err))
        return err->code;
    s->storage = &fm_fp8;
    return check_word(json, "expert_dtype", "fp8", "fp8", err);
}

const struct fm_storage fm_fp8 = {.name = "fp8",
                                  .code = FM_CODE_E4M3,
                                  .codes = FM_F8_E4M3,
                                  .written = FM_BF16,
                                  .weight = ".weight",
                                  .codes_end = ".weight",
                                  .scale_end = ".weight_scale_inv",
                                  .scale_dtypes = 1u << FM_F32 | 1u << FM_BF16 | 1u << FM_F16 |
                                                  1u << FM_F8_E8M0 | 1u << FM_U8};

const struct fm_quant_method fm_method_fp8 = {.name = "fp8", .read = read_fp8};

/* Servers use blocks of 1 x 32 whatever the file says. */
static int read_mxfp8(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                      struct fm_err *err)
{
    (void)several;
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(json, "weight_block_size");
    const cJSON *experts = cJSON_GetObjectItemCaseSensitive(json, "moe_quant_algo");
    *s = (struct fm_scheme){&fm_mxfp8, 1, 32};
    if (experts && !cJSON_IsNull(experts))
        return fm_fail(err, FM_ECONFIG,
                       "mxfp8 with moe_quant_algo '%.32s' is not supported: experts in another "
                       "format; use the model's BF16 original, or dequantize it first",
                       cJSON_IsString(experts) ? experts->valuestring : "?");
    int rows = 1, columns = 32;
    if (size && !cJSON_IsNull(size) && read_block(&rows, &columns, size, err))
        return err->code;
    if (rows != 1 || columns != 32)
        return fm_fail(err, FM_ECONFIG,
                       "mxfp8 in blocks of %d x %d is not supported (only 1 x 32); use the model's "
                       "BF16 original, or dequantize it first",
                       rows, columns);
    if (check_word(json, "activation_scheme", "dynamic", "dynamic", err) ||
        check_word(json, "fmt", "e4m3", "float8_e4m3fn", err))
        return err->code;
    return check_word(json, "scale_fmt", "ue8m0", "ue8m0", err);
}

const struct fm_storage fm_mxfp8 = {.name = "mxfp8",
                                    .code = FM_CODE_E4M3,
                                    .codes = FM_F8_E4M3,
                                    .written = FM_BF16,
                                    .exact = true,
                                    .weight = ".weight",
                                    .codes_end = ".weight",
                                    .scale_end = ".weight_scale_inv",
                                    .scale_dtypes = 1u << FM_F8_E8M0 | 1u << FM_U8};

const struct fm_quant_method fm_method_mxfp8 = {.name = "mxfp8", .read = read_mxfp8};
