/*
 * A weight as it lies on disk: one tensor of plain numbers, or in a checkpoint with a storage of
 * its own (lib/block/storage.h) a tensor of codes and the tensor of their scales.  Here the two are
 * brought together, checked against each other, and counted as what is written of them.  Which
 * value a code has is the storage's knowledge, which tensor a layer needs the family's.
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
    const struct fm_tensor *tensor, *scale; /* scale: NULL where the tensor holds plain numbers */
    const struct fm_file *file, *scale_file;
    const struct fm_tensor *factor, *shape; /* that belong to codes, or NULL */
    const struct fm_file *factor_file, *shape_file;
};

/* The tensor of that name in `in`, and the file that has it, or NULL. */
typedef const struct fm_tensor *fm_stored_find(const void *in, const char *name,
                                               const struct fm_file **file);

/* Where s->tensor holds codes, the tensors that belong to it. */
void fm_stored_complete(struct fm_stored *s, const struct fm_config *config, fm_stored_find *find,
                        const void *in);

/* Does the tensor hold codes?  Then `name` is that of its scales. */
bool fm_stored_scale(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                     const struct fm_tensor *tensor);

/* Does a tensor of this name belong to one of codes?  Then `codes` is that one's name. */
bool fm_stored_belongs(char codes[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                       const char *name);

/* The name that the family's table knows: `name` with the end that the weight has there. */
void fm_stored_weight(char weight[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                      const char *name);

/* The name of a weight's codes where these have another than it; false: they have not. */
bool fm_stored_codes(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                     const char *weight);

/* FM_EFORMAT where `name`, of codes or what belongs to them, takes the place of a weight that is
 * there as plain numbers, too: `plain`, NULL: it is not. */
int fm_stored_twice(const struct fm_config *config, const char *name, const struct fm_tensor *plain,
                    struct fm_err *err);

/* FM_EFORMAT where codes have no scales, or scales of another shape than the blocks', or not what
 * else belongs to them; FM_ECONFIG where scales are of a dtype that cannot be read. */
int fm_stored_check(const struct fm_stored *s, const struct fm_config *config, struct fm_err *err);

/*
 * fm_weights_check of what is stored for a row, and the part that it lies as: `*part` is the row's,
 * but for codes that lie transposed.
 */
int fm_stored_check_weight(enum fm_weight_part *part, const struct fm_stored *s,
                           const struct fm_config *config, const struct fm_weight *w, int l,
                           uint64_t channels, struct fm_err *err);

/* For what writes codes: the part that a row's codes lie as; the name of the tensor that has the
 * end `end` (struct fm_storage) in the place of the one that `weight` has in the family's table;
 * and the dimensions of a plane's, of a weight whose own tensor is `plain`. */
enum fm_weight_part fm_stored_part(const struct fm_config *config, enum fm_weight_part part);
void fm_stored_name(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                    const char *weight, const char *end);
int fm_stored_shape(uint64_t shape[FM_ST_DIMS_MAX], const struct fm_config *config,
                    const struct fm_tensor *plain, int plane);

/* FM_EFORMAT, naming both, unless the tensor `codes` that the one called `name` belongs to is there
 * and holds codes; NULL: it is not there. */
int fm_stored_check_belongs(const struct fm_config *config, const char *name,
                            const struct fm_tensor *codes, struct fm_err *err);

/* Bits of a value of a tensor as it is stored, and how many it holds. */
int fm_stored_bits(const struct fm_config *config, const struct fm_tensor *tensor);
uint64_t fm_stored_count(const struct fm_config *config, const struct fm_tensor *tensor);

/* A tensor as bundles have it: codes as their values, with the name, in `name`, dtype, shape and
 * size of those; a plain one is the same, with its own name. */
void fm_stored_values(struct fm_tensor *values, char name[FM_ST_NAME_BYTES_MAX + 1],
                      const struct fm_config *config, const struct fm_tensor *tensor);

/* Dtype and bytes of a tensor's values as bundles and exports have them; those of a tensor that
 * belongs to codes are 0. */
enum fm_dtype fm_stored_dtype(const struct fm_config *config, const struct fm_tensor *tensor);
uint64_t fm_stored_bytes(const struct fm_config *config, const struct fm_tensor *tensor);
/* Adds the bytes of a file's tensors as they are stored, and as bundles have them: tensors of no
 * decoder layer as they are. */
void fm_stored_add(uint64_t *stored, uint64_t *written, const struct fm_config *config,
                   const struct fm_safetensors *st);

/* FM_EFORMAT, naming tensor and element, where one of the n values of s->tensor from `first` on, of
 * which `raw` are the bytes, is NaN or Inf. */
int fm_stored_finite(const struct fm_stored *s, const struct fm_config *config, const void *raw,
                     size_t first, size_t n, struct fm_err *err);

/* n values from the bytes of a tensor, codes with their scales or plain numbers (scales NULL), as
 * a weight dtype: rounded once. */
void fm_stored_write(void *dst, enum fm_dtype dtype, const void *raw, enum fm_dtype raw_dtype,
                     const struct fm_scales *scales, size_t n);

/* The number by which scales are multiplied or divided, 1 by default.  FM_EFORMAT where it
 * is not more than 0 and finite. */
int fm_stored_factor(float *factor, const struct fm_stored *s, struct fm_err *err);

/* By its name, is it a tensor of scales, or one of rows and columns? */
bool fm_stored_is_scale(const struct fm_config *config, const char *name);
bool fm_stored_is_shape(const struct fm_config *config, const char *name);

/* n scales as floats, times or by a factor. */
void fm_stored_scales(float *scale, const struct fm_storage *storage, const void *raw,
                      enum fm_dtype dtype, size_t n, float factor);

/*
 * What a conversion of the codes needs, from the bytes of `count` of their scales, of the tensor's
 * from number `first` on, whole rows of blocks: `scale` can hold that many floats and is borrowed.
 * `factor` is fm_stored_factor's.  FM_EFORMAT, naming tensor and element, where one cannot be a
 * scale.
 */
int fm_stored_widen(struct fm_scales *scales, float *scale, const struct fm_stored *s,
                    const struct fm_config *config, const void *raw, size_t first, size_t count,
                    float factor, struct fm_err *err);

#endif
