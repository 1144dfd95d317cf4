/*
 * How a bundle stores the experts of a layer: which tensors, and the share of each channel in them.
 *
 * Unquantised experts have one tensor for each part of the online layout (lib/block/experts.h).
 * Codes are stored as in the checkpoint, so each part has one tensor for each plane of the storage
 * (formats/quant/quant.h), and channels come in groups that no block of a plane crosses:
 *
 *     gate_up        (E, r I, bytes of a row of codes)          r rows of a channel, interleaved
 *     gate_up_scale  (E, r I / rows of a block, H / columns of a block)
 *     down           (E, I / G, H, bytes of G codes)
 *     down_scale     (E, I / G, H / rows of a block, G / columns of a block)
 *
 * A member of a family keeps the first groups of each expert in all of these tensors.  A plane
 * without a channel dimension, such as one scale for each row of down or for each matrix, is stored
 * among the tensors outside the experts, as in the checkpoint.
 *
 * All experts of a layer are stored alike; layers can differ.  Many quantised checkpoints leave
 * their first or last layers unquantised, or use two formats.  Widths are then multiples of the
 * groups of all layers.
 *
 * Reordering channels copies items: in gate_up, an item is a row of elements; in down, the elements
 * of a group in one row.
 */
#ifndef FM_PACKED_H
#define FM_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/bundle/bundle.h"
#include "formats/quant/encode.h"
#include "formats/quant/quant.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/block/experts.h"
#include "lib/model/stored.h"
#include "lib/move/move.h"

/* How weights that the checkpoint stores as codes are to be written. */
enum fm_weights_as {
    FM_WEIGHTS_DEFAULT, /* codes if possible */
    FM_WEIGHTS_KEEP,    /* codes, or an error that says why this is not possible */
    FM_WEIGHTS_BF16     /* values */
};

/* A tensor of a layer. */
struct fm_packed_part {
    enum fm_weight_part of; /* FM_PART_GATE_UP, FM_PART_DOWN_T or FM_PART_BIAS */
    int plane;              /* index of the storage's plane; -1: unquantised */
    char name[24];          /* "gate_up", "down_scale" */
    enum fm_dtype dtype;
    int dims;
    uint64_t shape[FM_ST_DIMS_MAX]; /* all channels of all experts */
    int rows;                       /* rows of a channel group that are interleaved: r, or 1 */
    uint64_t items;                 /* items of a channel group in each of these rows */
    size_t item;                    /* bytes of one item */
};

#define FM_PACKED_PARTS_MAX 5

/* Suffixes of a tensor's name for its scales, and for the factor of the scales. */
#define FM_PACKED_SCALE "_scale"
#define FM_PACKED_FACTOR "_factor"

/* The form of a layer. */
struct fm_packed {
    struct fm_scheme scheme; /* storage NULL: unquantised */
    enum fm_dtype scales;    /* dtype of the scales in the checkpoint, if quantised */
    int group;               /* channels stored together; 1 if unquantised */
    int parts;
    struct fm_packed_part part[FM_PACKED_PARTS_MAX];
};

#define FM_PACKED_FORMS_MAX 8

/* The forms of all layers with experts. */
struct fm_packed_layers {
    const struct fm_storage *storage; /* of the first quantised layer, or NULL */
    int group;                        /* common multiple of all forms' groups */
    int forms;
    struct fm_packed form[FM_PACKED_FORMS_MAX];
    int M;
    uint8_t of[FM_LAYERS_MAX]; /* (M): each layer's form */
};

/* The form of the m-th layer with experts. */
static inline const struct fm_packed *fm_packed_at(const struct fm_packed_layers *layers, int m)
{
    return &layers->form[layers->of[m]];
}

/* Make all layers unquantised, with that dtype. */
void fm_packed_plain(struct fm_packed_layers *layers, const struct fm_config *config,
                     enum fm_dtype dtype);

/* Store all layers as codes in the config's storage, whose group divides I, with scales of dtype
 * `scales`; biases have `dtype`. */
