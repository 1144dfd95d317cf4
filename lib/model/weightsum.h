/*
 * Digests of the weights of a checkpoint, one for each decoder layer and one for the rest.  A stage
 * uses them to recognise the checkpoint that the previous stage read, and to distinguish a
 * fine-tune from the original.
 *
 * Sums are exclusive ors, so that digests can be added in any order and by many threads.  A
 * tensor's sum is over its pieces, each hashed with its index; a layer's sum is over its tensors,
 * each hashed with its name, dtype and shape.  Tensors that the model does not use are not
 * included.
 */
#ifndef FM_WEIGHTSUM_H
#define FM_WEIGHTSUM_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/file/digest.h"
#include "formats/tensor/safetensors.h"
#include "lib/family/family.h"
#include "lib/model/stored.h"

/* Bytes of a piece; the last one of a tensor may be shorter.  If a tensor of a checkpoint holds all
 * experts of a layer, a piece is one expert's share. */
#define FM_WEIGHTSUM_PIECE ((size_t)4 << 20)

/* Sums of a model: layer l < L at [l], the rest at [L]. */
struct fm_weightsum {
    int L;
    struct fm_digest sum[FM_LAYERS_MAX + 1];
};

/* The digest of piece `index` of a tensor. */
struct fm_digest fm_weightsum_piece(size_t index, const void *bytes, size_t size);

/* The digest of a tensor, from the sum of its pieces or from all its bytes; `shares` is the number
 * of experts whose shares are its pieces, or 0. */
struct fm_digest fm_weightsum_join(const struct fm_tensor *t, const struct fm_digest *pieces);
struct fm_digest fm_weightsum_tensor(const struct fm_tensor *t, const void *bytes, size_t shares);

/* Add a digest to a sum, which begins with zeros. */
void fm_weightsum_add(struct fm_digest *sum, const struct fm_digest *digest);

/* Add the digests of the factor of scales, which has been read, and of zero points, which are read
 * here, if codes have them. */
int fm_weightsum_apart(struct fm_digest *sum, const struct fm_stored *s, float factor,
                       struct fm_err *err);

/* The place in [0, L] where a tensor of a stock checkpoint is summed (scales: with their weight);
 * -1 if it is not summed. */
int fm_weightsum_place(const struct fm_config *config, const struct fm_stored *s);

/* FM_ECONFIG, naming the layer, if `sum` at place l of [0, L] differs from `wanted`. */
int fm_weightsum_check(const struct fm_weightsum *wanted, int l, const struct fm_digest *sum,
                       struct fm_err *err);

#endif
