/*
 * Private to this room: what the files of formats share, and the descriptors that each defines.
 */
#ifndef FM_QUANT_FORMATS_H
#define FM_QUANT_FORMATS_H

#include "formats/quant/encode.h"
#include "formats/quant/quant.h"

/* Dtypes of scales. */
#define FM_SCALES_PLAIN (1u << FM_F32 | 1u << FM_BF16 | 1u << FM_F16)
#define FM_SCALES_POWERS (1u << FM_U8 | 1u << FM_F8_E8M0)

/* The names of a matrix's tensors in checkpoints of compressed-tensors and of ModelOpt. */
#define FM_COMPRESSED_NAMES                                                                        \
    .written = FM_BF16, .weight = ".weight", .scale_end = ".weight_scale",                         \
    .carried = fm_compressed_carried
#define FM_MODELOPT_NAMES                                                                          \
    .written = FM_BF16, .weight = ".weight", .codes_end = ".weight", .scale_end = ".weight_scale", \
    .carried = fm_modelopt_carried
extern const struct fm_carried_end fm_compressed_carried[], fm_modelopt_carried[];

/* quantization_config of compressed-tensors, for struct fm_quantiser: WEIGHTS, followed by
 * "input_activations", describe its one group. */
#define FM_COMPRESSED_TEXT(format, group)                                                          \
    "\"quant_method\": \"compressed-tensors\", \"format\": \"" format                              \
    "\", \"quantization_status\": \"compressed\", \"kv_cache_scheme\": null, \"config_groups\": "  \
    "{\"group_0\": {\"targets\": [\"Linear\"], " group "}}"
#define FM_COMPRESSED_WEIGHTS(bits, type, strategy, more)                                          \
    "\"weights\": {\"num_bits\": " bits ", \"type\": \"" type "\", \"symmetric\": true, "          \
    "\"dynamic\": false, \"strategy\": \"" strategy "\"" more "}, "
#define FM_NO_ACTIVATIONS "\"input_activations\": null"
#define FM_FP8_ACTIVATIONS(strategy)                                                               \
    "\"input_activations\": {\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, "          \
    "\"dynamic\": true, \"strategy\": \"" strategy "}"
#define FM_GROUP_SIZE(size) ", \"group_size\": " size
#define FM_MX_GROUP FM_GROUP_SIZE("32") ", \"scale_dtype\": \"torch.uint8\""

/* fp8.c: the keys of a quantization_config of fp8 or mxfp8.  A word is absent, null, `word` or
 * `other`; a size is two integers. */
int fm_fp8_check_word(const cJSON *object, const char *key, const char *word, const char *other,
                      struct fm_err *err);
int fm_fp8_read_block(int *rows, int *columns, const cJSON *size, struct fm_err *err);

/* encode.c: the scale of a block, also written to `stored`; `most` is its largest magnitude.
 * Powers: 2^(floor(log2 most) - offset), twice that if most is at least 1.75 times the largest
 * power of two not above it.  Rounded: most / top, rounded to `weights`; the epsilon of that where
 * the result is 0. */
float fm_encode_power_scale(void *stored, const struct fm_encode_block *block, int offset);
float fm_encode_rounded_scale(void *stored, const struct fm_encode_block *block, float top);

extern const struct fm_storage fm_awq, fm_fp8_channel, fm_fp8_tensor, fm_fp8_block, fm_fp8_modelopt,
    fm_int4, fm_nvfp4, fm_nvfp4_ct, fm_mxfp4_ct, fm_mxfp4_plain, fm_mxfp8_ct, fm_mxfp8_modelopt;
extern const struct fm_quantiser fm_to_fp8_block, fm_to_fp8, fm_to_w4a16, fm_to_w4a16_32,
    fm_to_nvfp4, fm_to_nvfp4_ct, fm_to_mxfp4, fm_to_mxfp8;

#endif
