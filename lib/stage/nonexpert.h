/*
 * Counts of the tensors outside the routed experts.  Their shapes follow from config.json, and most
 * have the dtype of the experts.  The manifest records the exceptions, other dtypes and tensors
 * that the model does not use, so that the bytes of a budget can be recomputed without the weights,
 * and a tensor that was added to a bundle later is detected.
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
    uint64_t elements[FM_DTYPES];          /* elements of the model's tensors, by their dtype in
                                              bundles */
    uint64_t unread_tensors, unread_bytes; /* tensors that the model does not use */
};

/*
 * Count a tensor outside the experts, inside a decoder layer or not, with its type, shape and size
 * in bundles.  FM_EFORMAT if its shape is not the model's, or its name is that of an expert's
 * tensor or of a layer's tensor that the model does not have.
 */
int fm_nonexpert_add(struct fm_nonexpert *nonexpert, const struct fm_config *config,
                     const struct fm_tensor *tensor, struct fm_err *err);

/* Count a tensor of the checkpoint, or of a bundle of codes: codes count as their values; scales
 * and other parts of codes, and tensors of experts, do not count. */
int fm_nonexpert_add_stored(struct fm_nonexpert *nonexpert, const struct fm_config *config,
                            const struct fm_tensor *tensor, struct fm_err *err);

/* Write "others" of a manifest's model: the counts for dtypes other than `dtype`, that of the
 * experts, and for tensors that the model does not use. */
void fm_nonexpert_json(cJSON *model, const struct fm_nonexpert *nonexpert, enum fm_dtype dtype);
/* Read "others" back.  The model has `elements` elements outside the experts; those that "others"
 * does not list have `dtype`.  The key may be absent. */
int fm_nonexpert_read(struct fm_nonexpert *nonexpert, const cJSON *model, enum fm_dtype dtype,
                      uint64_t elements, struct fm_err *err);

/* Elements of the model's tensors outside the experts, by its config. */
uint64_t fm_nonexpert_elements(const struct fm_config *config);

/* Bytes of all counted tensors. */
uint64_t fm_nonexpert_bytes(const struct fm_nonexpert *nonexpert);

bool fm_nonexpert_equal(const struct fm_nonexpert *a, const struct fm_nonexpert *b);

#endif
