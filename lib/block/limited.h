/*
 * Expert form "swiglu-limited", Step's: in some layers both factors of SwiGLU are clamped,
 *
 *     h = min(silu(gate x), limit) * clamp(up x, -limit, limit)
 *
 * with limits for each layer in config.json: swiglu_limits for experts, swiglu_limits_shared for
 * the MLP that all tokens go through.  0 and null mean no limit.  A channel with zero weights
 * contributes nothing, as in "swiglu".
 *
 * Source: transformers' models/step3p7/modeling_step3p7.py (Step3p7Experts, Step3p7MLP).
 */
#ifndef FM_LIMITED_H
#define FM_LIMITED_H

#include "lib/block/block.h"

extern const struct fm_expert_form fm_swiglu_limited;

/* Limits of each layer; 0: none. */
struct fm_limits {
    float expert[FM_LAYERS_MAX], mlp[FM_LAYERS_MAX];
};

#endif
