/*
 * The forms (lib/move/move.h) of an expert's channels: in a bundle, and in the files of a
 * checkpoint or an export.
 *
 * A file has a cut of a part (lib/block/experts.h), in the values of the model or in a plane of
 * codes (lib/model/packed.h).  The items of a cut are the same in both places, so the two forms of
 * a cut differ only in their strides: fm_move takes items from either place to the other.  Several
 * cuts, such as those of gate and up, fill the rows of one part.
 */
#ifndef FM_FORMS_H
#define FM_FORMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/quant/encode.h"
#include "lib/block/experts.h"
#include "lib/model/packed.h"
#include "lib/move/move.h"

struct fm_forms {
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
bool fm_forms_has(const struct fm_packed *packed, int plane, const struct fm_expert_cut *cut);

/*
 * The forms of the first `channels` channels of a cut that has `stored` channels in the file.
 * `plane` is a plane of the layer's codes, and both numbers are whole channel groups; or -1: the
 * values, as `dtype`, in groups of one channel.
 */
struct fm_forms fm_forms_of(const struct fm_config *config, const struct fm_packed *packed,
                            int plane, enum fm_dtype dtype, const struct fm_expert_cut *cut,
                            uint64_t channels, uint64_t stored);

/* The rows (rows of a channel x channels, H) of an expert's part of a bundle; and a cut of them, as
 * in a file: in scratch if it has channels as columns, else in the part. */
struct fm_quantise_matrix fm_forms_rows(const struct fm_config *config, enum fm_weight_part of,
                                        const void *part, enum fm_dtype dtype, uint64_t channels);
struct fm_quantise_matrix fm_forms_matrix(const struct fm_config *config,
                                          const struct fm_expert_cut *cut,
                                          const struct fm_quantise_matrix *part);

/*
 * Decode `channels` channels (whole groups) of one part of an expert that a bundle stores as codes,
 * to rows of the part, rounded once to `dtype`.  `codes` and `scales` are the bytes of these
 * channels in the tensors of the part; if scales have no channels, `scales` are all scales of the
 * expert.  `factor` multiplies or divides the scales of each row of a channel.
 */
void fm_forms_values(void *rows, enum fm_dtype dtype, const struct fm_packed *packed,
                     const struct fm_config *config, enum fm_weight_part of, uint64_t channels,
                     const void *codes, const void *scales, const float *factor);

/* Whether the cut has the same bytes in both places. */
static inline bool fm_forms_same(const struct fm_forms *f)
{
    return f->part_first == 0 && f->part.group == f->file.group && f->part.row == f->file.row &&
           f->part.item == f->file.item;
}

#endif
