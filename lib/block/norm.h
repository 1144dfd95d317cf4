/*
 * Norm blocks: RMSNorm, also with weights that are 1 + what is stored, and LayerNorm with a bias.
 */
#ifndef FM_NORM_H
#define FM_NORM_H

#include "lib/block/block.h"

extern const struct fm_norm fm_rmsnorm, fm_rmsnorm_plus, fm_layernorm;

#endif
