/* Sizes from the models' config.json. */
#include "lib/bench/shapes.h"

#include <stdio.h>

#include "lib/base/names.h"

static const struct fm_shape shapes[] = {
    {"mixtral-8x7b", 4096, 14336, 8, 2, 32, 32, 8, 128},
    {"phi-3.5-moe", 4096, 6400, 16, 2, 32, 32, 8, 128},
    {"qwen2-57b-a14b", 3584, 2560, 64, 8, 28, 28, 4, 128},
    {"qwen3-30b-a3b", 2048, 768, 128, 8, 48, 32, 4, 128},
    {"glm-4.5-air", 4096, 1408, 128, 8, 45, 96, 8, 128},
    {"minimax-m2", 3072, 1536, 256, 8, 62, 48, 8, 128},
    {"moonlight", 2048, 1408, 64, 6, 26, 16, 0, 0},
    {"deepseek-v2-lite", 2048, 1408, 64, 6, 26, 16, 0, 0},
    {"deepseek-v3", 7168, 2048, 256, 8, 58, 128, 0, 0},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

const struct fm_shape *fm_shapes_find(const char *name)
{
    return fm_names_among(shapes, SHAPES, sizeof *shapes, name);
}

const char *fm_shapes_names(char *text, size_t size)
{
    size_t at = 0;
    for (int i = 0; i < SHAPES && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? ", " : "", shapes[i].name);
    return text;
}
