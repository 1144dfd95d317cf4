/*
 * The verification of an export in the making: what lib/verify/verify_export.c, which looks at
 * files and names, and lib/verify/verify_weights.c, which looks at bytes, share.
 */
#ifndef FM_VERIFY_PARTS_H
#define FM_VERIFY_PARTS_H

#include <cjson/cJSON.h>

#include "lib/export/plan.h"
#include "lib/verify/verifier.h"

/* A weight file of the directory. */
struct fm_verify_shard {
    struct fm_file file;
    struct fm_safetensors st;
    bool open, parsed;
};

/* What one task looks at: a block, or a tensor that has none. */
struct fm_verify_unit {
    size_t tensor;
    const struct fm_planned_block *block; /* NULL: all of the tensor */
};

/* fm-export.json of the directory, and what its export is. */
struct fm_verify_claim {
    cJSON *json;
    char *text;
    size_t size;
    const struct fm_layout *layout;
    int64_t index;
    double budget;
};

struct fm_verify_job {
    struct fm_verifier *v;
    struct fm_verify_claim claim;
    struct fm_export_options options; /* that the export claims; strings are the claim's */
    struct fm_opened opened;          /* its bundle, or the beginning of it */
    struct fm_exportplan plan;
    struct fm_verify_shard *shard; /* (plan.files) */
    const struct fm_tensor **have; /* (plan.tensors): in the shards; NULL: not as planned */
    struct fm_volumes weights;     /* the bundle's, where a width ends inside a segment */
    struct fm_verify_unit *unit;
    int units;
};

/* Read it; FM_EFORMAT where it is not one of ours.  That the rest of it is right is checked with
 * the texts.  Release in every case. */
int fm_verify_claim(struct fm_verify_claim *claim, const struct fm_verifier *v, struct fm_err *err);
void fm_verify_claim_release(struct fm_verify_claim *claim);

/* Call `other` with the name of each entry of the directory, in their order, that is not `known`;
 * what the hub puts there is neither, and is said not to be compared. */
int fm_verify_others(struct fm_verifier *v, bool (*known)(const void *self, const char *name),
                     void (*other)(void *self, const char *name), void *self, struct fm_err *err);

/* Every tensor that is there: its values are those that the bundle has checksums of. */
int fm_verify_weights(struct fm_verify_job *j, struct fm_err *err);

#endif
