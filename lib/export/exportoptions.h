/*
 * Options of an export.
 */
#ifndef FM_EXPORTOPTIONS_H
#define FM_EXPORTOPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/quant/encode.h"
#include "lib/export/layouts.h"
#include "lib/model/packed.h"

/* How the member is selected; for a layout that holds the family, the default member. */
enum fm_choice {
    FM_BY_BUDGET, /* the nearest mask, lib/masks/masks.h, fm_masks_choose */
    FM_BY_FIT,    /* the largest member whose export (every file of the directory, or the whole
                     stream) has at most `fit` bytes */
    FM_BY_DEFAULT /* only for a layout that holds the family: its widest member */
};

/* Default for the tensor bytes of a shard: 4 GiB. */
#define FM_EXPORT_SHARD_BYTES ((uint64_t)4 << 30)

#define FM_EXPORT_DEVICES_MAX 64
#define FM_KEEP_CONFIG_MAX 16 /* limit on the uses of --keep-config */

/* Zero is a valid default for all fields except `layout` and the choice of the member.  `layout` is
 * one of fm_layouts, or the form of one for a server. */
struct fm_export_options {
    const struct fm_layout *layout;
    enum fm_choice by;
    double budget;
    uint64_t fit;
    enum fm_weights_as weights;          /* of a bundle of codes */
    const struct fm_quantiser *quantise; /* round routed experts to it; NULL: do not round */
    enum fm_server server; /* with quantise: the program whose rules for widths apply */
    uint64_t shard_bytes;  /* of sharded layouts; 0: FM_EXPORT_SHARD_BYTES */
    bool load_cap;         /* with a layout that holds the family: only members with budgets from
                              load_low to load_high */
    double load_low, load_high;
    uint32_t pad_multiple; /* round widths up to a multiple of it; 0: 1 */
    uint32_t devices;      /* number of devices among which a server divides the channels of each
                              expert, for layouts where servers do that: each device's part of a
                              width must be valid for the layout and the codes, at most
                              FM_EXPORT_DEVICES_MAX; 0: 1 */
    bool allow_code;       /* keep the author's code and the keys that load it (trust.h) */
    /* Keys of config.json to keep next to our modelling file although the family does not define
     * them (trust.h); ends with NULL. */
    const char *keep_config[FM_KEEP_CONFIG_MAX + 1];
    bool keep_extra;        /* keep extra tensors */
    bool no_check;          /* do not compare weights with the bundle's digests */
    const char *base_model; /* for the model card: "org/name"; NULL: the checkpoint's */
};

#endif
