/*
 * The models of golden/baselines, and the results of other pruners' rules on them
 * (golden/make/baselines.py).
 */
#ifndef FM_TESTS_BASELINES_H
#define FM_TESTS_BASELINES_H

#include "tests/unit/golden.h"

static const char *const baselines_models[] = {"odd-mixtral", "odd-qwen2", "odd-phimoe", "odd-dsv3",
                                               "odd-gptoss"}; /* the last: experts with biases */
#define BASELINES (sizeof baselines_models / sizeof *baselines_models)

static char baselines_model[64], baselines_tokens[96]; /* paths of the model that was opened last */

static inline void baselines_open(struct golden *g, const char *model)
{
    char path[96];
    snprintf(path, sizeof path, "golden/baselines/%s.safetensors", model);
    golden_open(g, path);
    snprintf(baselines_model, sizeof baselines_model, "golden/%s", model);
    snprintf(baselines_tokens, sizeof baselines_tokens, "golden/%s/tokens.npy", model);
}

#endif
