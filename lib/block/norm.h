/*
 * Norm blocks: RMSNorm, and LayerNorm with a bias.
 */
#ifndef FM_NORM_H
#define FM_NORM_H

#include "lib/block/block.h"

extern const struct fm_norm fm_rmsnorm, fm_layernorm;

#endif
