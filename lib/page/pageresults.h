/*
 * Measurements that a page shows beside the bundle's own: what --json or --report of our tools
 * wrote.
 */
#ifndef FM_PAGERESULTS_H
#define FM_PAGERESULTS_H

#include <cjson/cJSON.h>

#include "lib/base/err.h"
#include "lib/page/pagefacts.h"

/*
 * Append the figures of a file to an array of a page's data: {"files", "tool", "held", "full",
 * "series"}, and "exports": true where they are of exported directories, of which those that were
 * measured on the same tokens are one element.  held is [sequences, tokens of each] where the file
 * says it, with a third, the tokens that were predicted, where it names a "convention"; full the
 * loss of the full model where that is no point; a series has a name, a role ("family", "control",
 * "baseline", "before", "after"), seconds and peak_bytes of its calibration where they are known,
 * and points [budget, bytes, cross-entropy, divergence, agreement], the last two null where only
 * losses were measured, with null and half the 95 % intervals of cross-entropy and divergence after
 * them where the file has these.  A directory's series has the name of its layout, and the bytes
 * are those of the form.
 *
 * Read are reports of fm-bench quality and baselines, fm-train and fm-recover.  FM_ECONFIG for one
 * of another tool, and for figures of a family of another shape; FM_EFORMAT for a broken one.
 */
int fm_pageresults_add(cJSON *array, const char *path, const struct fm_pagefacts *facts,
                       struct fm_err *err);

#endif
