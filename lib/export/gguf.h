/*
 * Does llama.cpp compute the same function from a checkpoint under stock names?  Its converter
 * takes some keys of config.json and its graphs have the rest built in, so a model whose config
 * says otherwise would convert and run as another one, or not convert.  As of the llama.cpp in
 * llama-cpp-python 0.3.36:
 *
 *   PhiMoE                      another norm and another router
 *   Qwen with dense layers      no tensors for them: "Can not map tensor"
 *   norm_topk_prob              true for Mixtral and Qwen3-MoE, false for Qwen2-MoE and OLMoE,
 *                               whatever config.json says
 *   clip_qkv (OLMoE), sliding_window (Mixtral)      not converted
 *   OLMoE's rms_norm_eps        1e-5
 *   OLMoE's norm of keys        as wide as the hidden state: as many key heads as query heads
 */
#ifndef FM_GGUF_H
#define FM_GGUF_H

#include <stdbool.h>

#include "lib/model/model.h"

bool fm_gguf_same(const struct fm_config *config);

#endif
