/*
 * Formats to which an export can round its routed experts, to nearest and without calibration data:
 * the tensors of a matrix, the dtype of its scales, the keys of config.json, and the widths that
 * servers accept.  formats/quant reads the same formats: the quantization_config of a format
 * selects the storage descriptor there, which also determines how it is written.
 *
 * Codes and scales of one matrix W (N, K), in float32; amax is the largest magnitude of a block:
 *
 *     fp8-block  blocks of 128 x 128: s = amax / 448, F32; 1 where that is 0 or subnormal
 *     fp8        rows: s = amax / 448, rounded to the dtype of the weights; its epsilon where that
 *                is 0
 *     w4a16      32 or 128 of a row: s = amax / 7.5, rounded as for fp8
 *     nvfp4      16 of a row: b = E4M3 of amax / (6 t), from 2^-9 to 448, 1 for a block of zeros;
 *                s = b t; t = amax of gate and up together, or of down, / 2688, 1 where that is 0
 *     nvfp4:ct   16 of a row: u = 1 / amax of gate and up together, or of down, times 2688,
 * quotient and product each rounded to the weights' dtype (for F16: float32), 1 where amax is 0; b
 * = E4M3 of u times amax / 6, the quotient rounded likewise, at most 448; 1/8 where that is 0; s =
 * b / u mxfp4      32 of a row: s = 2^(floor(log2 amax) - 2), twice that if amax is at least 1.75
 *                times the largest power of two not above it
 *     mxfp8      the same with 8 instead of 2
 *
 * A code is the one nearest to w / s.
 *
 * Source: DeepSeek-V3's inference/fp8_cast (fp8-block), compressed_tensors 0.20
 * (quantization/utils, compressors) and nvidia-modelopt 0.47 (nvfp4_tensor.py).
 */
#ifndef FM_QUANTISE_H
#define FM_QUANTISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/family/family.h"

/* The server whose rules for widths an export follows. */
enum fm_server { FM_SERVER_ANY, FM_SERVER_VLLM, FM_SERVER_SGLANG, FM_SERVERS };

/* "any|vllm|sglang": the names, as options list them; -1 for an unknown name. */
#define FM_SERVER_CHOICES "any|vllm|sglang"
const char *fm_server_name(enum fm_server server);
int fm_server_find(const char *name);

/* How scales are computed from the largest magnitude of a block. */
enum fm_quantise_rule {
    FM_SCALE_F32,      /* a quotient, float32 */
    FM_SCALE_ROUNDED,  /* the same, rounded to the weights' dtype */
    FM_SCALE_NVFP4,    /* E4M3, times a factor of the matrix */
    FM_SCALE_NVFP4_CT, /* E4M3, divided by the factor */
    FM_SCALE_MX        /* a power of two */
};

struct fm_quantiser {
    const char *name;   /* the name in --weights: "w4a16:32" */
    const char *config; /* the text that fm_quantiser_text returns */
    const char *list;   /* key of the list of modules that are not quantised */
    const char *fused;  /* as `config`, for experts in one tensor; NULL: not supported */
    const char *fused_list;
    enum fm_quantise_rule rule;
    float top;            /* the largest magnitude / its scale; MX: the exponent's offset */
    enum fm_dtype scales; /* ROUNDED does not use it: scales have the dtype of the
                             weights */
    const char *unit_end; /* ending of the name of an additional number, always 1, that
                             servers require */
    uint32_t multiple[FM_SERVERS]; /* required divisor of an expert's channels on each device */
    const char *unread;            /* why transformers fails to read it; NULL: it reads it */
    const char *about;             /* for cards: "FP8 (E4M3), one scale per row" */
};

/* All formats; the last is NULL. */
extern const struct fm_quantiser *const fm_quantisers[];
#define FM_QUANTISERS_MAX 16
const struct fm_quantiser *fm_quantisers_find(const char *name);
/* "|fp8-block|fp8|..", to append to other choices. */
void fm_quantisers_choices(char *text, size_t size);

/* Set `to` to `from` with experts in that format; pointers are borrowed from `from`.  FM_ECONFIG
 * if the format does not fit its experts. */
int fm_quantiser_config(struct fm_config *to, const struct fm_quantiser *q,
                        const struct fm_config *from, struct fm_err *err);

/* The quantization_config of such a model, without braces and without the list of modules that
 * are not quantised; and the key of that list.  NULL: the format does not support its experts. */
const char *fm_quantiser_text(const struct fm_quantiser *q, const struct fm_config *config,
                              const char **list);

/* Dtype of scales for weights of that dtype. */
enum fm_dtype fm_quantiser_scales(const struct fm_quantiser *q, enum fm_dtype weights);

/* A matrix of numbers: row i begins at `at` + i * stride. */
struct fm_quantise_matrix {
    const char *at;
    size_t stride; /* bytes */
    enum fm_dtype dtype;
    size_t rows, columns;
};

/* The largest magnitude in a matrix; NaN or Inf if it contains one. */
float fm_quantise_most(const struct fm_quantise_matrix *w);
/* The factor of a matrix of that dtype with this largest magnitude; 1 for a format without factors.
 */
float fm_quantise_factor(const struct fm_quantiser *q, enum fm_dtype weights, float most);
/* Write codes and scales, row-major, each unless NULL. `to` is the config of
 * fm_quantiser_config, `factor` the factor of the matrix.  False if the matrix contains NaN or
 * Inf. */
bool fm_quantise(void *codes, void *scales, const struct fm_quantiser *q,
                 const struct fm_config *to, const struct fm_quantise_matrix *w, float factor);

#endif
