/*
 * The verification of an export in the making: what lib/verify/verify_export.c, which looks at
 * files and names, and lib/verify/verify_weights.c, which looks at bytes, share.
 */
#ifndef FM_VERIFY_PARTS_H
#define FM_VERIFY_PARTS_H

#include "lib/export/exporter.h"
#include "lib/verify/verifier.h"

/* A weight file of the directory. */
struct fm_verify_shard {
    struct fm_file file;
    struct fm_safetensors st;
    bool open, parsed;
};

/* What one task looks at: a tensor, or one expert of it. */
struct fm_verify_unit {
    size_t tensor;
    int e;
};

struct fm_verify_job {
    struct fm_verifier *v;
    struct fm_export_options options;
    struct fm_run_options run; /* input is the bundle */
    struct fm_exporter x;
    struct fm_segments seg;
    struct fm_verify_shard *shard; /* (x.files) */
    struct fm_volumes weights;     /* the bundle's, where a width ends inside a segment */
    size_t *up;                    /* (M, E): that expert's up tensor, in stock layouts */
    struct fm_verify_unit *unit;
    int units;
};

/* Every tensor for which usable[i] (x.tensors) is set: its values are those that the bundle has
 * checksums of. */
int fm_verify_weights(struct fm_verify_job *j, const bool *usable, struct fm_err *err);

#endif
