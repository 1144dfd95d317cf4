/*
 * Tensors that are no routed experts', in numbers.  Their shapes follow from config.json and their
 * types mostly from the experts'; what does not follow, types that differ and tensors that the
 * model does not use, a manifest says, so that the bytes of a budget can be recomputed where no
 * weights are, and a tensor that came into a bundle later is noticed.
 */
#ifndef FM_NONEXPERT_H
#define FM_NONEXPERT_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "formats/tensor/safetensors.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/family/family.h"

struct fm_nonexpert {
    uint64_t elements[FM_DTYPES];          /* of the model's, by type as bundles have them */
    uint64_t unread_tensors, unread_bytes; /* of those that the model does not use */
};

/*
 * Count a tensor outside the experts, of a decoder layer or of none; its type, shape
 * and size as bundles have them.  FM_EFORMAT where its shape is not the model's, or its name can
 * be that of no checkpoint of the model.
 */
int fm_nonexpert_add(struct fm_nonexpert *nonexpert, const struct fm_config *config,
                     const struct fm_tensor *tensor, struct fm_err *err);

/* The same of a tensor as the checkpoint, or a bundle of codes, has it: codes count as their
 * values, what belongs to codes and what is of experts not at all. */
int fm_nonexpert_add_stored(struct fm_nonexpert *nonexpert, const struct fm_config *config,
                            const struct fm_tensor *tensor, struct fm_err *err);

/* "others" of a manifest's model: only what does not follow from `dtype`, the experts'. */
void fm_nonexpert_json(cJSON *model, const struct fm_nonexpert *nonexpert, enum fm_dtype dtype);
/* Back, where all that it does not say is of `dtype` and `elements` the model has in all.  The key
 * may be absent. */
int fm_nonexpert_read(struct fm_nonexpert *nonexpert, const cJSON *model, enum fm_dtype dtype,
                      uint64_t elements, struct fm_err *err);

/* Elements of the model's tensors that are no experts', by its config. */
uint64_t fm_nonexpert_elements(const struct fm_config *config);

/* Bytes of all of them. */
uint64_t fm_nonexpert_bytes(const struct fm_nonexpert *nonexpert);

bool fm_nonexpert_equal(const struct fm_nonexpert *a, const struct fm_nonexpert *b);

#endif
