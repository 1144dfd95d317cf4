/*
 * How the channels of experts lie in tensors.
 *
 * A bundle has one way, the online layout (kernels/ops/kernels.h): for each of its parts one tensor
 * of all experts of a layer, a channel's rows beside each other.  A checkpoint has its own way, and
 * the part that a family's table gives a tensor (lib/block/weight.h) says all of it:
 *
 *   - a tensor is one expert's where its name has {e}; else all experts of the layer lie in it one
 *     after another, and E is its first dimension: it is fused;
 *   - an expert's share of it is one or two cuts, one after another;
 *   - a cut has some rows of every channel of one part of the bundle, as rows or as columns.
 *
 * Reading, packing, exporting and verifying follow this and know no storage by its name: another
 * one is a part in weight.h, its cuts in experts.c, and the rows of the family that has it.
 */
#ifndef FM_EXPERTS_H
#define FM_EXPERTS_H

#include "lib/block/block.h"

struct fm_expert_cut {
    enum fm_weight_part part; /* which it is: a part with one cut, itself */
    enum fm_weight_part of;   /* the part of the bundle: FM_PART_GATE_UP, DOWN_T or BIAS */
    int first, rows;          /* which rows of a channel, and how many: 1, or all */
    bool columns;             /* they are columns of H elements */
};

/* The cuts of an expert's share of a tensor of that part; how many. */
#define FM_EXPERT_CUTS_MAX 2
int fm_expert_cuts(struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX], const struct fm_expert_form *form,
                   enum fm_weight_part part);
/* Of a part that has one. */
struct fm_expert_cut fm_expert_cut(const struct fm_expert_form *form, enum fm_weight_part part);

/* Has it all rows of its part, in their order, so that any number of channels is one range? */
bool fm_expert_cut_is_range(const struct fm_expert_form *form, const struct fm_expert_cut *cut);

/* Elements of a channel in it. */
uint64_t fm_expert_cut_channel(const struct fm_expert_cut *cut, int H);

/* An expert's parts in a bundle, FM_PART_GATE_UP first and then as weight.h lists them: how many,
 * and the name of one. */
#define FM_EXPERT_PARTS_MAX 3
int fm_expert_parts(const struct fm_expert_form *form);
const char *fm_expert_part_name(enum fm_weight_part part);

/* Rows of a channel in a part of a bundle, and elements of a row. */
int fm_expert_part_rows(const struct fm_expert_form *form, enum fm_weight_part part);
uint64_t fm_expert_part_row(enum fm_weight_part part, int H);

/* Shape of a part of a bundle with I channels of each expert, (E, rows I, H) or (E, rows I); its
 * dimensions. */
int fm_expert_part_shape(uint64_t shape[3], const struct fm_config *config,
                         enum fm_weight_part part);

/* Parameters of one channel: weights, and with them the biases that go with it. */
uint64_t fm_expert_channel_weights(const struct fm_expert_form *form, int H);
uint64_t fm_expert_channel_params(const struct fm_expert_form *form, int H);

#endif
