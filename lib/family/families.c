/*
 * The families of models.
 *
 * To add one:
 *  1. a table of its tensors here.  DECODER has the rows that all share; rows that only some
 *     models or layers have say when (enum fm_weight_when).  A stock name is the one on disk, an
 *     online name equals it for what is no expert, a ragged name is that of transformers 5 in
 *     memory.  Reading, packing, exporting and counting parameters follow from the table;
 *  2. a row in `families`: keys and defaults of config.json, and the variants of the engine it
 *     uses.  A key that no other family has is read in lib/family/parse.c;
 *  3. where it computes what no other family does: an operation in kernels/ (definition, fast
 *     entry, a line in kernels.h and in lib/bench/meter.c), and its place in lib/engine/layer.c
 * (experts, routers), lib/engine/attend.c (norms, attention) or lib/engine/head.c;
 *  4. its classes in formats/runtime/modeling_fm.py, a small model and its goldens in golden/, a
 * line in the list of tests/unit/models.h. What is pruned is always the same: channels of routed
 * experts.  Routers, shared experts, dense layers, norms and biases are read, computed with, and
 * carried byte for byte.
 */
#include "lib/family/family.h"

#include <stdio.h>
#include <string.h>

#define ENDS(f) FM_PART_ENDS, offsetof(struct fm_ends, f)
#define LAYER(f) FM_PART_LAYER, offsetof(struct fm_layer, f)
#define ATTENTION "model.layers.{l}.self_attn."
#define MIXTRAL "model.layers.{l}.block_sparse_moe."
#define MLP "model.layers.{l}.mlp."
/* Names that are the same everywhere, and those of a checkpoint alone. */
#define SAME(n)                                                                                    \
    {                                                                                              \
        n, n, n                                                                                    \
    }
#define STOCK(n)                                                                                   \
    {                                                                                              \
        n, NULL, NULL                                                                              \
    }

/* clang-format off */
#define DECODER                                                                                    \
    {SAME("model.embed_tokens.weight"), ENDS(embed), "VH", FM_ALWAYS},                             \
    {SAME("model.norm.weight"), ENDS(norm), "H", FM_ALWAYS},                                       \
    {SAME("model.norm.bias"), ENDS(norm_bias), "H", FM_NORM_BIAS},                                 \
    {SAME("lm_head.weight"), ENDS(head), "VH", FM_UNTIED},                                         \
    {SAME("lm_head.bias"), ENDS(head_bias), "V", FM_HEAD_BIAS},                                    \
    {SAME("model.layers.{l}.input_layernorm.weight"), LAYER(input_norm), "H", FM_ALWAYS},          \
    {SAME("model.layers.{l}.input_layernorm.bias"), LAYER(input_norm_bias), "H", FM_NORM_BIAS},    \
    {SAME(ATTENTION "q_proj.weight"), LAYER(q), "qH", FM_ALWAYS},                                  \
    {SAME(ATTENTION "q_proj.bias"), LAYER(q_bias), "q", FM_QKV_BIAS},                              \
    {SAME(ATTENTION "k_proj.weight"), LAYER(k), "gH", FM_ALWAYS},                                  \
    {SAME(ATTENTION "k_proj.bias"), LAYER(k_bias), "g", FM_QKV_BIAS},                              \
    {SAME(ATTENTION "v_proj.weight"), LAYER(v), "gH", FM_ALWAYS},                                  \
    {SAME(ATTENTION "v_proj.bias"), LAYER(v_bias), "g", FM_QKV_BIAS},                              \
    {SAME(ATTENTION "o_proj.weight"), LAYER(o), "Hq", FM_ALWAYS},                                  \
    {SAME(ATTENTION "o_proj.bias"), LAYER(o_bias), "H", FM_O_BIAS},                                \
    {SAME(ATTENTION "q_norm.weight"), LAYER(q_norm), "a", FM_QK_NORM},                             \
    {SAME(ATTENTION "k_norm.weight"), LAYER(k_norm), "b", FM_QK_NORM},                             \
    {SAME("model.layers.{l}.post_attention_layernorm.weight"), LAYER(post_norm), "H", FM_ALWAYS},  \
    {SAME("model.layers.{l}.post_attention_layernorm.bias"), LAYER(post_norm_bias), "H",           \
     FM_NORM_BIAS}
#define ONLINE_EXPERTS                                                                             \
    {{NULL, "layers.{l}.gate_up", MLP "experts.gate_up"}, FM_PART_GATE_UP, 0, "SH", FM_MOE},       \
    {{NULL, "layers.{l}.down", MLP "experts.down"}, FM_PART_DOWN_T, 0, "sH", FM_MOE}
#define END {{NULL}, FM_PART_ENDS, 0, "", FM_ALWAYS}

#define MIXTRAL_EXPERTS                                                                            \
    {STOCK(MIXTRAL "experts.{e}.w1.weight"), FM_PART_GATE, 0, "IH", FM_MOE},                       \
    {STOCK(MIXTRAL "experts.{e}.w3.weight"), FM_PART_UP, 0, "IH", FM_MOE},                         \
    {STOCK(MIXTRAL "experts.{e}.w2.weight"), FM_PART_DOWN, 0, "HI", FM_MOE},                       \
    ONLINE_EXPERTS