void fm_packed_codes(struct fm_packed_layers *layers, const struct fm_config *config,
                     enum fm_dtype dtype, enum fm_dtype scales);

/*
 * Find the forms in which a bundle can keep the experts of a checkpoint: call fm_packed_begin, then
 * fm_packed_see for each tensor of an expert that is not a bias, in order of layers, and at the end
 * fm_packed_any.  False, with the reason in `why`, if one of them cannot be kept, or no expert is
 * stored as codes.
 */
#define FM_PACKED_WHY 192
void fm_packed_begin(struct fm_packed_layers *layers);
bool fm_packed_see(struct fm_packed_layers *layers, const struct fm_config *config,
                   enum fm_dtype dtype, int m, const struct fm_stored *at, char why[FM_PACKED_WHY]);
bool fm_packed_any(const struct fm_packed_layers *layers, const struct fm_config *config,
                   char why[FM_PACKED_WHY]);

/* Whether two layers of a model have the same form. */
bool fm_packed_equal(const struct fm_packed *a, const struct fm_packed *b);

/* Whether at least one layer of the bundle has its experts stored as codes. */
bool fm_packed_in(const struct fm_bundle *bundle);

/* The forms of an open bundle, from its manifest; FM_EFORMAT if it contradicts config.json.  A
 * stage stream counts as unquantised. */
int fm_packed_read(struct fm_packed_layers *layers, const struct fm_bundle *bundle,
                   const struct fm_config *config, struct fm_err *err);

/* The name of a tensor of scales in an export whose config.json names a storage. */
void fm_packed_name_scales(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                           enum fm_naming naming);

/* The forms of an export whose config.json names a storage, with scales of that dtype; FM_EFORMAT
 * if this is not possible. */
int fm_packed_of(struct fm_packed_layers *layers, const struct fm_config *config,
                 enum fm_dtype scales, struct fm_err *err);

/* A part as exports store it: the experts' channels, `channels` in total, are concatenated in one
 * dimension. */
struct fm_packed_part fm_packed_flat(const struct fm_packed *packed,
                                     const struct fm_packed_part *part, uint64_t channels);

/* Write the forms to the manifest's "model"; nothing if all are unquantised. */
void fm_packed_json(cJSON *model, const struct fm_packed_layers *layers);

/* FM_EFORMAT unless a tensor has the type and shape of a part. */
int fm_packed_check(const struct fm_packed_part *part, const struct fm_tensor *tensor,
                    struct fm_err *err);

/* The tensor of plane `plane` of part `of`, or NULL. */
const struct fm_packed_part *fm_packed_find(const struct fm_packed *packed, enum fm_weight_part of,
                                            int plane);

/* Scales of an expert's part that belong to no channel: one for each row of down, or one for each
 * of its matrices; 0 if the part has a plane of scales. */
uint64_t fm_packed_scales_apart(const struct fm_packed *packed, const struct fm_config *config,
                                enum fm_weight_part of);

/* The matrix of row i of the channels of a part: gate, up or down. */
static inline enum fm_weight_part fm_packed_matrix(enum fm_weight_part of, int i)
{
    return of == FM_PART_DOWN_T ? FM_PART_DOWN : i == 0 ? FM_PART_GATE : FM_PART_UP;
}

/* Bytes of a channel group of one expert. */
static inline size_t fm_packed_group_bytes(const struct fm_packed_part *part)
{
    return (size_t)part->rows * (size_t)part->items * part->item;
}

/* Bytes of `channels` channels, which are whole groups. */
static inline uint64_t fm_packed_bytes(const struct fm_packed *packed,
                                       const struct fm_packed_part *part, uint64_t channels)
{
    return channels / (uint64_t)packed->group * fm_packed_group_bytes(part);
}

/* Bytes of a channel group in all tensors that have channels. */
uint64_t fm_packed_all_bytes(const struct fm_packed *packed);

