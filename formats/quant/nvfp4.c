/*
 * NVFP4: two E2M1 codes per byte, low half first; scales F8_E4M3 (N, K / 16), and one factor for
 * the matrix.
 *
 *     ModelOpt             X.weight U8 (N, K / 2); X.weight_scale, multiplied by X.weight_scale_2
 *     compressed-tensors   X.weight_packed; X.weight_scale, divided by X.weight_global_scale
 *
 * Rounding 16 of a row:
 *     nvfp4      b = E4M3 of amax / (6 t), from 2^-9 to 448, 1 for a block of zeros; s = b t;
 *                t = amax of gate and up together, or of down, / 2688, 1 where that is 0
 *     nvfp4:ct   u = 1 / amax of gate and up together, or of down, times 2688, quotient and product
 *                each rounded to the weights' dtype (for F16: float32), 1 where amax is 0; b = E4M3
 *                of u times amax / 6, the quotient rounded likewise, at most 448; 1/8 where that is
 *                0; s = b / u
 *
 * Source: nvidia-modelopt 0.47 (nvfp4_tensor.py), compressed_tensors 0.20 (compressors/nvfp4,
 * quantization/utils).
 */
#include <math.h>

#include "formats/quant/formats.h"

#define CODES                                                                                      \
    .name = "nvfp4", .code = FM_CODE_E2M1, .codes = FM_U8, .whole = true,                          \
    .scale_dtypes = 1u << FM_F8_E4M3, .zeros = true

const struct fm_storage fm_nvfp4 = {CODES, FM_MODELOPT_NAMES, .factor_end = ".weight_scale_2"};

const struct fm_storage fm_nvfp4_ct = {CODES, FM_COMPRESSED_NAMES, .codes_end = ".weight_packed",
                                       .factor_end = ".weight_global_scale", .divides = true};

static uint8_t e4m3_of(float x)
{
    const float one = 1;
    uint8_t code;
    fm_encode_codes(&code, &x, &one, 1, 1, FM_CODE_E4M3);
    return code;
}

static float e4m3_value(uint8_t code)
{
    float x;
    fm_dtype_to_f32(&x, &code, FM_F8_E4M3, 1);
    return x;
}

/* A number if it can be a factor, else 1. */
static float factor_or_one(float t)
{
    return t > 0 && isfinite(t) ? t : 1;
}

static float factor_of(const struct fm_encode_block *matrix)
{
    return factor_or_one(matrix->most / (6 * 448.0F));
}

static float scale_of(void *stored, const struct fm_encode_block *b)
{
    float s = b->most / (6 * b->factor);
    uint8_t *byte = stored;
    s = s < 0x1p-9F ? 0x1p-9F : s > 448 ? 448 : s;
    *byte = e4m3_of(b->most == 0 ? 1 : s);
    return e4m3_value(*byte) * b->factor;
}

/* Rounded as compressed-tensors rounds numbers other than codes: to the dtype of the weights, or to
 * float32 for F16, whose range is too small for the factor of a matrix. */
static float rounded(float x, enum fm_dtype weights)
{
    fm_dtype_round(&x, weights == FM_F16 ? FM_F32 : weights, 1);
    return x;
}

static float factor_of_ct(const struct fm_encode_block *matrix)
{
    float inverse = rounded(1 / matrix->most, matrix->weights);
    return factor_or_one(rounded(inverse * (6 * 448.0F), matrix->weights));
}

static float scale_of_ct(void *stored, const struct fm_encode_block *b)
{
    float s = rounded(b->most / 6, b->weights) * b->factor;
    uint8_t *byte = stored;
    *byte = e4m3_of(s > 448 ? 448 : s);
    *byte = *byte ? *byte : e4m3_of(0.125F);
    return e4m3_value(*byte) / b->factor;
}

/* SGLang's Marlin kernel needs widths that are multiples of 64; vLLM pads other widths. */
#define MULTIPLE .multiple = {64, 16, 64}

const struct fm_quantiser fm_to_nvfp4 = {
    .name = "nvfp4",
    .config = "\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"group_size\": 16",
    .list = "ignore",
    .factor = factor_of,
    .scale = scale_of,
    .scales = FM_F8_E4M3,
    .unit_end = ".input_scale",
    MULTIPLE,
    .unread = "does not support ModelOpt's NVFP4 and stops",
    .about = "NVFP4, as ModelOpt scales it",
};

const struct fm_quantiser fm_to_nvfp4_ct = {
    .name = "nvfp4:ct",
    .config = FM_COMPRESSED_TEXT(
        "nvfp4-pack-quantized",
        FM_COMPRESSED_WEIGHTS("4", "float", "tensor_group",
                              FM_GROUP_SIZE("16") ", \"scale_dtype\": \"torch.float8_e4m3fn\"")
            FM_NO_ACTIVATIONS),
    .list = "ignore",
    .factor = factor_of_ct,
    .factor_dims = 1,
    .scale = scale_of_ct,
    .scales = FM_F8_E4M3,
    MULTIPLE,
    .unread =
        "silently loads wrong values for these experts: it multiplies them by weight_global_scale",
    .about = "NVFP4, as compressed-tensors scales it",
};
