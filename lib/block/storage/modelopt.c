/*
 * NVFP4 as NVIDIA's ModelOpt writes it: `X.weight` U8 (N, K / 2), two codes E2M1 a byte, the first
 * in its low half; `X.weight_scale` F8_E4M3 (N, K / 16); and `X.weight_scale_2`, one F32 by which
 * these are multiplied.  `X.input_scale` is for servers.  Its other algorithms are refused.
 *
 * Source: nvidia-modelopt 0.47, torch/quantization/qtensor/nvfp4_tensor.py.
 */
#include <string.h>

#include "lib/block/block.h"
#include "lib/block/storage.h"

#define BLOCK 16

static const char *const activations[] = {".input_scale", NULL};

static int read_modelopt(struct fm_config *c, const cJSON *json, struct fm_err *err);

const struct fm_storage fm_modelopt = {.name = "nvfp4",
                                       .method = "modelopt",
                                       .read = read_modelopt,
                                       .code = FM_CODE_E2M1,
                                       .codes = FM_U8,
                                       .written = FM_BF16,
                                       .whole = true,
                                       .weight = ".weight",
                                       .codes_end = ".weight",
                                       .scale_end = ".weight_scale",
                                       .scale_dtypes = 1u << FM_F8_E4M3,
                                       .zeros = true,
                                       .factor_end = ".weight_scale_2",
                                       .carried = activations};

static int read_modelopt(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const char *algo = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "quant_algo"));
    double size = BLOCK;
    if (!algo || (strcmp(algo, "NVFP4") != 0 && strcmp(algo, "W4A16_NVFP4") != 0))
        return fm_fail(err, FM_ECONFIG,
                       "quant_algo '%.32s' is not supported (only NVFP4 and W4A16_NVFP4); use the "
                       "model's BF16 original",
                       algo ? algo : "");
    int rc = fm_json_opt_double(json, "group_size", 1, 1e9, &size, err);
    if (!rc && size != BLOCK)
        rc = fm_fail(err, FM_ECONFIG, "group_size %g is not supported (only %d)", size, BLOCK);
    c->block_rows = 1;
    c->block_columns = BLOCK;
    return rc;
}
