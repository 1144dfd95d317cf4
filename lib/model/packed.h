/*
 * How a bundle has the experts of a layer: which tensors, and what each has of a channel.
 *
 * Plain numbers have one tensor for each part of the online layout (lib/block/experts.h).  Codes
 * are kept as the checkpoint has them, so each part of them has one for each plane of the storage
 * (lib/block/storage.h), and channels come in groups that the blocks of no plane cut:
 *
 *     gate_up        (E, r I, bytes of a row of codes)          r rows of a channel, interleaved
 *     gate_up_scale  (E, r I / rows of a block, H / columns of a block)
 *     down           (E, I / G, H, bytes of G codes)
 *     down_scale     (E, I / G, H / rows of a block, G / columns of a block)
 *
 * A member keeps the first groups of each expert in all of them.  A plane that has no channels
 * there, a scale for each row of down, is among the tensors that are no experts'.
 *
 * Moving channels moves items: a row of elements of gate_up; of down, what one row of elements has
 * of a group.
 */
#ifndef FM_PACKED_H
#define FM_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/bundle/bundle.h"
#include "formats/tensor/safetensors.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/block/experts.h"
#include "lib/block/storage.h"

/* What is asked for of weights that the checkpoint stores as codes. */
enum fm_weights_as {
    FM_WEIGHTS_DEFAULT, /* codes where they can be */
    FM_WEIGHTS_KEEP,    /* codes, or an error that says why they cannot be */
    FM_WEIGHTS_BF16     /* their values */
};

/* A tensor of a layer. */
struct fm_packed_part {
    enum fm_weight_part of; /* FM_PART_GATE_UP, FM_PART_DOWN_T or FM_PART_BIAS */
    int plane;              /* of the storage; -1: plain numbers */
    char name[24];          /* "gate_up", "down_scale" */
    enum fm_dtype dtype;
    int dims;
    uint64_t shape[FM_ST_DIMS_MAX]; /* all channels of all experts */
    int rows;                       /* items of a channel group that lie interleaved: r, or 1 */
    uint64_t items;                 /* of a channel group, for each of these */
    size_t item;                    /* bytes of one */
};

#define FM_PACKED_PARTS_MAX 5

/* In flat exports, after a tensor's name: its scales, and what these are multiplied by. */
#define FM_PACKED_SCALE "_scale"
#define FM_PACKED_FACTOR "_factor"

struct fm_packed {
    const struct fm_storage *storage; /* NULL: plain numbers */
    enum fm_dtype scales;             /* with it: of their tensors in the checkpoint */
    int group;                        /* channels that lie together; 1: plain numbers */
    int parts;
    struct fm_packed_part part[FM_PACKED_PARTS_MAX];
};

/* The tensors of a layer of plain numbers of that type. */
void fm_packed_plain(struct fm_packed *packed, const struct fm_config *config, enum fm_dtype dtype);

/* The same of codes of the config's storage, whose group divides I, with scales of that type;
 * biases are of `dtype`. */
void fm_packed_codes(struct fm_packed *packed, const struct fm_config *config, enum fm_dtype dtype,
                     enum fm_dtype scales);

/* Can codes of the config's storage stay what they are where channels leave in groups of that size?
 * Also false for plain weights. */
bool fm_packed_can_keep(const struct fm_config *config, int group);

/* Does the bundle say that experts are codes? */
bool fm_packed_in(const struct fm_bundle *bundle);

/* Those of an open bundle, by its manifest; FM_EFORMAT where that says what config.json or the
 * ranking's channel group contradicts.  Of a stage stream: plain numbers. */
int fm_packed_read(struct fm_packed *packed, const struct fm_bundle *bundle,
                   const struct fm_config *config, struct fm_err *err);

/* Those of an export whose config.json has a storage, with scales of that type; FM_EFORMAT where
 * that cannot be. */
int fm_packed_of(struct fm_packed *packed, const struct fm_config *config, enum fm_dtype scales,
                 struct fm_err *err);

/* A part as exports have it: experts of `channels` channels in all, one after another, in the place
 * of two dimensions. */
struct fm_packed_part fm_packed_flat(const struct fm_packed *packed,
                                     const struct fm_packed_part *part, uint64_t channels);

/* To the manifest's "model"; nothing where they are plain numbers. */
void fm_packed_json(cJSON *model, const struct fm_packed *packed);

/* FM_EFORMAT unless a tensor has the type and shape of a part. */
int fm_packed_check(const struct fm_packed_part *part, const struct fm_tensor *tensor,
                    struct fm_err *err);

/* Of a part with one plane; NULL: there is no such tensor. */
const struct fm_packed_part *fm_packed_find(const struct fm_packed *packed, enum fm_weight_part of,
                                            int plane);

/* Bytes of a channel group of one expert. */
static inline size_t fm_packed_group_bytes(const struct fm_packed_part *part)
{
    return (size_t)part->rows * (size_t)part->items * part->item;
}

/* Of `channels` channels, whole groups. */
static inline uint64_t fm_packed_bytes(const struct fm_packed *packed,
                                       const struct fm_packed_part *part, uint64_t channels)
{
    return channels / (uint64_t)packed->group * fm_packed_group_bytes(part);
}

/*
 * Values of `channels` channels, whole groups, of a part of an expert that is codes: rows of the
 * online layout, rounded once to `dtype`.  `codes` and `scales` are what the tensors of the part
 * have of these channels; where no tensor has scales of channels, all of the expert's scales.
 * `factor` has what scales of each row of a channel are multiplied or divided by.
 */
void fm_packed_values(void *rows, enum fm_dtype dtype, const struct fm_packed *packed,
                      const struct fm_config *config, enum fm_weight_part of, uint64_t channels,
                      const void *codes, const void *scales, const float *factor);

/* Of a channel in all tensors that have one, times the group: the bytes of a channel group. */
uint64_t fm_packed_all_bytes(const struct fm_packed *packed);

#endif
