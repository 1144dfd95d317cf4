/*
 * The tensors of an export: those of experts, which a layout chooses, and all others.
 */
#ifndef FM_TENSORS_H
#define FM_TENSORS_H

#include "lib/export/planned.h"

/*
 * The experts of the m-th layer of experts: flat tensors, gate_up (2 sum k, H) and down (sum k, H),
 * and gate_up_bias (2 sum k) if they have biases.  Codes and their scales, gate_up_scale and
 * down_scale, are in the order of the bundle (lib/model/packed.h).  With FM_CODED_EXPERTS, scales
 * that belong to no channel are down_scale (E, H), and factors of scales are gate_up_factor (E, 2)
 * and down_factor (E, 1).
 */
int fm_tensors_flat(struct fm_exportplan *p, int m, struct fm_err *err);
/* Add the tensor `t` of all experts of the m-th layer, with the name of the part `named` and a
 * suffix: fm_planned_add_experts. */
int fm_tensors_add_flat(struct fm_exportplan *p, int m, struct fm_tensor *t,
                        enum fm_weight_part named, const char *suffix, enum fm_weight_part part,
                        int plane, struct fm_err *err);
/* The checkpoint's own tensors of every expert, or of the whole layer. */
int fm_tensors_stock(struct fm_exportplan *p, int m, struct fm_err *err);
/* All tensors outside the experts, under the names of the layout. */
int fm_tensors_rest(struct fm_exportplan *p, struct fm_err *err);

#endif
