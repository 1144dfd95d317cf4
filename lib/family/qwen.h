/*
 * What Qwen's families and those after their pattern share: which layers have experts, and the
 * names of tensors.
 */
#ifndef FM_QWEN_H
#define FM_QWEN_H

#include "lib/block/mlp.h"
#include "lib/block/router.h"
#include "lib/block/swiglu.h"
#include "lib/family/decoder.h"

/* decoder_sparse_step and mlp_only_layers; intermediate_size where some layers are dense. */
int fm_qwen_layers(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);

/* The same, and a shared expert with a share of its own: shared_expert_intermediate_size. */
int fm_qwen_shared_layers(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);

#define FM_QWEN_MOE_WEIGHTS                                                                        \
    FM_ROUTER_WEIGHT(FM_MLP "gate.weight", FM_MLP "gate.weight"),                                  \
        FM_SWIGLU_WEIGHTS(FM_MLP, "gate_proj", "up_proj", "down_proj")

#endif
