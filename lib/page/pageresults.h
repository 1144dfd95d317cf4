/*
 * Measurements shown on a page besides the bundle's own: what the tools wrote with --json.
 */
#ifndef FM_PAGERESULTS_H
#define FM_PAGERESULTS_H

#include <cjson/cJSON.h>

#include "lib/base/err.h"
#include "lib/page/pagefacts.h"

/*
 * Append the figures of a file to an array of a page's data: {"files", "tool", "held", "full",
 * "series"}, and "exports": true and "digest" (of the tokens) for figures of exported directories.
 * Directories measured on the same tokens share one element.  held is [sequences, tokens of each],
 * if the file has these numbers, followed by the number of predicted tokens if it has this, too.
 * full is the loss of the full model, if no point has it.  A series has a name, a role ("family",
 * "control", "baseline", "before", "after"), seconds and peak_bytes of its calibration if known,
 * and points [budget, bytes, cross-entropy, divergence, agreement].  The last two are null if only
 * losses were measured.  If the file has a 95 % interval of the cross-entropy, three values follow:
 * null, and half the widths of the intervals of cross-entropy and divergence (-1: the divergence
 * has no interval).  A directory's series is named after its layout and, if its experts are
 * rounded, their format; its bytes are those of the layout's tensors or, if rounded, of the weight
 * files.
 *
 * Accepted: reports of fm-bench quality and baselines, fm-train and fm-recover.  FM_ECONFIG for a
 * report of any other tool, and for figures of a family of a different shape; FM_EFORMAT for a
 * malformed file.
 */
int fm_pageresults_add(cJSON *array, const char *path, const struct fm_pagefacts *facts,
                       struct fm_err *err);

#endif
