/*
 * AWQ as AutoAWQ's GEMM kernels read it: four-bit integers with a zero point for each group, packed
 * along the rows of the matrix.  Its tensors are presented in the usual order:
 *
 *     X.qweight I32 (K, N / 8)          I32 (N, K / 8), the first of a word's codes in its low bits
 *     X.scales (K / group, N)           (N, K / group)
 *     X.qzeros I32 (K / group, N / 8)   U8 (N, K / group)
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
#include "lib/base/names.h"

static int read_awq(struct fm_scheme *s, struct fm_schemes **several, const cJSON *json,
                    struct fm_err *err)
{
    const char *version = fm_json_string_value(json, "version");
    double bits = 0, group = 0;
    bool zeros = true;
    (void)several;
    if (fm_json_opt_double(json, "bits", 0, 64, &bits, err) ||
        fm_json_opt_double(json, "group_size", -1, FM_STORAGE_BLOCK_MAX, &group, err) ||
        fm_json_opt_bool(json, "zero_point", &zeros, err))
        return err->code;
    *s = (struct fm_scheme){&fm_awq, 1, (int)group};
    const char *key = bits != 4 ? "bits other than 4"
                      : group < 8 || group != (double)((int)group / 8 * 8)
                          ? "a group_size that is not a multiple of 8"
                      : !zeros                                 ? "zero_point false"
                      : version && strcasecmp(version, "gemm") ? "a version other than gemm"
                                                               : NULL;
    if (!key)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG, "awq with %s is not supported; use the model's BF16 original",
                   key);
}

/* Present a tensor in the usual order. */
static int turn_awq(struct fm_tensor *t, struct fm_err *err)
{
    bool codes = fm_ends_with(t->name, ".qweight"), zeros = fm_ends_with(t->name, ".qzeros");
    if (!codes && !zeros && !fm_ends_with(t->name, ".scales"))
        return FM_OK;
    bool number = t->dtype == FM_F16 || t->dtype == FM_BF16 || t->dtype == FM_F32;
    if (t->dims != 2 || !(codes || zeros ? t->dtype == FM_I32 : number) ||
        (codes && t->shape[0] % 8 != 0))
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is %s with %d dimensions; awq has %s with 2%s",
                       t->name, fm_dtype_name(t->dtype), t->dims,
                       codes || zeros ? "I32" : "numbers",
                       codes ? ", the first a multiple of 8" : "");
    uint64_t rows = t->shape[0];
    t->shape[0] = t->shape[1] * (codes || zeros ? 8 : 1);
    t->shape[1] = codes ? rows / 8 : rows;
    t->form = codes || zeros ? FM_TENSOR_NIBBLES : FM_TENSOR_TURNED;
    if (zeros) {
        t->dtype = FM_U8;
        t->size *= 2;
    }
    return FM_OK;
}

static int take_awq(char **config, struct fm_quant_file *file, size_t files, const cJSON *quant,
                    bool inner, struct fm_err *err)
{
    (void)config, (void)quant, (void)inner;
    for (size_t s = 0; s < files; s++)
        for (size_t i = 0; i < file[s].count; i++)
            if (turn_awq(&file[s].tensor[i], err))
                return fm_within(err, "%s", file[s].name);
    return FM_OK;
}

const struct fm_quant_method fm_method_awq = {.name = "awq", .read = read_awq, .take = take_awq};

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
