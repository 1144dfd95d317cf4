/*
 * MXFP8: X.weight F8_E4M3 (N, K) and a power of two for each 32 values of a row (N, K / 32), which
 * MiniMax-M3 names X.weight_scale_inv, and compressed-tensors and ModelOpt X.weight_scale.
 *
 * Rounding: as for mxfp4, with 8 instead of 2.
 *
 * Source: SGLang 0.5.23 for MiniMax-M3; compressed_tensors 0.20 (quantization/utils/mxfp_utils.py);
 * nvidia-modelopt 0.47.
 */
#include "formats/quant/formats.h"

/* Servers use blocks of 1 x 32 whatever the file says. */
static int read_mxfp8(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                      struct fm_err *err)
{
    const cJSON *size = fm_json_value(json, "weight_block_size");
    const cJSON *experts = fm_json_value(json, "moe_quant_algo");
    (void)several;
    *s = (struct fm_scheme){&fm_mxfp8, 1, 32};
    if (experts)
        return fm_fail(err, FM_ECONFIG,
                       "mxfp8 with moe_quant_algo '%.32s' is not supported: experts in another "
                       "format; use the model's BF16 original, or dequantize it first",
                       cJSON_IsString(experts) ? experts->valuestring : "?");
    int rows = 1, columns = 32;
    if (size && fm_fp8_read_block(&rows, &columns, size, err))
        return err->code;
    if (rows != 1 || columns != 32)
        return fm_fail(err, FM_ECONFIG,
                       "mxfp8 in blocks of %d x %d is not supported (only 1 x 32); use the model's "
                       "BF16 original, or dequantize it first",
                       rows, columns);
    if (fm_fp8_check_word(json, "activation_scheme", "dynamic", "dynamic", err) ||
        fm_fp8_check_word(json, "fmt", "e4m3", "float8_e4m3fn", err))
        return err->code;
    return fm_fp8_check_word(json, "scale_fmt", "ue8m0", "ue8m0", err);
}

const struct fm_quant_method fm_method_mxfp8 = {.name = "mxfp8", .read = read_mxfp8};

#define CODES .name = "mxfp8", .code = FM_CODE_E4M3, .codes = FM_F8_E4M3, .exact = true

const struct fm_storage fm_mxfp8 = {CODES,
                                    .written = FM_BF16,
                                    .weight = ".weight",
                                    .codes_end = ".weight",
                                    .scale_end = ".weight_scale_inv",
                                    .scale_dtypes = FM_SCALES_POWERS};

const struct fm_storage fm_mxfp8_ct = {CODES, FM_COMPRESSED_NAMES, .codes_end = ".weight",
                                       .whole = true, .scale_dtypes = FM_SCALES_POWERS};

const struct fm_storage fm_mxfp8_modelopt = {CODES, FM_MODELOPT_NAMES, .whole = true,
                                             .scale_dtypes = 1u << FM_U8};

static float scale_of(void *stored, const struct fm_encode_block *b)
{
    return fm_encode_power_scale(stored, b, 8);
}

const struct fm_quantiser fm_to_mxfp8 = {
    .name = "mxfp8",
    .config = FM_COMPRESSED_TEXT("mxfp8-quantized",
                                 FM_COMPRESSED_WEIGHTS("8", "float", "group", FM_MX_GROUP)
                                     FM_FP8_ACTIVATIONS("group\"" FM_MX_GROUP)),
    .list = "ignore",
    .scale = scale_of,
    .scales = FM_U8,
    .multiple = {32, 32, 32},
    .unread = "does not load experts of this format",
    .about = "MXFP8, one power-of-two scale per 32 values of a row",
};
