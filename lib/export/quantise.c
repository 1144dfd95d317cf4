/*
 * Processes rows in bands, each as high as a block: the values are widened to float32; the largest
 * magnitude of each block is found; a scale is computed from it, in the dtype in which scales are
 * stored; and codes are computed from the scales.
 */
#include "lib/export/quantise.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/pool.h"
#include "lib/base/scaled.h"
#include "formats/quant/quant.h"

static const char *const servers[FM_SERVERS] = {"any", "vllm", "sglang"};

const char *fm_server_name(enum fm_server server)
{
    return servers[server];
}

int fm_server_find(const char *name)
{
    for (int i = 0; i < FM_SERVERS; i++)
        if (strcmp(servers[i], name) == 0)
            return i;
    return -1;
}

/* ---- the list ---- */

#define COMPRESSED(format, group)                                                                  \
    "\"quant_method\": \"compressed-tensors\", \"format\": \"" format                              \
    "\", \"quantization_status\": \"compressed\", \"kv_cache_scheme\": null, \"config_groups\": "  \
    "{\"group_0\": {\"targets\": [\"Linear\"], " group "}}"
#define WEIGHTS(bits, type, strategy, more)                                                        \
    "\"weights\": {\"num_bits\": " bits ", \"type\": \"" type "\", \"symmetric\": true, "          \
    "\"dynamic\": false, \"strategy\": \"" strategy "\"" more "}, "
#define NO_ACTIVATIONS "\"input_activations\": null"
#define GROUP(size) ", \"group_size\": " size
#define MX GROUP("32") ", \"scale_dtype\": \"torch.uint8\""

/*
 * The required multiples of the width: vLLM and SGLang accept only whole blocks of fp8-block; FP8
 * matrix products need rows of a multiple of 16 bytes; with tensor parallelism every device must
 * get whole groups of a row of down.  SGLang's Marlin kernel needs NVFP4 widths that are multiples
 * of 64; vLLM pads other widths (vLLM 0.33, SGLang 0.5.23).
 */
static const struct fm_quantiser fp8_block = {
    .name = "fp8-block",
    .config = "\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", "
              "\"weight_block_size\": [128, 128]",
    .list = "modules_to_not_convert",
    .rule = FM_SCALE_F32,
    .top = 448,
    .scales = FM_F32,
    .multiple = {128, 128, 128},
    .about = "FP8 (E4M3), one scale per block of 128 x 128",
};

static const struct fm_quantiser fp8 = {
    .name = "fp8",
    .config =
        COMPRESSED("float-quantized",
                   WEIGHTS("8", "float", "channel",
                           "") "\"input_activations\": {\"num_bits\": 8, \"type\": \"float\", "
                               "\"symmetric\": true, \"dynamic\": true, \"strategy\": \"token\"}"),
    .list = "ignore",
    .rule = FM_SCALE_ROUNDED,
    .top = 448,
    .multiple = {16, 16, 16},
    .about = "FP8 (E4M3), one scale per row",
};

