/*
 * MXFP4 of gpt-oss: `X_blocks` U8 (E, R, C / 32, 16) and `X_scales` U8 (E, R, C / 32) for a weight
 * `X` that would be (E, C, R) unquantised: codes are stored transposed.  A block is 32 E2M1 codes
 * of a row; its scale is 2^(byte - 127).
 *
 * Every value has at most two significant bits and is exactly representable in bfloat16, so reading
 * codes gives the values that bundles hold.  A scale of 255 is NaN, and a scale above 2^125 could
 * exceed bfloat16: both are refused.  modules_to_not_convert is not needed, because the names of
 * tensors show which are quantised.
 *
 * In compressed-tensors (mxfp4-pack-quantized) X.weight_packed is U8 (N, K / 2), and X.weight_scale
 * U8 (N, K / 32); in MiMo-V2.6 the former is X.weight (fp8.c).
 *
 * Rounding 32 of a row: s = 2^(floor(log2 amax) - 2), twice that if amax is at least 1.75 times the
 * largest power of two not above it.
 *
 * Source: OCP Microscaling Formats 1.0, transformers' integrations/mxfp4.py, which does not check
 * for NaN, and compressed_tensors 0.20 (quantization/utils/mxfp_utils.py).
 */
#include "formats/quant/formats.h"

#define BLOCK 32

/* Accept only the block size of the format and of transformers. */
static int read_mxfp4(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                      struct fm_err *err)
{
    (void)several;
    double block = BLOCK;
    const char *const keys[] = {"block_size", "group_size"};
    int rc = FM_OK;
    *s = (struct fm_scheme){&fm_mxfp4, 1, BLOCK};
    for (int i = 0; i < 2 && !rc && block == BLOCK; i++)
        rc = fm_json_opt_double(json, keys[i], 0, 1e9, &block, err);
    if (!rc && block != BLOCK)
        rc = fm_fail(err, FM_ECONFIG,
                     "mxfp4 in blocks of %g is not supported (only %d); use the model's BF16 "
                     "original, or dequantize it first",
                     block, BLOCK);
    return rc;
}

const struct fm_storage fm_mxfp4 = {.name = "mxfp4",
                                    .code = FM_CODE_E2M1,
                                    .codes = FM_U8,
                                    .written = FM_BF16,
                                    .exact = true,
                                    .whole = true,
                                    .turned = true,
                                    .weight = "",
                                    .codes_end = "_blocks",
                                    .scale_end = "_scales",
                                    .scale_dtypes = 1u << FM_U8};

const struct fm_quant_method fm_method_mxfp4 = {.name = "mxfp4", .fused = true, .read = read_mxfp4};

const struct fm_storage fm_mxfp4_ct = {
    FM_COMPRESSED_NAMES, .name = "mxfp4-packed",          .code = FM_CODE_E2M1,
    .codes = FM_U8,      .codes_end = ".weight_packed",   .exact = true,
    .whole = true,       .scale_dtypes = FM_SCALES_POWERS};

const struct fm_storage fm_mxfp4_plain = {.name = "mxfp4",
                                          .code = FM_CODE_E2M1,
                                          .codes = FM_U8,
                                          .written = FM_BF16,
                                          .exact = true,
                                          .whole = true,
                                          .weight = ".weight",
                                          .codes_end = ".weight",
                                          .scale_end = ".weight_scale",
                                          .scale_dtypes = FM_SCALES_POWERS};

static float scale_of(void *stored, const struct fm_encode_block *b)
{
    return fm_encode_power_scale(stored, b, 2);
}

const struct fm_quantiser fm_to_mxfp4 = {
    .name = "mxfp4",
    .config = FM_COMPRESSED_TEXT("mxfp4-pack-quantized",
                                 FM_COMPRESSED_WEIGHTS("4", "float", "group", FM_MX_GROUP)
                                     FM_NO_ACTIVATIONS),
    .list = "ignore",
    .fused = "\"quant_method\": \"mxfp4\"", /* for gpt-oss */
    .fused_list = "modules_to_not_convert",
    .scale = scale_of,
    .scales = FM_U8,
    .multiple = {32, 32, 32},
    .about = "MXFP4, one power-of-two scale per 32 values of a row",
};
