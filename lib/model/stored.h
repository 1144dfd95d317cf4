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
};

/* Does the tensor hold codes?  Then `name` is that of its scales. */
bool fm_stored_codes(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                     const struct fm_tensor *tensor);

/* Is a tensor of this name one of scales?  Then `weight` is the name of the codes that they scale.
 */
bool fm_stored_scales(char weight[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                      const char *name);

/* The name that the family's table knows: `name` without what the storage puts behind it. */
void fm_stored_weight(char weight[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                      const char *name);

/* The name of a weight's codes where these have another than it; false: they have not. */
bool fm_stored_blocks(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                      const char *weight);

/* FM_EFORMAT where `name`, of codes or scales that go by names of their own, takes the place of a
 * weight that is there as plain numbers, too: `plain`, NULL: it is not. */
int fm_stored_twice(const struct fm_config *config, const char *name, const struct fm_tensor *plain,
                    struct fm_err *err);

/* FM_EFORMAT where codes have no scales, or scales of another shape than the blocks'; FM_ECONFIG
 * where they are of a dtype that cannot be read. */
int fm_stored_check(const struct fm_stored *s, const struct fm_config *config, struct fm_err *err);

/*
 * fm_weights_check of what is stored for a row, and the part that it lies as: `*part` is the row's,
 * but for codes that lie transposed.
 */
int fm_stored_check_weight(enum fm_weight_part *part, const struct fm_stored *s,
                           const struct fm_config *config, const struct fm_weight *w, int l,
                           uint64_t channels, struct fm_err *err);

/* Is it of a storage that is decoded?  Then the n values, whole blocks, of which the first is
 * number `first` of the tensor, from their bytes; FM_EFORMAT where one is not finite. */
bool fm_stored_decodes(const struct fm_stored *s, const struct fm_config *config);
int fm_stored_decode(uint16_t *values, const struct fm_stored *s, const struct fm_config *config,
                     const void *codes, const void *scales, size_t first, size_t n,
                     struct fm_err *err);

/* FM_EFORMAT, naming both, unless the tensor `weight` that scales are for is there and holds codes;
 * NULL: it is not there. */
int fm_stored_check_scaled(const struct fm_config *config, const char *scales,
                           const struct fm_tensor *weight, struct fm_err *err);

/* Dtype and bytes of a tensor's values as bundles and exports have them; those of scales are 0. */
enum fm_dtype fm_stored_dtype(const struct fm_config *config, const struct fm_tensor *tensor);
uint64_t fm_stored_bytes(const struct fm_config *config, const struct fm_tensor *tensor);
/* Adds the bytes of a file's tensors as they are stored, and as bundles have them: tensors of no
 * decoder layer as they are. */
void fm_stored_add(uint64_t *stored, uint64_t *written, const struct fm_config *config,
                   const struct fm_safetensors *st);

/* FM_EFORMAT, naming tensor and element, where one of the n elements of s->tensor from `first` on,
 * bfloat16 where they were decoded, is NaN or Inf. */
int fm_stored_finite(const struct fm_stored *s, const void *raw, size_t first, size_t n,
                     struct fm_err *err);

/* n values from the bytes of a tensor, codes with their scales or plain numbers (scales NULL), as
 * a weight dtype: rounded once. */
void fm_stored_write(void *dst, enum fm_dtype dtype, const void *raw, enum fm_dtype raw_dtype,
                     const struct fm_scales *scales, size_t n);

/*
 * What a conversion of the codes needs, from the bytes of their scales: `scale` can hold
 * fm_stored_scale_count floats and is borrowed.  FM_EFORMAT, naming tensor and element, where one
 * cannot be a scale.
 */
size_t fm_stored_scale_count(const struct fm_stored *s);
int fm_stored_widen(struct fm_scales *scales, float *scale, const struct fm_stored *s,
                    const struct fm_config *config, const void *raw, struct fm_err *err);

#endif
