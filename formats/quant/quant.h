/*
 * This room, formats/quant: how matrices of weights are stored in few bits, and what
 * quantization_config says about it.  It is given JSON, rows and columns; it does not depend on
 * models, layouts or bundles.  In reading order: this header (what a checkpoint's matrix consists
 * of; schemes of modules), encode (rounding a matrix to a format), formats.h; one file for each
 * format, which is read and written there: fp8, mxfp8, mxfp4, int4, nvfp4, awq, gptq; and the
 * containers of several formats, compressed and modelopt.
 *
 * A storage determines the kind of codes and the names of tensors.  lib/model/stored.h finds the
 * tensors that belong to a weight.  Bundles can keep codes (lib/model/packed.h).
 */
#ifndef FM_QUANT_H
#define FM_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/file/file.h"
#include "formats/json/json.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/base/scaled.h"
#include "lib/base/tensor.h"

/*
 * Parts of a quantised matrix W (N rows, K columns): a plane is a matrix of elements, one for each
 * block of block_rows x block_columns values, (ceil(N / block_rows), ceil(K / block_columns)).
 * Plane 0 is the codes, one for each value; plane 1 is the scales.
 *
 * Channels of an expert are rows of gate and up and columns of down.
 */
struct fm_plane {
    const char *suffix; /* after a tensor's name in a bundle: "", "_scale" */
    int bits;           /* bits of an element; 0: as in the dtype of the checkpoint's tensor */
    int whole;          /* a row has a multiple of this many elements, to fill bytes or words */
    int block_rows, block_columns; /* 0: the whole matrix */
};
#define FM_PLANES 2

/* Largest number of rows or columns of a block. */
#define FM_STORAGE_BLOCK_MAX (1 << 20)

/* The suffix of a tensor that only servers use, and what stands in its place, before the weight's
 * own suffix, in the weight's name.  A list ends with an entry without suffix. */
struct fm_carried_end {
    const char *end, *stem;
};

/*
 * A matrix of codes and the tensors that belong to it.  A value is its code times the scale of its
 * block (lib/base/scaled.h).  Each tensor has the weight's name in the family's table with a
 * different suffix in place of `weight`.  If a tensor has all experts of a layer, each of these has
 * E as its first dimension, and an expert's share of them is as described here.
 */
struct fm_storage {
    const char *name; /* for reports: "fp8" */
    enum fm_codes code;
    enum fm_dtype codes;   /* dtype of the tensor of codes, which is recognised by this and by its
                              name */
    enum fm_dtype written; /* dtype of the values in bundles and exports, rounded once */
    bool exact;            /* every value is representable as `written` */
    bool whole; /* a row of codes has whole blocks; else blocks at the far edges may be partial */
    /* Codes of experts that are stored as columns are transposed, (E, rows, columns / block, bytes
     * of a block), where rows and columns are the columns and rows of the unquantised weight. */
    bool turned;
    const char *weight;    /* suffix of the weight in the family's table */
    const char *codes_end; /* suffix of the tensors of codes that replace it */
    const char *scale_end; /* if the scheme has no blocks, one number for the whole matrix */
    unsigned scale_dtypes; /* bits 1 << dtype: allowed dtypes of scales; U8 is read as F8_E8M0 */
    bool zeros;            /* a scale may be 0: a block of zeros */
    /* Suffix of an additional F32 number for the whole matrix by which scales are multiplied or
     * divided; the result is rounded to float32 before it is multiplied by a code.  NULL: none. */
    const char *factor_end;
    bool divides;          /* scales are divided by it */
    const char *zero_end;  /* U8, a zero point for each scale, which is subtracted from codes;
                              bundles do not keep such codes.  NULL: none */
    const char *shape_end; /* I64 (2), rows and columns of the matrix; NULL: none */
    const struct fm_carried_end *carried; /* tensors that only servers use; or NULL */
};

/* Bits of a value in the tensor of codes. */
static inline int fm_storage_bits(const struct fm_storage *storage)
{
    return fm_code_bits(storage->code);
}

/* Convert n scales to floats, multiplied or divided by the factor if the storage has one. */
void fm_storage_scales(float *scale, const struct fm_storage *storage, const void *raw,
                       enum fm_dtype dtype, size_t n, float factor);

/* How a tensor is stored. */
struct fm_scheme {
    const struct fm_storage *storage; /* NULL: unquantised */
    int block_rows, block_columns;    /* block_rows 0: one scale for the whole matrix */
};

static inline bool fm_scheme_equal(const struct fm_scheme *a, const struct fm_scheme *b)
{
    return a->storage == b->storage && a->block_rows == b->block_rows &&
           a->block_columns == b->block_columns;
}

/* The schemes of a checkpoint that stores modules in different ways. */
struct fm_schemes;

/*
 * Read and check quantization_config: set *scheme, or if modules are stored in different ways,
 * *schemes (fm_schemes_free), which is NULL before, and *scheme to one of them.  `fused`: whether
 * all experts of a layer are in one tensor.  FM_ECONFIG if the format is not supported; *known is
 * false if its quant_method is not in the list.
 */