/*
 * The forms (lib/move/move.h) of an expert's channels.  A file of a checkpoint or an export has a
 * cut of a part (lib/block/experts.h), in the values of the model or in a plane of codes.  The
 * items of a cut are the same there and in the bundle, so its two forms differ only in their
 * strides: fm_move takes items from either place to the other.  Several cuts, such as those of gate
 * and up, fill the rows of one part.
 */
struct fm_packed_forms {
    struct fm_box box; /* the channels of the cut */
    struct fm_form part, file;
    size_t part_first;     /* in the part: offset of the cut's first row in a group */
    size_t part_group;     /* in the part: bytes of a channel group, with rows of all cuts */
    size_t file_bytes;     /* in the file: bytes of the whole cut, with `stored` channels */
    struct fm_box padding; /* the channels in the file after those of the cut */
    size_t file_padding;   /* in the file: offset of the padding */
};

/* Whether a file can have the cut in that plane of the layer's codes; -1, the values: always.  Not
 * if the part has no such plane, nor if codes of gate and up were columns of one matrix. */
bool fm_packed_has(const struct fm_packed *packed, int plane, const struct fm_expert_cut *cut);

/*
 * The forms of the first `channels` channels of a cut that has `stored` channels in the file.
 * `plane` is a plane of the layer's codes, and both numbers are whole channel groups; or -1: the
 * values, as `dtype`, in groups of one channel.
 */
struct fm_packed_forms fm_packed_forms(const struct fm_config *config,
                                       const struct fm_packed *packed, int plane,
                                       enum fm_dtype dtype, const struct fm_expert_cut *cut,
                                       uint64_t channels, uint64_t stored);

/*
 * Channels of one part of an expert, in the bundle's form: their values, or the planes of their
 * codes and what belongs to no channel.
 */
struct fm_channels {
    const struct fm_config *config;
    enum fm_weight_part of;
    uint64_t count;                 /* of codes: whole groups */
    const struct fm_packed *packed; /* the form of the codes; NULL, or without codes: values */
    enum fm_dtype dtype;            /* of values */
    /* Values, or codes and scales.  Scales without channels are those of the whole expert,
     * one matrix after another. */
    const void *plane[FM_PLANES];
    float factor[2]; /* of the scales of each row of a channel */
};

/* An expert of a source of codes. */
struct fm_packed_expert {
    enum fm_naming naming; /* FM_NAMING_RAGGED: an export with our modelling file */
    int l, e;
    fm_stored_find *find; /* in the source */
    /* NULL, or compares bytes of a tensor of the source with its digest. */
    int (*check)(const void *in, const char *name, const void *bytes, size_t size,
                 struct fm_err *err);
    const void *in;
    const char *path; /* of the source, for errors */
};

/* Read what belongs to no channel of a part of codes: its factors, 1 by default, and scales that
 * have no channels.  FM_EFORMAT, naming the tensor, if it is missing or a factor is not positive
 * and finite. */
int fm_packed_read_apart(struct fm_channels *c, const struct fm_packed_expert *x,
                         struct fm_err *err);

/*
 * Decode codes to values, rounded once to c->dtype.  Then, if `round` is not NULL and `to` has the
 * part as codes, round the values to that format; false if one is NaN or Inf.  The result is in
 * scratch.
 */
bool fm_packed_convert(struct fm_channels *c, const struct fm_packed *to,
                       const struct fm_quantiser *round);

/* The first `kept` channels of the part's cut `part` in a plane, or of its values (-1), as a file
 * has them that has `stored` channels, of which the others have the byte `blank`; in scratch unless
 * the bytes are the same. */
const void *fm_packed_cut(const struct fm_channels *c, enum fm_weight_part part, int plane,
                          uint64_t kept, uint64_t stored, int blank);

/* Whether the cut has the same bytes in both places. */
static inline bool fm_packed_same(const struct fm_packed_forms *f)
{
    return f->part_first == 0 && f->part.group == f->file.group && f->part.row == f->file.row &&
           f->part.item == f->file.item;
}

#endif
