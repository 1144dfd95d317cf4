/*
 * Norm blocks: RMSNorm, RMSNorm with weights stored as differences from 1, and LayerNorm with a
 * bias.
 */
#ifndef FM_NORM_H
#define FM_NORM_H

#include "lib/block/block.h"

extern const struct fm_norm fm_rmsnorm, fm_rmsnorm_plus, fm_layernorm;

#endif
