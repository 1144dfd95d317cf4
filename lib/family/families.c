/*
 * The list of families, and how a name finds its own.
 *
 * To add one:
 *  1. its file here: the keys of config.json that no block reads, its tensors as a table made of
 *     its blocks' rows, and which blocks it is made of; and its row in the list below;
 *  2. where it computes what no other family does: a block of its own in lib/block, with what it
 *     needs of operations in kernels/ops;
 *  3. its classes in formats/runtime/modeling_fm.py, a small model and its goldens in golden/, a
 *     line in the list of tests/unit/models.h.
 * What is pruned is always the same: channels of routed experts.  Routers, shared experts, dense
 * layers, norms and biases are read, computed with, and carried byte for byte.
 */
#include "lib/family/family.h"

#include <stdio.h>
#include <string.h>

static const struct fm_model_family *const families[] = {
    &fm_mixtral,       &fm_qwen2_moe,  &fm_qwen3_moe,    &fm_olmoe,       &fm_phimoe,
    &fm_glm4_moe,      &fm_minimax_m2, &fm_ernie4_5_moe, &fm_deepseek_v2, &fm_deepseek_v3,
    &fm_glm4_moe_lite, &fm_gpt_oss,    &fm_qwen3_next,   &fm_qwen3_5_moe,
};
#define FAMILIES (sizeof families / sizeof *families)

const struct fm_model_family *fm_families_find(const char *name)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(name, families[i]->name) == 0 ||
            (families[i]->alias && strcmp(name, families[i]->alias) == 0))
            return families[i];
    return NULL;
}

void fm_families_list(char *text, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < FAMILIES && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s%s%s", i ? ", " : "", families[i]->name,
                               families[i]->alias ? ", " : "",
                               families[i]->alias ? families[i]->alias : "");
}
