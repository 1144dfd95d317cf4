/*
 * Over how many devices an export can be split by stock servers (tensor parallelism), as vLLM and
 * SGLang check it when they load:
 *
 *   all layouts       a device gets whole query heads and whole key/value heads; where there are
 *                     fewer of the latter than devices, stock code repeats them (devices must be
 *                     a multiple of them); with our modelling file vLLM does, SGLang does not,
 *                     and what one of them does not is not listed; nor does stock code
 *                     that gathers the keys again for one norm over all heads (OLMoE: vLLM alone
 *                     splits it, SGLang norms a part by the weights of all and stops); dense
 *                     layers and shared experts are split by their channels
 *   uniform, padded   the width of an expert is a multiple of the degree
 *   layer for vLLM    so is the width of every layer
 *   ragged, elastic,  every device has all experts whole: no more rules, and no less memory
 *   layer
 *   native            is for no server
 */
#ifndef FM_RUNTIMES_H
#define FM_RUNTIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/export/export.h"
#include "lib/model/model.h"

#define FM_DEGREES_MAX 64

/* Bit d - 1 is set where degree d, up to FM_DEGREES_MAX, is possible; widths (M, E) are those of
 * the files. */
uint64_t fm_degrees_of(const struct fm_config *config, enum fm_layout layout, bool vllm,
                       const uint32_t *widths);

/* "1, 2, 4" with that separator, "none" without any. */
#define FM_DEGREES_TEXT 320
void fm_degrees_print(char text[FM_DEGREES_TEXT], uint64_t degrees, const char *separator);

#endif
