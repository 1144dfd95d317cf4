/*
 * AWQ as AutoAWQ's GEMM kernels read it: four-bit integers with a zero point for each group, packed
 * along the rows of the matrix.  formats/tensor/gptq.h presents its tensors in the usual order:
 *
 *     X.qweight I32 (N, K / 8)   eight codes per word, the first in its low bits
 *     X.scales (N, K / group)
 *     X.qzeros U8 (N, K / group)
 *
 * A value is (code - zero point) x scale.  This format is only read: no bundle keeps its codes, and
 * no export is rounded to it.  modules_to_not_convert is not needed, because the names of tensors
 * show which are quantised.
 *
 * Source: AutoAWQ 0.2, awq/modules/linear/gemm.py and awq/utils/packing_utils.py.
 */
#include <string.h>
#include <strings.h>

#include "formats/quant/formats.h"

static int read_awq(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                    struct fm_err *err)
{
    const char *version = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "version"));
    double bits = 0, group = 0;
    bool zeros = true;
    (void)several;
    if (fm_json_opt_double(json, "bits", 0, 64, &bits, err) ||
        fm_json_opt_double(json, "group_size", -1, FM_STORAGE_BLOCK_MAX, &group, err) ||
        fm_json_opt_bool(json, "zero_point", &zeros, err))
        return err->code;
    *s = (struct fm_scheme){&fm_awq, 1, (int)group};
    const char *key = bits != 4 ? "bits other than 4"
                      : group < 8 || (int)group % 8 != 0
                          ? "a group_size that is not a multiple of 8"
                      : !zeros                                 ? "zero_point false"
                      : version && strcasecmp(version, "gemm") ? "a version other than gemm"
                                                               : NULL;
    if (!key)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG, "awq with %s is not supported; use the model's BF16 original",
                   key);
}

const struct fm_quant_method fm_method_awq = {.name = "awq", .read = read_awq};

const struct fm_storage fm_awq = {.name = "awq",
                                  .code = FM_CODE_INT4,
                                  .codes = FM_I32,
                                  .written = FM_BF16,
                                  .whole = true,
                                  .weight = ".weight",
                                  .codes_end = ".qweight",
                                  .scale_end = ".scales",
                                  .scale_dtypes = FM_SCALES_PLAIN,
                                  .zero_end = ".qzeros"};