#define W4A16(label, size)                                                                         \
    {                                                                                              \
        .name = label,                                                                             \
        .config = COMPRESSED("pack-quantized",                                                     \
                             WEIGHTS("4", "int", "group", GROUP(#size)) NO_ACTIVATIONS),           \
        .list = "ignore", .rule = FM_SCALE_ROUNDED, .top = 7.5F, .multiple = {size, size, size},   \
        .about = "4-bit integers, one scale per " #size " values of a row",                        \
    }
static const struct fm_quantiser w4a16_128 = W4A16("w4a16", 128);
static const struct fm_quantiser w4a16_32 = W4A16("w4a16:32", 32);

static const struct fm_quantiser nvfp4 = {
    .name = "nvfp4",
    .config = "\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"group_size\": 16",
    .list = "ignore",
    .rule = FM_SCALE_NVFP4,
    .top = 6,
    .scales = FM_F8_E4M3,
    .unit_end = ".input_scale",
    .multiple = {64, 16, 64},
    .unread = "does not support ModelOpt's NVFP4 and stops",
    .about = "NVFP4, as ModelOpt scales it",
};

static const struct fm_quantiser nvfp4_ct = {
    .name = "nvfp4:ct",
    .config = COMPRESSED("nvfp4-pack-quantized",
                         WEIGHTS("4", "float", "tensor_group",
                                 GROUP("16") ", \"scale_dtype\": \"torch.float8_e4m3fn\"")
                             NO_ACTIVATIONS),
    .list = "ignore",
    .rule = FM_SCALE_NVFP4_CT,
    .top = 6,
    .scales = FM_F8_E4M3,
    .multiple = {64, 16, 64},
    .unread =
        "silently loads wrong values for these experts: it multiplies them by weight_global_scale",
    .about = "NVFP4, as compressed-tensors scales it",
};

static const struct fm_quantiser mxfp4 = {
    .name = "mxfp4",
    .config = COMPRESSED("mxfp4-pack-quantized", WEIGHTS("4", "float", "group", MX) NO_ACTIVATIONS),
    .list = "ignore",
    .fused = "\"quant_method\": \"mxfp4\"", /* for gpt-oss */
    .fused_list = "modules_to_not_convert",
    .rule = FM_SCALE_MX,
    .top = 2,
    .scales = FM_U8,
    .multiple = {32, 32, 32},
    .about = "MXFP4, one power-of-two scale per 32 values of a row",
};

static const struct fm_quantiser mxfp8 = {
    .name = "mxfp8",
    .config = COMPRESSED(
        "mxfp8-quantized",
        WEIGHTS("8", "float", "group",
                MX) "\"input_activations\": {\"num_bits\": 8, \"type\": \"float\", "
                    "\"symmetric\": true, \"dynamic\": true, \"strategy\": \"group\"" MX "}"),
    .list = "ignore",
    .rule = FM_SCALE_MX,
    .top = 8,
    .scales = FM_U8,
    .multiple = {32, 32, 32},
    .unread = "does not load experts of this format",
    .about = "MXFP8, one power-of-two scale per 32 values of a row",
};

const struct fm_quantiser *const fm_quantisers[] = {
    &fp8_block, &fp8, &w4a16_128, &w4a16_32, &nvfp4, &nvfp4_ct, &mxfp4, &mxfp8, NULL};
_Static_assert(sizeof fm_quantisers / sizeof *fm_quantisers <= FM_QUANTISERS_MAX + 1,
               "FM_QUANTISERS_MAX");

const struct fm_quantiser *fm_quantisers_find(const char *name)
{
    const struct fm_quantiser *const *q = fm_quantisers;
    while (*q && strcmp((*q)->name, name) != 0)
        q++;
    return *q;
}

void fm_quantisers_choices(char *text, size_t size)
{
    size_t at = 0;
    for (const struct fm_quantiser *const *q = fm_quantisers; *q && at < size; q++)
        at += (size_t)snprintf(text + at, size - at, "|%s", (*q)->name);
}

enum fm_dtype fm_quantiser_scales(const struct fm_quantiser *q, enum fm_dtype weights)
{
    return q->rule == FM_SCALE_ROUNDED ? weights : q->scales;
}

/* ---- a model in the format ---- */

const char *fm_quantiser_text(const struct fm_quantiser *q, const struct fm_config *c,
                              const char **list)
{
    bool fused = fm_families_fused(c->family);
    *list = fused ? q->fused_list : q->list;
    return c->fused ? NULL : fused ? q->fused : q->config;
}

/* H must be a multiple of the columns of a block, or of 16 if a block is a whole row. */
static int check_hidden(const struct fm_quantiser *q, const struct fm_config *to,
                        struct fm_err *err)
{
    int block = to->scheme.block_columns > 0 ? to->scheme.block_columns : 16;
    if (to->H % block == 0)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "--weights %s: rows of experts have %d values (hidden_size), which is not a "
                   "multiple of %d; choose another format",
                   q->name, to->H, block);
}

int fm_quantiser_config(struct fm_config *to, const struct fm_quantiser *q,
                        const struct fm_config *from, struct fm_err *err)
{
    char text[1024];
    const char *list, *body = fm_quantiser_text(q, from, &list);
    cJSON *json = NULL;
    *to = *from;
    to->schemes = NULL;
    if (!body)
        return fm_fail(err, FM_ECONFIG,
                       "--weights %s: %s has all experts of a layer in one tensor, and no server "
                       "reads this format there; use bf16%s",
                       q->name, from->family->name, from->family == &fm_gpt_oss ? " or mxfp4" : "");
    int n = snprintf(text, sizeof text, "{\"quantization_config\": {%s}}", body);
    assert(n > 0 && (size_t)n < sizeof text);
    int rc = fm_json_tree(&json, text, (size_t)n, err);
    if (!rc)
        rc = fm_families_storage(to, json, err);
    cJSON_Delete(json);
    return rc ? rc : check_hidden(q, to, err);
}

/* ---- scales ---- */

/* The distance from 1 to the next larger number: 2^-7 for BF16, 2^-10 for F16, 2^-23 for F32. */
static float epsilon_of(enum fm_dtype dtype)
{
    return dtype == FM_BF16 ? 0x1p-7F : dtype == FM_F16 ? 0x1p-10F : FLT_EPSILON;
}

static float rounded(float x, enum fm_dtype dtype)
{
    fm_dtype_round(&x, dtype, 1);
    return x;
}

static uint8_t e4m3_of(float x)
{
    const float one = 1;
    uint8_t code;
    fm_scaled_from_f32(&code, &x, &one, 1, 1, FM_CODE_E4M3);
    return code;
}

static float e4m3_value(uint8_t code)
{
    float x;
    fm_dtype_to_f32(&x, &code, FM_F8_E4M3, 1);
    return x;
}

/* The biased exponent of an MX scale.  frexp's fraction is in [1/2, 1), so 1.75 is 7/8 here. */
static uint8_t power_of(float most, float offset)
{
    int e;
    float fraction = frexpf(most, &e);
    if (most == 0)
        return 0;
    e += 127 - 1 + (fraction >= 0.875F) - (int)offset;
    return (uint8_t)(e < 0 ? 0 : e > 254 ? 254 : e);
}

/* The dtype to which NVFP4 of compressed-tensors rounds numbers other than codes: that of the
 * weights, or float32 for F16, whose range is too small for the factor of a matrix. */
static enum fm_dtype between(enum fm_dtype weights)
{
    return weights == FM_F16 ? FM_F32 : weights;
}

float fm_quantise_factor(const struct fm_quantiser *q, enum fm_dtype weights, float most)
{
    float t = 1;
    if (q->rule == FM_SCALE_NVFP4)
        t = most / (6 * 448.0F);
    else if (q->rule == FM_SCALE_NVFP4_CT)
        t = rounded(rounded(1 / most, between(weights)) * (6 * 448.0F), between(weights));
    return t > 0 && isfinite(t) ? t : 1;
}

/* The scale of a block with the largest magnitude `most`; also written to `stored` as bytes. */
static float scale_of(void *stored, const struct fm_quantiser *q, enum fm_dtype weights, float most,
                      float factor)
{
    float s = most / q->top;
    uint8_t *byte = stored;
    switch (q->rule) {
    case FM_SCALE_F32:
        s = s < FLT_MIN ? 1 : s;
        memcpy(stored, &s, sizeof s);
        return s;
    case FM_SCALE_ROUNDED:
        s = rounded(s, weights);
        s = s == 0 ? epsilon_of(weights) : s;
        fm_dtype_from_f32(stored, &s, weights, 1);
        return s;
    case FM_SCALE_NVFP4:
        s = most / (q->top * factor);
        s = s < 0x1p-9F ? 0x1p-9F : s > 448 ? 448 : s;
        *byte = e4m3_of(most == 0 ? 1 : s);
        return e4m3_value(*byte) * factor;
    case FM_SCALE_NVFP4_CT:
        s = rounded(s, between(weights)) * factor;
        *byte = e4m3_of(s > 448 ? 448 : s);
        *byte = *byte ? *byte : e4m3_of(0.125F);
        return e4m3_value(*byte) / factor;
    case FM_SCALE_MX:
        *byte = power_of(most, q->top);
        return ldexpf(1, *byte - 127);
    }
    assert(!"unknown rule for scales");
    return 1;
}

/* ---- matrices ---- */

float fm_quantise_most(const struct fm_quantise_matrix *w)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_scratch((w->columns + 1) * sizeof *wide), most = 0;
    for (size_t i = 0; i < w->rows && isfinite(most); i++) {
        float row = 0;
        fm_dtype_to_f32(wide, w->at + i * w->stride, w->dtype, w->columns);
        fm_scaled_most(&row, wide, w->columns, w->columns ? w->columns : 1);
        most = row <= most ? most : row; /* if `row` is NaN, so is `most` */
    }
    fm_scratch_release(mark);
    return most;
}

/* Rows that share scales, and intermediate results. */
struct band {
    float *wide;         /* (rows, columns) */
    float *most, *row;   /* (blocks): of all its rows; of one row */
    float *scale;        /* (blocks) */
    char *stored;        /* the same as bytes */
    size_t blocks, size; /* blocks in a row; columns of one */
};

/* The largest magnitudes of the blocks of rows [first, first + n); false: NaN or Inf. */
static bool read_band(struct band *b, const struct fm_quantise_matrix *w, size_t first, size_t n)
{
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        float *wide = b->wide + i * w->columns, *most = i ? b->row : b->most;
        fm_dtype_to_f32(wide, w->at + (first + i) * w->stride, w->dtype, w->columns);
        fm_scaled_most(most, wide, w->columns, b->size);
        for (size_t k = 0; k < b->blocks; k++) {
            finite = finite && isfinite(most[k]);
            b->most[k] = most[k] > b->most[k] ? most[k] : b->most[k];
        }
    }
    return finite;
}

