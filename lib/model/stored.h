/*
 * A weight as it is stored on disk: one unquantised tensor or, in a checkpoint with a storage
 * (formats/quant/quant.h), a tensor of codes and the tensor of their scales.  Here the two are
 * matched and checked, and the size of the written form is computed.  The value of a code is
 * defined by the storage; which tensors a layer needs, by the family.
 */
#ifndef FM_STORED_H
#define FM_STORED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/quant/quant.h"
#include "lib/base/err.h"
#include "lib/base/scaled.h"
#include "lib/family/family.h"

/* What a tensor of a source is. */
enum fm_stored_role {
    FM_STORED_VALUES, /* unquantised */
    FM_STORED_CODES,  /* fm_stored_check checks the dtype */
    /* These belong to codes. */
    FM_STORED_SCALE,
    FM_STORED_FACTOR,
    FM_STORED_ZERO,
    FM_STORED_SHAPE,
    FM_STORED_CARRIED /* only for servers */
};

/* A tensor of a source and what it is.  fm_stored_see and fm_stored_link determine this from names
 * and dtypes, once, when a source is opened. */
struct fm_stored {
    const struct fm_tensor *tensor, *scale; /* scale is NULL if the tensor is not codes */
    const struct fm_file *file, *scale_file;
    const struct fm_tensor *factor, *zero, *shape; /* tensors that belong to codes, or NULL */
    const struct fm_file *factor_file, *zero_file, *shape_file;
    struct fm_scheme scheme; /* of the module, although this tensor of it may be unquantised */
    enum fm_stored_role role;
    /* The row of the family's table for the weight that the tensor is, or belongs to; else NULL. */
    const struct fm_weight *weight;
    int l, e;   /* its layer and expert; -1: outside the layers, not of one expert */
    int chunks; /* of rows, whose blocks of scales are counted separately; 0: it is one */
    bool extra; /* an extra tensor (lib/family/extra.h) */
};

/* The chunks in which a tensor of q, k and v is stored; 0: none is. */
int fm_stored_chunks(const struct fm_config *config);

/* Determine what s->tensor is.  `naming` is that of the source. */
void fm_stored_see(struct fm_stored *s, const struct fm_config *config, enum fm_naming naming);

/* The same for an extra tensor that stands in for one of the decoder's (fm_extra_twin): s->weight
 * is then the row of that tensor, for experts in either form, and s->l and s->e its layer and
 * expert.  False if it stands in for none. */
bool fm_stored_see_twin(struct fm_stored *s, const struct fm_config *config);

/* The entry of that name in a source, or NULL. */
typedef const struct fm_stored *fm_stored_find(const void *in, const char *name);

/* If s->tensor is codes, find the tensors that belong to it. */
void fm_stored_link(struct fm_stored *s, fm_stored_find *find, const void *in);

static inline bool fm_stored_is_codes(const struct fm_stored *s)
{
    return s->role == FM_STORED_CODES;
}

/* Whether the tensor belongs to codes. */
static inline bool fm_stored_belongs(const struct fm_stored *s)
{
    return s->role > FM_STORED_CODES;
}

/* Whether it holds channels of experts, or belongs to codes that do. */
static inline bool fm_stored_is_expert(const struct fm_stored *s)
{
    return s->weight && fm_weights_is_expert(s->weight);
}

/* Whether it has all experts of a layer, or belongs to codes that do. */
static inline bool fm_stored_is_fused(const struct fm_stored *s)
{
    return fm_stored_is_expert(s) && s->e < 0;
}

/* FM_EFORMAT, naming both, if the tensor belongs to codes that do not exist, or if it is codes and
 * its weight also exists unquantised. */
int fm_stored_check_pair(const struct fm_stored *s, fm_stored_find *find, const void *in,
                         struct fm_err *err);

/* FM_EFORMAT if codes lack their scales or the factor of these, or if a tensor that belongs to them
 * does not fit; FM_ECONFIG if the dtype of codes or scales is not supported. */
int fm_stored_check(const struct fm_stored *s, struct fm_err *err);

/* fm_weights_check for the tensor that is stored for row w of the family's table.  *part is set to
 * the row's part, except for codes that are stored transposed. */
int fm_stored_check_weight(enum fm_weight_part *part, const struct fm_stored *s,
                           const struct fm_config *config, const struct fm_weight *w, int l,
                           uint64_t channels, struct fm_err *err);

/* For writing codes: the part that a row's codes are stored as; the name `weight` of the family's
 * table with its suffix replaced by `end` (struct fm_storage); and the shape of a plane's tensor,
 * returning its number of dimensions, for a weight whose unquantised tensor is `plain`. */
enum fm_weight_part fm_stored_part(const struct fm_storage *storage, enum fm_weight_part part);
void fm_stored_name(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_storage *storage,
                    const char *weight, const char *end);
int fm_stored_shape(uint64_t shape[FM_ST_DIMS_MAX], const struct fm_scheme *scheme,
                    const struct fm_tensor *plain, int plane);

/* Bits of a value of the tensor as stored, and the number of its values. */
int fm_stored_bits(const struct fm_stored *s);
uint64_t fm_stored_count(const struct fm_stored *s);

/* The tensor as bundles store it: for codes, the name (in `name`), dtype, shape and size of their
 * values; all other tensors are unchanged. */
void fm_stored_values(struct fm_tensor *values, char name[FM_ST_NAME_BYTES_MAX + 1],
                      const struct fm_stored *s);

/* Dtype and bytes of the tensor's values in bundles and exports; 0 bytes for a tensor that belongs
 * to codes. */
enum fm_dtype fm_stored_dtype(const struct fm_stored *s);
uint64_t fm_stored_bytes(const struct fm_stored *s);

/* FM_EFORMAT, naming tensor and element, if one of n values of s->tensor is NaN or Inf.  `raw` has
 * the bytes of the values from `first` on. */
int fm_stored_finite(const struct fm_stored *s, const void *raw, size_t first, size_t n,
                     struct fm_err *err);

/* Convert n values from the bytes of a tensor, codes with their scales or unquantised values
 * (scales NULL), to a weight dtype: rounded once. */
void fm_stored_write(void *dst, enum fm_dtype dtype, const void *raw, enum fm_dtype raw_dtype,
                     const struct fm_scales *scales, size_t n);

/* The number by which scales are multiplied or divided, 1 by default; in a tensor of all experts,
 * that of expert e, else -1.  FM_EFORMAT unless it is positive and finite. */
int fm_stored_factor(float *factor, const struct fm_stored *s, int e, struct fm_err *err);
int fm_stored_check_factor(float factor, const char *name, struct fm_err *err);

/*
 * Prepare the conversion of codes: read `count` scales of the tensor, from number `first` on (whole
 * rows of blocks), from their bytes into `scale`, which the caller provides and keeps.  Zero points
 * are read into scratch.  `factor` is fm_stored_factor's.  FM_EFORMAT, naming tensor and element,
 * if one cannot be a scale.
 */
int fm_stored_widen(struct fm_scales *scales, float *scale, const struct fm_stored *s,
                    const void *raw, size_t first, size_t count, float factor, struct fm_err *err);

#endif
