/*
 * How experts are computed, and how their channels are stored in tensors.
 *
 * A bundle has the online layout (kernels/ops/kernels.h): for each of its parts one tensor of all
 * experts of a layer, with a channel's rows adjacent.  Checkpoints have other layouts, which are
 * fully described by the part of each tensor in the family's table (lib/block/weight.h):
 *
 *   - a tensor belongs to one expert if its name has {e}; else it is fused: it has all experts of
 *     the layer, one after another, and E is its first dimension;
 *   - an expert's share of it is one or two cuts, one after another;
 *   - a cut has some rows of every channel of one part of the bundle, as rows or as columns.
 *
 * Reading, packing, exporting and verifying depend only on this description.  A new layout needs a
 * part in weight.h, its cuts in experts.c, and rows in the family that has it.
 */
#ifndef FM_EXPERTS_H
#define FM_EXPERTS_H

#include "lib/block/block.h"

struct fm_expert_cut {
    enum fm_weight_part part; /* the part that consists of only this cut: FM_PART_GATE for the first
                                 cut of FM_PART_GATE_THEN_UP */
    enum fm_weight_part of;   /* the part of the bundle: FM_PART_GATE_UP, DOWN_T or BIAS */
    int first, rows;          /* first row in a channel, and number of rows: 1, or all */
    bool columns;             /* stored as columns of H elements */
};

/* Write the cuts of an expert's share of a tensor of that part; return their number. */
#define FM_EXPERT_CUTS_MAX 2
int fm_expert_cuts(struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX], const struct fm_expert_form *form,
                   enum fm_weight_part part);
/* The cut of a part that has only one. */
struct fm_expert_cut fm_expert_cut(const struct fm_expert_form *form, enum fm_weight_part part);

/* Elements of a channel in the cut. */
uint64_t fm_expert_cut_channel(const struct fm_expert_cut *cut, int H);

/* Number of parts of an expert in a bundle: FM_PART_GATE_UP, then the others in the order of
 * weight.h.  The second function returns the name of a part. */
#define FM_EXPERT_PARTS_MAX 3
int fm_expert_parts(const struct fm_expert_form *form);
const char *fm_expert_part_name(enum fm_weight_part part);

/* Rows of a channel in a part of a bundle, and elements of a row. */
int fm_expert_part_rows(const struct fm_expert_form *form, enum fm_weight_part part);
uint64_t fm_expert_part_row(enum fm_weight_part part, int H);

/* Set the shape of a part of a bundle with I channels per expert: (E, rows I, H) or (E, rows I);
 * return the number of dimensions. */
int fm_expert_part_shape(uint64_t shape[3], const struct fm_config *config,
                         enum fm_weight_part part);

/* z (n, H) = expert(x), x (n, H); gu (n, r width) receives the products of gate_up.  Width 0 is
 * allowed. */
void fm_expert_forward(const struct fm_pass *pass, const struct fm_expert_rows *rows, float *z,
                       float *gu, struct fm_in x);
void fm_expert_backward(const struct fm_pass *pass, const struct fm_expert_rows *rows,
                        const struct fm_expert_back *back);

/* Number of parameters of one channel: without and with the biases of its rows. */
uint64_t fm_expert_channel_weights(const struct fm_expert_form *form, int H);
uint64_t fm_expert_channel_params(const struct fm_expert_form *form, int H);

#endif
