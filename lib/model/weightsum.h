/*
 * What the weights of a checkpoint are, in one digest for each decoder layer and one for the rest:
 * by it a stage knows the checkpoint that the stage before it read, a fine-tune from its original.
 *
 * Sums are exclusive ors, so that what is summed may come in any order and from many threads: of
 * the pieces of a tensor, each hashed with its index, and of the
 * tensors of a layer, each hashed with its name, dtype and shape.  Tensors that the model does not
 * use do not count.
 */
#ifndef FM_WEIGHTSUM_H
#define FM_WEIGHTSUM_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/file/digest.h"
#include "formats/tensor/safetensors.h"
#include "lib/family/family.h"

/* Bytes of a piece; the last one of a tensor may be shorter.  Of a tensor of a checkpoint that
 * holds all experts of a layer a piece is one expert's share. */
#define FM_WEIGHTSUM_PIECE ((size_t)4 << 20)

/* Sums of a model: layer l < L at [l], the rest at [L]. */
struct fm_weightsum {
    int L;
    struct fm_digest sum[FM_LAYERS_MAX + 1];
};

/* The digest of piece `index` of a tensor. */
struct fm_digest fm_weightsum_piece(size_t index, const void *bytes, size_t size);

/* The digest of a tensor: from the sum of its pieces, or from all its bytes; `shares`: of so many
 * experts, 0: of none. */
struct fm_digest fm_weightsum_join(const struct fm_tensor *t, const struct fm_digest *pieces);
struct fm_digest fm_weightsum_tensor(const struct fm_tensor *t, const void *bytes, size_t shares);

/* Add a digest to a sum, which begins with zeros. */
void fm_weightsum_add(struct fm_digest *sum, const struct fm_digest *digest);

/* Where the tensor `name` of a stock checkpoint counts, scales where their weight does: [0, L], or
 * -1: nowhere. */
int fm_weightsum_place(const struct fm_config *config, const char *name);

/* FM_ECONFIG, naming the layer, where `sum` at place l of [0, L] is not that of `wanted`. */
int fm_weightsum_check(const struct fm_weightsum *wanted, int l, const struct fm_digest *sum,
                       struct fm_err *err);

#endif
