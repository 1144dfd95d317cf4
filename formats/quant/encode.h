/*
 * Rounding numbers to a format, to nearest and without calibration data: the tensors of a matrix,
 * its quantization_config, and the widths that servers accept.  That quantization_config, read by
 * fm_storage_read, gives the scheme.  Two passes: the largest magnitude of a matrix, from which
 * some formats make a factor of all its scales; then its rows.  Each format's file defines its
 * scales; a code is the one nearest to w / s.
 */
#ifndef FM_ENCODE_H
#define FM_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/quant/quant.h"
#include "lib/base/dtype.h"
#include "lib/base/scaled.h"

/* The server whose rules for widths an export follows. */
enum fm_server { FM_SERVER_ANY, FM_SERVER_VLLM, FM_SERVER_SGLANG, FM_SERVERS };

/* "any|vllm|sglang": the names, as options list them; -1 for an unknown name. */
#define FM_SERVER_CHOICES "any|vllm|sglang"
const char *fm_server_name(enum fm_server server);
int fm_server_find(const char *name);

/* A block, or a matrix, that is rounded. */
struct fm_encode_block {
    enum fm_dtype weights; /* of its numbers */
    float most;            /* their largest magnitude */
    float factor;          /* of the matrix */
};

struct fm_quantiser {
    const char *name;   /* the name in --weights: "w4a16:32" */
    const char *config; /* quantization_config, without braces and without the next list */
    const char *list;   /* key of the list of modules that are not quantised */
    const char *fused;  /* as `config`, for experts in one tensor; NULL: not supported */
    const char *fused_list;
    /* The factor of a matrix; NULL: none. */
    float (*factor)(const struct fm_encode_block *matrix);
    int factor_dims; /* dimensions of the tensor with the factor */
    /* The scale of a block; also written to `stored` as bytes. */
    float (*scale)(void *stored, const struct fm_encode_block *block);
    enum fm_dtype scales;          /* dtype of scales */
    bool as_weights;               /* they have the dtype of the weights instead */
    const char *unit_end;          /* ending of the name of an additional number, always 1, that
                                      servers require */
    uint32_t multiple[FM_SERVERS]; /* required divisor of an expert's channels on each device */
    const char *unread;            /* why transformers fails to read it; NULL: it reads it */
    const char *about;             /* for cards: "FP8 (E4M3), one scale per row" */
};

/* All formats to which weights can be rounded; the last is NULL. */
extern const struct fm_quantiser *const fm_quantisers[];
#define FM_QUANTISERS_MAX 16
const struct fm_quantiser *fm_quantisers_find(const char *name);
/* "|fp8-block|fp8|..", to append to other choices. */
void fm_quantisers_choices(char *text, size_t size);

/* Dtype of scales for weights of that dtype. */
static inline enum fm_dtype fm_quantiser_scales(const struct fm_quantiser *q, enum fm_dtype weights)
{
    return q->as_weights ? weights : q->scales;
}

/* A matrix of numbers: row i begins at `at` + i * stride. */
struct fm_encode_matrix {
    const char *at;
    size_t stride; /* bytes */
    enum fm_dtype dtype;
    size_t rows, columns;
};

/* Set the factor of all scales of a matrix; 1 without one.  Here and below: `to` is the
 * scheme of the format; false if the matrix contains NaN or Inf. */
bool fm_encode_factor(float *factor, const struct fm_quantiser *q, const struct fm_scheme *to,
                      const struct fm_encode_matrix *w);
/* Write codes and scales, row-major, each unless NULL. */
bool fm_encode(void *codes, void *scales, const struct fm_quantiser *q, const struct fm_scheme *to,
               const struct fm_encode_matrix *w, float factor);

/* For encoding the n elements of a row: most[i] is the largest |x| in the i-th run of `block`
 * elements (the last may be shorter), and NaN or Inf if the run contains one. */
void fm_encode_most(float *most, const float *x, size_t n, size_t block);
/* The code nearest to x / scale, one float32 quotient: ties go to the even code, and larger values
 * saturate at the largest code.  Where the scale is 0, the code of the number 0.  x must be finite,
 * and n even for codes of four bits. */
void fm_encode_codes(void *codes, const float *x, const float *scale, size_t n, size_t block,
                     enum fm_codes code);

#endif
