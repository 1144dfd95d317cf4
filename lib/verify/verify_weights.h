/*
 * State of the verification of an export, shared by lib/verify/verify_export.c, which checks files
 * and names, and lib/verify/verify_weights.c, which checks bytes.
 */
#ifndef FM_VERIFY_WEIGHTS_H
#define FM_VERIFY_WEIGHTS_H

#include "lib/export/exportplan.h"
#include "lib/export/piece.h"
#include "lib/verify/verifier.h"

/* A weight file of the directory. */
struct fm_verify_shard {
    struct fm_file file;
    struct fm_safetensors st;
    bool open, parsed;
};

/* The work of one task: a group of pieces, a block, or a tensor without blocks. */
struct fm_verify_unit {
    const struct fm_piece *piece;
    const struct fm_planned_tensor *tensor;
    const struct fm_planned_block *block; /* NULL: the whole tensor */
};

struct fm_verify_job {
    struct fm_verifier *v;
    struct fm_verify_claim claim;
    struct fm_export_options options; /* options that the export claims; the claim owns the
                                         strings */
    struct fm_opened opened;          /* its bundle, or the beginning of it; the places of its
                                         weights only if bytes of them are needed */
    struct fm_exportplan plan;
    struct fm_verify_shard *shard; /* (plan.files) */
    const struct fm_tensor **have; /* (plan.tensors): their places in the shards; NULL: missing
                                      or not as planned */
    struct fm_verify_unit *unit;
    struct fm_piece *piece; /* what is computed again */
    int units;
};

/* Check the values of every existing tensor against the bundle's checksums. */
int fm_verify_weights(struct fm_verify_job *j, struct fm_err *err);

#endif
