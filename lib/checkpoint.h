/*
 * A checkpoint directory as fm-pack needs it: for every expert its three matrices, and
 * all other tensors, where each lies in which shard.  No weight is read here.
 */
#ifndef FM_CHECKPOINT_H
#define FM_CHECKPOINT_H

#include <stddef.h>

#include "formats/hfdir.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/model.h"

enum fm_matrix { FM_MATRIX_GATE, FM_MATRIX_UP, FM_MATRIX_DOWN, FM_MATRICES };

struct fm_place {
    const struct fm_tensor *tensor;
    const struct fm_file *file;
};

struct fm_checkpoint {
    struct fm_hfdir dir;
    struct fm_config config;
    enum fm_dtype dtype;     /* of every expert weight */
    struct fm_place *expert; /* (L, E, matrices) */
    struct fm_place *rest;   /* every other tensor, sorted by name */
    size_t rests;
};

/*
 * FM_ECONFIG for a family or dtype that is not supported, FM_EFORMAT where an expert's tensor is
 * missing, has another shape or dtype than its neighbours, or belongs to no expert.
 */
int fm_checkpoint_open(struct fm_checkpoint *cp, const char *path, struct fm_err *err);
void fm_checkpoint_close(struct fm_checkpoint *cp); /* zeroed struct is fine */

const struct fm_place *fm_checkpoint_expert(const struct fm_checkpoint *cp, int l, int e,
                                            enum fm_matrix matrix);

/* Name of an expert's matrix in the checkpoints of a family ("mixtral"); false where it is longer
 * than `capacity` or the family unknown. */
bool fm_checkpoint_name(char *name, size_t capacity, const char *family, int l, int e,
                        enum fm_matrix matrix);

#endif
