/*
 * A family that is open to be exported, listed or compared with an export: the bundle or stage
 * stream, the model that it is of, its members, and which tensors it has.  No weight is read.
 */
#ifndef FM_OPENED_H
#define FM_OPENED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/bundle/bundle.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/model/model.h"
#include "lib/stage/budgets.h"
#include "lib/stage/segments.h"
#include "lib/stage/volumes.h"

/* A tensor outside the experts, under the checkpoint's name. */
struct fm_opened_tensor {
    struct fm_tensor t;             /* name borrowed; offset absolute in the bundle */
    const struct fm_digest *digest; /* NULL: checksums were not asked for */
    bool extra;                     /* it is of no decoder layer */
};

struct fm_opened {
    struct fm_bundle bundle;
    char *config_text; /* config.json of the checkpoint */
    size_t config_bytes;
    struct fm_config config;
    enum fm_dtype dtype;       /* of expert weights */
    struct fm_packed packed;   /* the tensors of a layer in the bundle */
    struct fm_budgets budgets; /* the members */
    char license[512]; /* of the checkpoint's own card, as lines of front matter; "": none */
    char name[128];    /* org/name of the checkpoint on the hub; "": unknown */
    struct fm_volumes volumes;     /* FM_OPENED_WEIGHTS */
    struct fm_segments seg;        /* FM_OPENED_CHECKSUMS */
    struct fm_opened_tensor *rest; /* with either of them; sorted by name */
    size_t rests;
    struct fm_extra extra; /* those of rest that are of no decoder layer */
};

/* What is wanted beside the members. */
enum fm_opened_needs {
    FM_OPENED_WEIGHTS = 1 << 0,  /* where they lie: only a whole bundle has them */
    FM_OPENED_CHECKSUMS = 1 << 1 /* of segments */
};

/* Open a bundle or, where no weights are needed, the beginning of one; "-" is standard input.
 * FM_EFORMAT for one that is broken.  Release in every case. */
int fm_opened_open(struct fm_opened *o, const char *path, unsigned needs, struct fm_err *err);
/* The same where o->bundle is open already, and all else zero. */
int fm_opened_read(struct fm_opened *o, unsigned needs, struct fm_err *err);
void fm_opened_release(struct fm_opened *o); /* zeroed struct is fine */

/* The tensor outside the experts of that name in the bundle, or NULL. */
const struct fm_opened_tensor *fm_opened_find(const struct fm_opened *o, const char *name);

/* Experts of the model, of all layers together. */
size_t fm_opened_experts(const struct fm_opened *o);
/* Bytes of one channel of a part in files, one that is one cut (lib/block/experts.h). */
uint64_t fm_opened_channel_bytes(const struct fm_opened *o, enum fm_weight_part part);
/* Bytes of a channel of an expert: its rows of gate, up and down, and their biases. */
uint64_t fm_opened_channel_weights(const struct fm_opened *o);

#endif
