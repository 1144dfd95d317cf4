/*
 * A family that was opened in order to export it, list it, or compare it with an export: the bundle
 * or stage stream, its model, its members, and its tensors.  No weight is read.
 */
#ifndef FM_OPENED_H
#define FM_OPENED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/bundle/bundle.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/model/checkpoint.h"
#include "lib/stage/budgets.h"
#include "lib/stage/volumes.h"

/* A tensor outside the experts, under the checkpoint's name. */
struct fm_opened_tensor {
    struct fm_tensor t;             /* name borrowed; offset absolute in the bundle */
    struct fm_stored at;            /* what it is; at.tensor is &t */
    const struct fm_digest *digest; /* NULL if checksums were not requested */
    bool extra;                     /* it is an extra tensor */
};

struct fm_opened {
    bool foreseen; /* there is no bundle yet (fm_opened_foresee): bytes cannot be read */
    struct fm_bundle bundle;
    char *config_text; /* config.json of the checkpoint */
    size_t config_bytes;
    struct fm_config config;
    enum fm_dtype dtype;            /* of expert weights */
    struct fm_packed_layers packed; /* how the bundle stores the experts of each layer */
    char stored[FM_STORAGE_NAMES];  /* names of the storages of codes; "": unquantised */
    struct fm_budgets budgets;      /* the members */
    char license[512]; /* of the checkpoint's own card, as lines of front matter; "" if it has
                          none */
    char name[128];    /* org/name of the checkpoint on the hub; "" if unknown */
    struct fm_volumes volumes;     /* FM_OPENED_WEIGHTS */
    struct fm_segments seg;        /* FM_OPENED_CHECKSUMS */
    struct fm_opened_tensor *rest; /* with either of them; sorted by name */
    size_t rests;
    struct fm_extra extra; /* counts of the extra tensors in rest */
};

/* What to read in addition to the members. */
enum fm_opened_needs {
    FM_OPENED_WEIGHTS = 1 << 0,  /* the places of weights, which only a whole bundle has */
    FM_OPENED_CHECKSUMS = 1 << 1 /* the checksums of segments */
};

/* Open a bundle or, if no weights are needed, the beginning of one; "-" is standard input.
 * FM_EFORMAT if it is broken.  Release it even after a failure. */
int fm_opened_open(struct fm_opened *o, const char *path, unsigned needs, struct fm_err *err);
/* As fm_opened_open, if o->bundle is already open, and all other fields are zero. */
int fm_opened_read(struct fm_opened *o, unsigned needs, struct fm_err *err);
void fm_opened_release(struct fm_opened *o); /* zeroed struct is fine */

/*
 * The forecast of an export before there is a bundle: a checkpoint that is opened as if it were one
 * of a family of uniform masks.  Options that do not suit the model are refused as for the bundle.
 * Sizes of files are those of an export of such a mask, without the texts; those of a mask with
 * unequal widths and the same budget differ by less than a channel for each expert, unless the
 * layout has one width for several experts.
 *
 * No weight is read, and o->foreseen is set.  Borrows cp.  Release both even after a failure.
 */
int fm_opened_foresee(struct fm_opened *o, struct fm_checkpoint *cp, const char *path,
                      enum fm_weights_as weights, struct fm_err *err);

/* The tensor outside the experts with that name in the bundle, or NULL. */
const struct fm_opened_tensor *fm_opened_find(const struct fm_opened *o, const char *name);
const struct fm_stored *fm_opened_stored(const void *o, const char *name); /* fm_stored_find */

/* Number of experts of the model, in all layers. */
size_t fm_opened_experts(const struct fm_opened *o);
/* Bytes of a channel of an expert: its rows of gate, up and down, and their biases. */
uint64_t fm_opened_channel_weights(const struct fm_opened *o);

#endif
