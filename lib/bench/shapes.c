/* Sizes from the models' config.json.  A row has the sizes of experts and of attention, so that
 * `kernels` and `engine` use the same model. */
#include "lib/bench/shapes.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
#define LATENT                                                                                     \
    "  \"kv_lora_rank\": 512,\n  \"qk_nope_head_dim\": 128,\n  \"qk_rope_head_dim\": 64,\n"        \
    "  \"v_head_dim\": 128,\n"
#define V2                                                                                         \
    LATENT "  \"architectures\": [\"DeepseekV2ForCausalLM\"],\n  \"model_type\": \"deepseek_v2\",\n"
#define V3                                                                                         \
    LATENT "  \"architectures\": [\"DeepseekV3ForCausalLM\"],\n  \"model_type\": \"deepseek_v3\",\n"
#define LITE                                                                                       \
    "  \"first_k_dense_replace\": 1,\n  \"n_group\": 1,\n  \"n_shared_experts\": 2,\n"            \
    "  \"q_lora_rank\": null,\n  \"topk_group\": 1,\n"
#define LARGE                                                                                      \
    "  \"first_k_dense_replace\": 3,\n  \"n_group\": 8,\n  \"n_shared_experts\": 1,\n"            \
    "  \"q_lora_rank\": 1536,\n  \"topk_group\": 4,\n"
#define MOONLIGHT                                                                                  \
    V3 LITE "  \"intermediate_size\": 11264,\n  \"routed_scaling_factor\": 2.446,\n"
#define DEEPSEEK_V2_LITE V2 LITE "  \"intermediate_size\": 10944,\n"
#define DEEPSEEK_V3 V3 LARGE "  \"intermediate_size\": 18432,\n"
/* clang-format on */

static const struct fm_shape shapes[] = {
    {"mixtral-8x7b", 4096, 14336, 8, 2, 32, 32, 8, 128, 0, NULL},
    {"phi-3.5-moe", 4096, 6400, 16, 2, 32, 32, 8, 128, 0, NULL},
    {"qwen2-57b-a14b", 3584, 2560, 64, 8, 28, 28, 4, 128, 0, NULL},
    {"qwen3-30b-a3b", 2048, 768, 128, 8, 48, 32, 4, 128, 0, NULL},
    {"glm-4.5-air", 4096, 1408, 128, 8, 45, 96, 8, 128, 0, NULL},
    {"minimax-m2", 3072, 1536, 256, 8, 62, 48, 8, 128, 0, NULL},
    {"moonlight", 2048, 1408, 64, 6, 26, 16, 0, 0, 1, MOONLIGHT},
    {"deepseek-v2-lite", 2048, 1408, 64, 6, 26, 16, 0, 0, 1, DEEPSEEK_V2_LITE},
    {"deepseek-v3", 7168, 2048, 256, 8, 58, 128, 0, 0, 3, DEEPSEEK_V3},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

const struct fm_shape *fm_shapes_find(const char *name)
{
    for (int i = 0; i < SHAPES; i++)
        if (strcmp(name, shapes[i].name) == 0)
            return &shapes[i];
    return NULL;
}

const char *fm_shapes_names(char *text, size_t size)
{
    size_t at = 0;
    for (int i = 0; i < SHAPES && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? ", " : "", shapes[i].name);
    return text;
}
