/*
 * The untrained models in golden/, at least one of every family, with dimensions that are not round
 * numbers.
 */
#ifndef FM_TESTS_MODELS_H
#define FM_TESTS_MODELS_H

static const char *const odd_models[] = {"odd-mixtral",  "odd-qwen2",          "odd-qwen3",
                                         "odd-olmoe",    "odd-phimoe",         "odd-glm4",
                                         "odd-minimax",  "odd-ernie",          "odd-fp8",
                                         "odd-dsv2",     "odd-dsv3",           "odd-moonlight",
                                         "odd-glm-lite", "odd-gptoss",         "odd-q3next",
                                         "odd-q35",      "odd-dots1",          "odd-solar",
                                         "odd-hy3",      "odd-dsv32",          "odd-glm5",
                                         "odd-exaone",   "odd-axk1",           "odd-afmoe",
                                         "odd-laguna",   "odd-mimo",           "odd-m3",
                                         "odd-granite",  "odd-granite-shared", "odd-lfm2"};
#define MODELS (sizeof odd_models / sizeof *odd_models)

#endif