int fm_storage_read(struct fm_scheme *scheme, struct fm_schemes **schemes,
                    const cJSON *quantization, bool fused, bool *known, struct fm_err *err);

/* The scheme of the tensor of this name, if it is codes or belongs to codes. */
struct fm_scheme fm_schemes_of(const struct fm_schemes *schemes, const char *name);

/*
 * Add the scheme of the modules that `target` selects to *schemes, which is allocated if it is
 * NULL.  `target`, which is copied, is an entry as in lib/base/modules.h, or `Linear` for all
 * modules that no other entry matches.  The name of the module, or else of the innermost module
 * around it, takes precedence over patterns and expressions, and among these the first match
 * counts.  FM_ECONFIG for any other text.  Add all, then call fm_schemes_done.
 */
int fm_schemes_add(struct fm_schemes **schemes, const char *target, const struct fm_scheme *scheme,
                   struct fm_err *err);
void fm_schemes_done(struct fm_schemes *schemes);
void fm_schemes_free(struct fm_schemes *schemes); /* NULL is fine */

/* The names of all storages for reports, that of `scheme` first: "nvfp4, fp8-block"; "" if no
 * weights are quantised.  `schemes` may be NULL, here and below. */
#define FM_STORAGE_NAMES 64
void fm_storage_names(char text[FM_STORAGE_NAMES], const struct fm_scheme *scheme,
                      const struct fm_schemes *schemes);

/* Largest ratio of written bytes to stored bytes of any tensor; 1 if none is quantised. */
uint64_t fm_storage_growth(const struct fm_scheme *scheme, const struct fm_schemes *schemes);

/* Whether the values of all tensors are representable in the dtype in which they are written. */
bool fm_storage_exact(const struct fm_scheme *scheme, const struct fm_schemes *schemes);

/* The planes of a scheme of codes. */
void fm_scheme_planes(struct fm_plane plane[FM_PLANES], const struct fm_scheme *scheme);

/* Blocks of `size` of a row or column of `all` elements, the last maybe partial; size 0: one. */
static inline uint64_t fm_scheme_across(uint64_t all, int size)
{
    return size ? (all + (uint64_t)size - 1) / (uint64_t)size : 1;
}

/* Number of blocks of a matrix, each of which has a scale; and the values of its codes. */
size_t fm_scheme_blocks(const struct fm_scheme *scheme, size_t rows, size_t columns);
void fm_scheme_decode(float *values, const struct fm_scheme *scheme, const void *codes,
                      const float *scale, size_t rows, size_t columns);

/*
 * Channels that must be removed together so that codes and scales stay unchanged: the smallest
 * number that fills whole blocks of every plane, in rows and in columns, and whole bytes or words
 * of codes.  All numbers of channels must be multiples of it.  1 for unquantised weights; more than
 * FM_STORAGE_BLOCK_MAX if it is larger than that.
 */
int fm_scheme_group(const struct fm_scheme *scheme);

/* The least common multiple of two groups, at most FM_STORAGE_BLOCK_MAX + 1. */
int fm_storage_both(int a, int b);

/* The tensors of a file of a checkpoint, sorted by name; `take` below may change, rename and drop
 * some. */
struct fm_quant_file {
    const char *name;
    const struct fm_file *file;
    struct fm_tensor *tensor;
    size_t count;
    char *renamed; /* their new names (malloc), or NULL */
};

/*
 * If config.json (`text`) names a quant_method whose tensors have an order of their own, present
 * them as tensors of another format or in the usual order, and set *config (malloc) to the
 * quantization_config that describes them, or to NULL if it stays as it is.  FM_ECONFIG or
 * FM_EFORMAT, naming the key or the file and tensor, if that is not possible.
 */
int fm_quant_take(char **config, struct fm_quant_file *file, size_t files, const char *text,
                  size_t bytes, struct fm_err *err);

/* A quant_method.  fp8 has one scale per block of a matrix, as in DeepSeek-V3, or one; mxfp8 is its
 * form in MiniMax-M3; mxfp4 is for experts, as in gpt-oss; compressed-tensors and NVIDIA's modelopt
 * are containers of several formats; awq is AutoAWQ's; gptq is taken as compressed-tensors. */
struct fm_quant_method {
    const char *name; /* "modelopt" */
    bool fused;       /* only for experts in one tensor */
    /* fm_storage_read of this method; NULL if `take` replaces its quantization_config with that of
     * another method. */
    int (*read)(struct fm_scheme *scheme, struct fm_schemes **schemes, const cJSON *quantization,
                struct fm_err *err);
    /* NULL, or fm_quant_take of this method.  `inner`: the key is in text_config. */
    int (*take)(char **config, struct fm_quant_file *file, size_t files, const cJSON *quantization,
                bool inner, struct fm_err *err);
};

extern const struct fm_storage fm_fp8, fm_mxfp4, fm_mxfp8;
extern const struct fm_quant_method fm_method_fp8, fm_method_mxfp4, fm_method_compressed,
    fm_method_mxfp8, fm_method_modelopt, fm_method_awq, fm_method_gptq;

#endif