bool fm_quantise(void *codes, void *scales, const struct fm_quantiser *q,
                 const struct fm_config *to, const struct fm_quantise_matrix *w, float factor)
{
    size_t columns = w->columns, high = (size_t)to->scheme.block_rows;
    size_t size = to->scheme.block_columns > 0 ? (size_t)to->scheme.block_columns
                  : columns                    ? columns
                                               : 1;
    size_t blocks = to->scheme.block_columns > 0 ? (columns + size - 1) / size : 1;
    size_t element = (size_t)fm_dtype_bits(fm_quantiser_scales(q, w->dtype)) / 8;
    size_t row = columns * (size_t)fm_storage_bits(to->scheme.storage) / 8;
    struct fm_mark mark = fm_scratch_mark();
    struct band b = {.blocks = blocks, .size = size};
    bool finite = true;
    b.wide = fm_scratch((high * columns + 1) * sizeof *b.wide);
    b.most = fm_scratch((blocks + 1) * sizeof *b.most);
    b.row = fm_scratch((blocks + 1) * sizeof *b.row);
    b.scale = fm_scratch((blocks + 1) * sizeof *b.scale);
    b.stored = fm_scratch((blocks + 1) * element);
    b.most[0] = b.row[0] = 0; /* for a matrix without columns */
    for (size_t first = 0; first < w->rows && finite; first += high) {
        size_t n = w->rows - first < high ? w->rows - first : high;
        finite = read_band(&b, w, first, n);
        for (size_t k = 0; k < blocks && finite; k++)
            b.scale[k] = scale_of(b.stored + k * element, q, w->dtype, b.most[k], factor);
        if (scales && finite)
            memcpy((char *)scales + first / high * blocks * element, b.stored, blocks * element);
        for (size_t i = 0; i < n && codes && finite; i++)
            fm_scaled_from_f32((char *)codes + (first + i) * row, b.wide + i * columns, b.scale,
                               columns, size, to->scheme.storage->code);
    }
    fm_scratch_release(mark);
    return finite;
}
