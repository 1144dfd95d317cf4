/*
 * How the weights of a checkpoint are stored on disk if they are quantised.  A storage is defined
 * in lib/block/storage and has a row in the list below; it determines the keys of
 * quantization_config, the kind of codes, and the names of tensors.  lib/model/stored.h finds the
 * tensors that belong to a weight.  Bundles can keep codes (lib/model/packed.h).
 */
#ifndef FM_STORAGE_H
#define FM_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/base/scaled.h"
#include "lib/block/keys.h"

struct fm_config;
struct fm_schemes;

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

/*
 * A matrix of codes and the tensors that belong to it.  A value is its code times the scale of its
 * block (lib/base/scaled.h).  Each tensor has the weight's name in the family's table with a
 * different suffix in place of `weight`.
 */
struct fm_storage {
    const char *name;   /* for reports: "fp8" */
    const char *method; /* quant_method of quantization_config */
    /* Read and check quantization_config; sets block_rows and block_columns. */
    int (*read)(struct fm_config *config, const cJSON *quantization, struct fm_err *err);
    enum fm_codes code;
    enum fm_dtype codes;   /* dtype of the tensor of codes, which is recognised by this and by its
                              name */
    enum fm_dtype written; /* dtype of the values in bundles and exports, rounded once */
    bool exact;            /* every value is representable as `written` */
    bool whole; /* a row of codes has whole blocks; else blocks at the far edges may be partial */
    /* The tensor has all experts of a layer, (E, rows, columns / block, bytes of a block), where
     * rows and columns are the columns and rows of the unquantised weight. */
    bool fused;
    const char *weight;    /* suffix of the weight in the family's table */
    const char *codes_end; /* suffix of the tensors of codes that replace it */
    const char *scale_end;
    unsigned scale_dtypes; /* bits 1 << dtype: allowed dtypes of scales; U8 is read as F8_E8M0 */
    bool zeros;            /* a scale may be 0: a block of zeros */
    /* Suffix of an additional F32 number per matrix by which scales are multiplied or divided; the
     * result is rounded to float32 before it is multiplied by a code.  NULL: none. */
    const char *factor_end;
    bool divides;          /* scales are divided by it */
    const char *shape_end; /* I64 (2), rows and columns of the matrix; NULL: none */
    const char *const
        *carried; /* NULL-terminated list of suffixes of tensors that only servers use; or NULL */
};

/* Bits of a value in the tensor of codes. */
static inline int fm_storage_bits(const struct fm_storage *storage)
{
    return fm_code_bits(storage->code);
}

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

/* The scheme of the tensor of this name, if it is codes or belongs to codes. */
struct fm_scheme fm_storage_of(const struct fm_config *config, const char *name);

/*
 * Add the scheme of the modules that `target` selects to config->schemes, which is allocated if it
 * is NULL; for `read` of a checkpoint with several schemes.  `target`, which is copied, is an entry
 * as in lib/base/modules.h, or `Linear` for all modules that no other entry matches.  The name of
 * the module, or else of the innermost module around it, takes precedence over patterns and
 * expressions, and among these the first match counts.  FM_ECONFIG for any other text.  Add all,
 * then call fm_schemes_done.
 */
int fm_schemes_add(struct fm_config *config, const char *target, const struct fm_scheme *scheme,
                   struct fm_err *err);
void fm_schemes_done(struct fm_config *config);
void fm_schemes_free(struct fm_schemes *schemes);

/* The names of all storages for reports, the storage of the experts first: "nvfp4, fp8-block"; ""
 * if no weights are quantised. */
#define FM_STORAGE_NAMES 64
void fm_storage_names(char text[FM_STORAGE_NAMES], const struct fm_config *config);

/* Largest ratio of written bytes to stored bytes of any tensor; 1 if none is quantised. */
uint64_t fm_storage_growth(const struct fm_config *config);

/* Whether the values of all tensors are representable in the dtype in which they are written. */
bool fm_storage_exact(const struct fm_config *config);

/* The planes of a scheme of codes. */
void fm_scheme_planes(struct fm_plane plane[FM_PLANES], const struct fm_scheme *scheme);

/*
 * Channels that must be removed together so that codes and scales stay unchanged: the smallest
 * number that fills whole blocks of every plane, in rows and in columns, and whole bytes or words
 * of codes.  All numbers of channels must be multiples of it.  1 for unquantised weights; more than
 * FM_CHANNELS_MAX if no expert has that many.
 */
int fm_scheme_group(const struct fm_scheme *scheme);

/* The channel group of the config's storage. */
int fm_storage_group(const struct fm_config *config);

/* The least common multiple of two groups, at most FM_CHANNELS_MAX + 1. */
int fm_storage_both(int a, int b);

/* The list: a row NAME for each storage, whose file defines fm_NAME.  fp8 has one scale per block
 * of a matrix, as in DeepSeek-V3; mxfp8 is its form in MiniMax-M3; mxfp4 is for experts, as in
 * gpt-oss; compressed and modelopt are the formats of compressed-tensors and of NVIDIA's ModelOpt,
 * which have several variants: `read` selects one by quantization_config and sets its descriptor in
 * the config. */
/* clang-format off */
#define FM_STORAGE_ROWS(ROW) \
    ROW(fp8)                 \
    ROW(mxfp4)               \
    ROW(compressed)          \
    ROW(mxfp8)               \
    ROW(modelopt)
/* clang-format on */

#define FM_STORAGE_DECLARE(name) extern const struct fm_storage fm_##name;
FM_STORAGE_ROWS(FM_STORAGE_DECLARE)

#endif
