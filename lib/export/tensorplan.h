/*
 * Tensors and files that layouts have in common; private to lib/export.
 */
#ifndef FM_TENSORPLAN_H
#define FM_TENSORPLAN_H

#include "lib/export/exportplan.h"

/* The experts of the m-th layer of experts: flat tensors, gate_up (2 sum k, H) and down (sum k, H),
 * and gate_up_bias (2 sum k) where they have biases. */
int fm_tensorplan_flat(struct fm_exportplan *p, int m, struct fm_err *err);
/* Two tensors with a dimension for the experts, as fused kernels have them: gate_up_proj
 * (E, 2 k, H), gate rows first, and down_proj (E, H, k).  All experts of the layer are k wide. */
int fm_tensorplan_fused(struct fm_exportplan *p, int m, struct fm_err *err);
/* The checkpoint's own tensors of every expert, or of all of the layer. */
int fm_tensorplan_stock(struct fm_exportplan *p, int m, struct fm_err *err);

/* All tensors into files of at most --shard-size, as transformers names them, and their index. */
int fm_tensorplan_shards(struct fm_exportplan *p, struct fm_err *err);

#endif
