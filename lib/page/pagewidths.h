/*
 * Masks as text: short, and quick to read by a script.
 */
#ifndef FM_PAGEWIDTHS_H
#define FM_PAGEWIDTHS_H

#include <cjson/cJSON.h>

#include "lib/base/err.h"
#include "lib/stage/budgets.h"

/*
 * Add "actions", the widths that experts can have, and "masks", an array with a text for each of
 * the `shown` (n) masks.  A text says what differs from the mask before it, from the full one at
 * first, expert by expert and layer by layer: a decimal number skips so many experts; a letter is
 * the place of the next expert's width in "actions", A to Z and a to z being 0 to 51; one of the
 * twenty signs of FM_PAGEWIDTHS_SIGNS before it adds 52 times its own place, from 1.
 */
#define FM_PAGEWIDTHS_SIGNS "-_.~+*/=!?$%^:;()[]|"
void fm_pagewidths_add(cJSON *data, const struct fm_budgets *budgets, const int *shown, int n);

#endif
