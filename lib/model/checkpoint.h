/*
 * A checkpoint directory as fm-pack needs it: what every expert has of which tensors
 * (lib/block/experts.h), and all other tensors, where each lies in which shard.  No weight is read
 * here.
 */
#ifndef FM_CHECKPOINT_H
#define FM_CHECKPOINT_H

#include <stddef.h>

#include "formats/tensor/hfdir.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/block/experts.h"
#include "lib/family/family.h"
#include "lib/model/model.h"
#include "lib/model/stored.h"

/* Tensors that an expert can be in: gate, up and down, or all experts' gate_up, down and biases. */
#define FM_EXPERT_TENSORS_MAX 4

/* What one expert has of a tensor: all of it, or one of E shares. */
struct fm_share {
    struct fm_stored at;
    enum fm_weight_part part;
    bool fused; /* one of E; those of an expert e lie e-th */
};

struct fm_checkpoint {
    struct fm_hfdir dir;
    struct fm_config config;
    enum fm_dtype dtype;     /* of every expert weight, as it is written */
    struct fm_share *expert; /* (M, E, tensors) */
    int tensors;             /* that an expert is in: rows of the family's table */
    struct fm_stored *rest;  /* every other tensor but what belongs to codes, sorted by name */
    struct fm_stored *aside; /* what belongs to codes, scales among it */
    size_t asides;
    struct fm_stored *extra; /* those of no decoder layer, sorted by name: not in rest */
    size_t experts, rests;   /* counts: shares of experts, other tensors */
    size_t extras;
    struct fm_extra sum; /* of extra */
};

/*
 * FM_ECONFIG for a family or dtype that is not supported, FM_EFORMAT where an expert's tensor is
 * missing, has another shape or dtype than its neighbours, or belongs to no expert.
 */
int fm_checkpoint_open(struct fm_checkpoint *cp, const char *path, struct fm_err *err);
void fm_checkpoint_close(struct fm_checkpoint *cp); /* zeroed struct is fine */

/* Shares (tensors) of an expert of the m-th layer of experts. */
const struct fm_share *fm_checkpoint_expert(const struct fm_checkpoint *cp, int m, int e);

/* Bytes of a share in its tensor, or in that of its scales. */
uint64_t fm_checkpoint_share_bytes(const struct fm_checkpoint *cp, const struct fm_share *share,
                                   const struct fm_tensor *tensor);

/*
 * Names in exports.  Of the row of the family's table with that part, for layer l and expert e;
 * and of a tensor of the checkpoint outside the experts (its own where the table has none).
 */
void fm_checkpoint_name(char name[FM_WEIGHT_NAME_BYTES], const struct fm_config *config,
                        enum fm_naming naming, enum fm_weight_part part, int l, int e);
void fm_checkpoint_rename(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                          enum fm_naming naming, const char *stock);

#endif
