/*
 * What may be asked of an export.
 */
#ifndef FM_EXPORTOPTIONS_H
#define FM_EXPORTOPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/export/layouts.h"
#include "lib/export/quantise.h"
#include "lib/model/packed.h"

/* What says which member; of a layout that holds the family, which one to start with. */
enum fm_choice {
    FM_BY_BUDGET, /* the nearest mask, lib/masks/choose.h */
    FM_BY_FIT,    /* the largest member whose export, every file of the directory or the whole of
                     the stream, takes at most that many bytes */
    FM_BY_MASK,   /* its place in the family */
    FM_BY_DEFAULT /* of the family: the widest that it holds */
};

/* Tensor bytes of a shard where nothing else is asked for: 4 GiB. */
#define FM_EXPORT_SHARD_BYTES ((uint64_t)4 << 30)

#define FM_KEEP_CONFIG_MAX 16 /* as many as an option may be given times */

/* Zeroed but for layout and the choice is fine.  layout is that of the list, or its form for vLLM.
 */
struct fm_export_options {
    const struct fm_layout *layout;
    enum fm_choice by;
    double budget;
    bool exact; /* by budget: no other member than one of that budget */
    uint64_t fit;
    int mask;
    enum fm_weights_as weights;          /* of a bundle of codes */
    const struct fm_quantiser *quantise; /* routed experts are rounded to it; NULL: they are not */
    enum fm_server server;               /* with it: whose rules widths follow */
    uint64_t shard_bytes;                /* of sharded layouts; 0: FM_EXPORT_SHARD_BYTES */
    bool load_cap; /* of the family, members with budgets from load_low to load_high alone */
    double load_low, load_high;
    uint32_t pad_multiple; /* widths are rounded up to it, and to that of the training; 0: 1 */
    uint32_t devices;      /* of layouts that servers split by channels: each of so many devices
                              gets a width that the layout and the codes allow; 0: 1 */
    bool means; /* of a layout that drops experts: their constant is their mean output, not 0 */
    bool allow_code; /* the author's code is kept, and what loads it (trust.h) */
    /* Keys of config.json that stay beside our modelling file although the family does not know
     * them (trust.h), NULL behind the last. */
    const char *keep_config[FM_KEEP_CONFIG_MAX + 1];
    bool keep_extra;        /* tensors of no decoder layer come along, where the layout can */
    bool no_check;          /* weights are not held to the bundle's digests as they pass */
    const char *base_model; /* for the model card: "org/name"; NULL: as the checkpoint says */
};

#endif