static const struct fm_weight mixtral_weights[] = {
    DECODER,
    {{MIXTRAL "gate.weight", MIXTRAL "gate.weight", MLP "gate.weight"}, LAYER(router), "EH",
     FM_MOE},
    MIXTRAL_EXPERTS,
    END,
};

/* Qwen2-MoE, Qwen3-MoE and OLMoE: what one of them lacks its config switches off. */
static const struct fm_weight qwen_weights[] = {
    DECODER,
    {SAME(MLP "gate_proj.weight"), FM_PART_MLP_GATE, 0, "DH", FM_DENSE},
    {SAME(MLP "up_proj.weight"), FM_PART_MLP_UP, 0, "DH", FM_DENSE},
    {SAME(MLP "down_proj.weight"), FM_PART_MLP_DOWN, 0, "HD", FM_DENSE},
    {SAME(MLP "shared_expert.gate_proj.weight"), FM_PART_MLP_GATE, 0, "DH", FM_SHARED},
    {SAME(MLP "shared_expert.up_proj.weight"), FM_PART_MLP_UP, 0, "DH", FM_SHARED},
    {SAME(MLP "shared_expert.down_proj.weight"), FM_PART_MLP_DOWN, 0, "HD", FM_SHARED},
    {SAME(MLP "shared_expert_gate.weight"), LAYER(mlp_mix), "1H", FM_SHARED},
    {SAME(MLP "gate.weight"), LAYER(router), "EH", FM_MOE},
    {STOCK(MLP "experts.{e}.gate_proj.weight"), FM_PART_GATE, 0, "IH", FM_MOE},
    {STOCK(MLP "experts.{e}.up_proj.weight"), FM_PART_UP, 0, "IH", FM_MOE},
    {STOCK(MLP "experts.{e}.down_proj.weight"), FM_PART_DOWN, 0, "HI", FM_MOE},
    ONLINE_EXPERTS,
    END,
};

static const struct fm_weight phimoe_weights[] = {
    DECODER,
    {{MIXTRAL "gate.weight", MIXTRAL "gate.weight", MLP "router.weight"}, LAYER(router), "EH",
     FM_MOE},
    MIXTRAL_EXPERTS,
    END,
};
/* clang-format on */

static const struct fm_model_family families[] = {
    {.name = "mixtral",
     .class_name = "Mixtral",
     .width_key = "intermediate_size",
     .window = true,
     .norm_topk = true,
     .gguf_router = FM_ROUTER_SOFTMAX,
     .rope_theta = 1e6,
     .eps = 1e-5,
     .positions = 131072,
     .weight = mixtral_weights},
    {.name = "qwen2_moe",
     .class_name = "Qwen2Moe",
     .width_key = "moe_intermediate_size",
     .bias_key = "qkv_bias",
     .bias = true,
     .sparse_layers = true,
     .shared_expert = true,
     .topk_key = true,
     .gguf_router = FM_ROUTER_SOFTMAX_RAW,
     .rope_theta = 1e4,
     .eps = 1e-6,
     .positions = 32768,
     .weight = qwen_weights},
    {.name = "qwen3_moe",
     .class_name = "Qwen3Moe",
     .width_key = "moe_intermediate_size",
     .bias_key = "attention_bias",
     .o_bias = true,
     .sparse_layers = true,
     .topk_key = true,
     .qk_norm = FM_QK_NORM_HEAD,
     .gguf_router = FM_ROUTER_SOFTMAX,
     .rope_theta = 1e4,
     .eps = 1e-6,
     .positions = 32768,
     .weight = qwen_weights},
    {.name = "olmoe",
     .class_name = "Olmoe",
     .width_key = "intermediate_size",
     .bias_key = "attention_bias",
     .o_bias = true,
     .topk_key = true,
     .clip = true,
     .qk_norm = FM_QK_NORM_FULL,
     .gguf_router = FM_ROUTER_SOFTMAX_RAW,
     .rope_theta = 1e4,
     .eps = 1e-5,
     .positions = 4096,
     .weight = qwen_weights},
    {.name = "phimoe",
     .class_name = "Phimoe",
     .served_as = "PhiMoEForCausalLM",
     .width_key = "intermediate_size",
     .bias_key = "attention_bias",
     .o_bias = true,
     .norm_bias = true,
     .head_bias = true,
     .window = true,
     .sparsemixer = true,
     .longrope = true,
     .gguf_router = -1,
     .rope_theta = 1e6,
     .eps = 1e-5,
     .positions = 131072,
     .weight = phimoe_weights},
};
#define FAMILIES (sizeof families / sizeof *families)

const struct fm_model_family *fm_families_find(const char *name)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(name, families[i].name) == 0)
            return &families[i];
    return NULL;
}

void fm_families_list(char *text, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < FAMILIES && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? ", " : "", families[i].name);
}
