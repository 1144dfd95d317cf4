/*
 * A weight as it is stored on disk: one unquantised tensor or, in a checkpoint with a storage
 * (lib/block/storage.h), a tensor of codes and the tensor of their scales.  Here the two are
 * matched and checked, and the size of the written form is computed.  The value of a code is
 * defined by the storage; which tensors a layer needs, by the family.
 */
#ifndef FM_STORED_H
#define FM_STORED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/tensor/safetensors.h"
#include "lib/base/err.h"
#include "lib/base/scaled.h"
#include "lib/family/family.h"

struct fm_stored {
    const struct fm_tensor *tensor, *scale; /* scale is NULL if the tensor is unquantised */
    const struct fm_file *file, *scale_file;
    const struct fm_tensor *factor, *shape; /* tensors that belong to codes, or NULL */
    const struct fm_file *factor_file, *shape_file;
};

/* Find the tensor of that name in `in`, and its file; or NULL. */
typedef const struct fm_tensor *fm_stored_find(const void *in, const char *name,
                                               const struct fm_file **file);

/* If s->tensor holds codes, find the tensors that belong to it. */
void fm_stored_complete(struct fm_stored *s, const struct fm_config *config, fm_stored_find *find,
                        const void *in);

/* Whether the tensor holds codes.  If so, `name` is set to the name of its scales. */
bool fm_stored_scale(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                     const struct fm_tensor *tensor);

/* Whether a tensor of this name belongs to a tensor of codes.  If so, `codes` is set to the name of
 * that tensor. */
bool fm_stored_belongs(char codes[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                       const char *name);

/* Set `weight` to the name in the family's table of the weight to which `name`, the name of the
 * weight itself or of its codes, scales or factor, belongs. */
void fm_stored_weight(char weight[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                      const char *name);

/* The name of a weight's codes if it differs from the weight's; else false. */
bool fm_stored_codes(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                     const char *weight);

/* FM_EFORMAT if the weight of `name`, which is the name of codes or of a tensor that belongs to
 * them, also exists unquantised, as `plain` (or NULL). */
int fm_stored_twice(const struct fm_config *config, const char *name, const struct fm_tensor *plain,
                    struct fm_err *err);

/* FM_EFORMAT if codes lack their scales or the factor of these, or if a tensor that belongs to them
 * does not fit; FM_ECONFIG if the dtype of codes or scales is not supported. */
int fm_stored_check(const struct fm_stored *s, const struct fm_config *config, struct fm_err *err);

/* fm_weights_check for the tensor that is stored for row w of the family's table.  *part is set to
 * the row's part, except for codes that are stored transposed. */
int fm_stored_check_weight(enum fm_weight_part *part, const struct fm_stored *s,
                           const struct fm_config *config, const struct fm_weight *w, int l,
                           uint64_t channels, struct fm_err *err);

/* For writing codes: the part that a row's codes are stored as; the name `weight` of the family's
 * table with its suffix replaced by `end` (struct fm_storage); and the shape of a plane's tensor,
 * returning its number of dimensions, for a weight whose unquantised tensor is `plain`. */
enum fm_weight_part fm_stored_part(const struct fm_config *config, enum fm_weight_part part);
void fm_stored_name(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                    const char *weight, const char *end);
int fm_stored_shape(uint64_t shape[FM_ST_DIMS_MAX], const struct fm_config *config,
                    const struct fm_tensor *plain, int plane);

/* FM_EFORMAT, naming both, unless `codes`, the tensor to which the tensor `name` belongs, is not
 * NULL and holds codes. */
int fm_stored_check_belongs(const struct fm_config *config, const char *name,
                            const struct fm_tensor *codes, struct fm_err *err);

/* Bits of a value of a tensor as stored, and the number of its values. */
int fm_stored_bits(const struct fm_config *config, const struct fm_tensor *tensor);
uint64_t fm_stored_count(const struct fm_config *config, const struct fm_tensor *tensor);

/* A tensor as bundles store it: for codes, the name (in `name`), dtype, shape and size of their
 * values; an unquantised tensor is unchanged. */
void fm_stored_values(struct fm_tensor *values, char name[FM_ST_NAME_BYTES_MAX + 1],
                      const struct fm_config *config, const struct fm_tensor *tensor);

/* Dtype and bytes of a tensor's values in bundles and exports; 0 bytes for a tensor that belongs to
 * codes. */
enum fm_dtype fm_stored_dtype(const struct fm_config *config, const struct fm_tensor *tensor);
uint64_t fm_stored_bytes(const struct fm_config *config, const struct fm_tensor *tensor);
/* Add the bytes of a file's tensors as stored, and as bundles store them; extra tensors
 * (lib/family/extra.h) are unchanged. */
void fm_stored_add(uint64_t *stored, uint64_t *written, const struct fm_config *config,
                   const struct fm_safetensors *st);

/* FM_EFORMAT, naming tensor and element, if one of n values of s->tensor is NaN or Inf.  `raw` has
 * the bytes of the values from `first` on. */
int fm_stored_finite(const struct fm_stored *s, const struct fm_config *config, const void *raw,
                     size_t first, size_t n, struct fm_err *err);

/* Convert n values from the bytes of a tensor, codes with their scales or unquantised values
 * (scales NULL), to a weight dtype: rounded once. */
void fm_stored_write(void *dst, enum fm_dtype dtype, const void *raw, enum fm_dtype raw_dtype,
                     const struct fm_scales *scales, size_t n);

/* The number by which scales are multiplied or divided, 1 by default.  FM_EFORMAT unless it is
 * positive and finite. */
int fm_stored_factor(float *factor, const struct fm_stored *s, struct fm_err *err);

/* Whether the name is that of a tensor of scales, or of one with the numbers of rows and columns.
 */
bool fm_stored_is_scale(const struct fm_config *config, const char *name);
bool fm_stored_is_shape(const struct fm_config *config, const char *name);

/* Convert n scales to floats, multiplied or divided by the factor if the storage has one. */
void fm_stored_scales(float *scale, const struct fm_storage *storage, const void *raw,
                      enum fm_dtype dtype, size_t n, float factor);

/*
 * Prepare the conversion of codes: read `count` scales of the tensor, from number `first` on (whole
 * rows of blocks), from their bytes into `scale`, which the caller provides and keeps.  `factor` is
 * fm_stored_factor's.  FM_EFORMAT, naming tensor and element, if one cannot be a scale.
 */
int fm_stored_widen(struct fm_scales *scales, float *scale, const struct fm_stored *s,
                    const struct fm_config *config, const void *raw, size_t first, size_t count,
                    float factor, struct fm_err *err);

#endif
