/*
 * A checkpoint directory as fm-pack needs it: for each expert, its shares of tensors
 * (lib/block/experts.h); and all other tensors, each with its shard and offset.  Weights are not
 * read here.
 */
#ifndef FM_CHECKPOINT_H
#define FM_CHECKPOINT_H

#include <stddef.h>

#include "formats/tensor/hfdir.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/model/model.h"
#include "lib/model/packed.h"
#include "lib/model/stored.h"

/* Largest number of tensors that hold parts of one expert: gate, up and down; or gate_up, down and
 * their biases, each of all experts. */
#define FM_EXPERT_TENSORS_MAX 4

/* An expert's share of a tensor: all of it, or one of E equal shares. */
struct fm_share {
    const struct fm_stored *at;
    enum fm_weight_part part;
    bool fused; /* one of E shares; expert e has share number e */
};

struct fm_checkpoint {
    struct fm_hfdir dir;
    struct fm_model *model;  /* opened from `dir`, which checks every tensor */
    struct fm_config config; /* the model's */
    enum fm_dtype dtype;     /* dtype of every expert weight when written */
    const struct fm_weight *row[FM_EXPERT_TENSORS_MAX]; /* rows of the family's table */
    int tensors;                                        /* per expert: their number */
    struct fm_stored
        *rest; /* all other tensors except those that belong to codes, sorted by name */
    struct fm_stored *aside; /* tensors that belong to codes, including scales */
    size_t asides;
    struct fm_stored
        *extra; /* extra tensors (lib/family/extra.h), sorted by name; `rest` does not have them */
    size_t rests, extras;
    struct fm_extra sum; /* of extra */
};

/* Open a checkpoint, as fm_model_open_dir does.  FM_ECONFIG if it is an export, FM_EFORMAT if a
 * tensor of an expert is not in the family's table. */
int fm_checkpoint_open(struct fm_checkpoint *cp, const char *path, struct fm_err *err);
void fm_checkpoint_close(struct fm_checkpoint *cp); /* zeroed struct is fine */

/* The share of expert e of the m-th layer with experts in the i-th of its tensors. */
struct fm_share fm_checkpoint_share(const struct fm_checkpoint *cp, int m, int e, int i);

/* For a bundle whose layers keep codes: move what belongs to codes and is in no layer to the rest.
 */
void fm_checkpoint_keep(struct fm_checkpoint *cp, const struct fm_packed_layers *layers);

#endif
