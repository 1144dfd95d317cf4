/*
 * INT4 of compressed-tensors (pack-quantized): X.weight_packed I32 (N, K / 8), eight 4-bit integers
 * per word, the first in its low bits, with 8 added; X.weight_scale (N, K / group), and
 * X.weight_shape.  Checkpoints of GPTQ are read as this format (gptq.c).
 *
 * Rounding: 32 or 128 of a row: s = amax / 7.5, rounded to the dtype of the weights; its epsilon
 * where that is 0.
 *
 * Source: compressed_tensors 0.20, compressors/pack_quantized and quantization/utils.
 */
#include "formats/quant/formats.h"

const struct fm_storage fm_int4 = {FM_COMPRESSED_NAMES,
                                   .name = "w4a16",
                                   .code = FM_CODE_INT4,
                                   .codes = FM_I32,
                                   .codes_end = ".weight_packed",
                                   .whole = true,
                                   .scale_dtypes = FM_SCALES_PLAIN,
                                   .shape_end = ".weight_shape"};

static float scale_of(void *stored, const struct fm_encode_block *b)
{
    return fm_encode_rounded_scale(stored, b, 7.5F);
}

#define W4A16(label, size)                                                                         \
    {                                                                                              \
        .name = label,                                                                             \
        .config = FM_COMPRESSED_TEXT(                                                              \
            "pack-quantized",                                                                      \
            FM_COMPRESSED_WEIGHTS("4", "int", "group", FM_GROUP_SIZE(#size)) FM_NO_ACTIVATIONS),   \
        .list = "ignore", .scale = scale_of, .as_weights = true, .multiple = {size, size, size},   \
        .about = "4-bit integers, one scale per " #size " values of a row",                        \
    }
const struct fm_quantiser fm_to_w4a16 = W4A16("w4a16", 128);
const struct fm_quantiser fm_to_w4a16_32 = W4A16("w4a16:32", 32);
