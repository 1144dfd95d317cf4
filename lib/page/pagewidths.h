/*
 * Masks as text that is short and fast for a script to read.
 */
#ifndef FM_PAGEWIDTHS_H
#define FM_PAGEWIDTHS_H

#include <cjson/cJSON.h>

#include "lib/stage/budgets.h"

/*
 * Add "actions", the possible widths of experts, and "masks", an array with one text for each of
 * the `shown` (n) masks.  A text encodes the difference from the mask before it (the first: from
 * the full mask), expert by expert and layer by layer.  A decimal number skips that many experts.
 * A letter is the index in "actions" of the next expert's width, A to Z and a to z being 0 to 51;
 * one of the twenty signs of FM_PAGEWIDTHS_SIGNS before it adds 52 times its own index, counted
 * from 1.
 */
#define FM_PAGEWIDTHS_SIGNS "-_.~+*/=!?$%^:;()[]|"
void fm_pagewidths_add(cJSON *data, const struct fm_budgets *budgets, const int *shown, int n);

#endif
